//! The volume with the agent's executable, from which each job container of an engine starts its agent.
//!
//! The executable is copied through a container that is never started, which also works with a remote engine. The name
//! of this container is a lock, so that one agent fills the volume. If that agent makes no progress, another one
//! removes the container.

#[cfg(test)]
mod tests;
mod transfer;
mod unused;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bollard::Docker;
use bollard::models::VolumeCreateRequest;
use bollard::query_parameters::ContainerArchiveInfoOptions;
use muster_agent_api::container::EXECUTABLE;
use muster_steps::failure::Failure;
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, OnceCell};
use tokio::time::{Instant, sleep, timeout};

use super::create::MANAGED;
use super::engine::{failed, is_conflict, is_not_found};
use transfer::{Transfer, remove};

/// Path of this process's executable. It is valid even after the file was replaced.
const OWN_EXECUTABLE: &str = "/proc/self/exe";
/// Prefix of the volume's name, before the hash of the executable.
const VOLUME_PREFIX: &str = "muster-agent-";
/// Suffix of the name of the container through which a volume is filled, after the volume's name.
const FILLER_SUFFIX: &str = "-filler";
const HASH_DIGITS: usize = 12;
/// Maximum time to fill the volume.
const FILL_TIMEOUT: Duration = Duration::from_secs(900);
/// Maximum time to remove unused volumes.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_TRANSFERS: u32 = 3;
/// Time without progress after which another agent is considered dead.
const STALLED_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval between checks while another agent fills the volume. Engines send no event.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Locks for the jobs of this process that fill the same volume, by identity of the volume.
static FILLING: parking_lot::Mutex<BTreeMap<String, Arc<Mutex<()>>>> = parking_lot::Mutex::new(BTreeMap::new());
/// Identities of complete volumes, as a cache.
static COMPLETE: parking_lot::Mutex<BTreeSet<String>> = parking_lot::Mutex::new(BTreeSet::new());
static OWN: OnceCell<Executable> = OnceCell::const_new();

#[derive(Debug, Clone)]
struct Executable {
    hash: String,
    bytes: u64,
}

#[derive(Debug, Clone)]
pub(super) struct AgentVolume {
    pub(super) name: String,
    /// URL of the engine, for messages.
    engine: String,
    /// Engine, name and creation time, so that a recreated volume has another identity.
    identity: String,
    bytes: u64,
}

/// Returns the volume at the engine with the URL `location`. Creates it, without content, if it does not exist.
pub(super) async fn create(engine: &Docker, location: String) -> Result<AgentVolume, Failure> {
    let own = OWN.get_or_try_init(read_own).await.map_err(Failure::io("failed to read the agent's executable"))?;
    let name = format!("{VOLUME_PREFIX}{}", own.hash.get(..HASH_DIGITS).unwrap_or(&own.hash));
    let labels = HashMap::from([(MANAGED.0.to_owned(), MANAGED.1.to_owned())]);
    let request = VolumeCreateRequest { name: Some(name.clone()), labels: Some(labels), ..Default::default() };
    let created = match engine.create_volume(request.clone()).await {
        // Another job has created the volume, which the engine then returns.
        Err(error) if is_conflict(&error) => engine.create_volume(request).await,
        created => created,
    };
    let created = created.map_err(failed(format!("failed to create the volume {name}")))?;
    let identity = format!("{location} {name} {:?}", created.created_at);
    Ok(AgentVolume { name, engine: location, identity, bytes: own.bytes })
}

/// Forgets which volumes are complete. Called if a job cannot start, possibly because a volume was changed.
pub(super) fn forget_complete_volumes() {
    COMPLETE.lock().clear();
}

async fn read_own() -> io::Result<Executable> {
    let read = tokio::task::spawn_blocking(|| {
        let mut hasher = Sha256::new();
        let bytes = io::copy(&mut std::fs::File::open(OWN_EXECUTABLE)?, &mut hasher)?;
        Ok(Executable { hash: hex::encode(hasher.finalize()), bytes })
    });
    read.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Executable in a volume. It may be incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    bytes: u64,
    /// Whether every user can execute it.
    is_executable: bool,
}

/// Progress of another agent.
#[derive(Debug, PartialEq, Eq)]
struct OtherAgent {
    container: String,
    found: Option<Found>,
}

impl AgentVolume {
    #[cfg(test)]
    pub(super) fn named(name: &str) -> Self {
        Self { engine: String::new(), name: name.to_owned(), identity: String::new(), bytes: 0 }
    }

    /// Fills the volume unless it is complete.
    ///
    /// `container` must mount the volume, so that other agents cannot remove the volume. `image` is any image of the
    /// engine.
    pub(super) async fn fill(&self, engine: &Docker, container: &str, image: &str) -> Result<(), Failure> {
        if COMPLETE.lock().contains(&self.identity) {
            return Ok(());
        }
        self.fill_within(FILL_TIMEOUT, engine, container, image).await?;
        COMPLETE.lock().insert(self.identity.clone());
        if timeout(REMOVAL_TIMEOUT, unused::remove(engine, &self.name)).await.is_err() {
            tracing::warn!(
                volume = self.name,
                "failed to remove unused volumes of agents in time, the next agent process removes them"
            );
        }
        Ok(())
    }

    async fn fill_within(&self, limit: Duration, engine: &Docker, container: &str, image: &str) -> Result<(), Failure> {
        timeout(limit, self.fill_unless_complete(engine, container, image)).await.unwrap_or_else(|_| {
            Err(Failure::System(format!(
                "the volume {} did not get the agent's executable within {} s; check the load of the machine of the engine at {}, and \
                 remove the container {} if it exists",
                self.name,
                limit.as_secs(),
                self.engine,
                self.filler_name()
            )))
        })
    }

    async fn fill_unless_complete(&self, engine: &Docker, container: &str, image: &str) -> Result<(), Failure> {
        let complete = Some(Found { bytes: self.bytes, is_executable: true });
        if self.find(engine, container).await? == complete {
            return Ok(());
        }
        let lock = Arc::clone(FILLING.lock().entry(self.identity.clone()).or_default());
        let _filling = lock.lock().await;
        let mut transfers = 0;
        let mut other: Option<(OtherAgent, Instant)> = None;
        loop {
            let found = self.find(engine, container).await?;
            if found == complete {
                return Ok(());
            }
            if transfers == MAX_TRANSFERS {
                return Err(Failure::System(format!(
                    "{transfers} attempts to copy the agent's executable to the volume {} did not complete it; check the disk of the \
                     machine of the engine at {}, and remove the volume",
                    self.name, self.engine
                )));
            }
            match self.transfer(engine, image).await? {
                Transfer::Done | Transfer::Interrupted => {
                    transfers += 1;
                    other = None;
                }
                Transfer::OtherAgent(container) => {
                    let seen = OtherAgent { container, found };
                    match other.take_if(|(known, _)| *known == seen) {
                        Some((seen, since)) if since.elapsed() >= STALLED_TIMEOUT => {
                            tracing::warn!(
                                container = seen.container,
                                "removing the container of an agent that stopped filling the agent's volume"
                            );
                            remove(engine, &seen.container).await;
                        }
                        known => {
                            other = known.or_else(|| Some((seen, Instant::now())));
                            sleep(POLL_INTERVAL).await;
                        }
                    }
                }
            }
        }
    }

    /// Returns the executable in the volume, if it exists.
    async fn find(&self, engine: &Docker, container: &str) -> Result<Option<Found>, Failure> {
        let options = ContainerArchiveInfoOptions { path: EXECUTABLE.to_owned() };
        match engine.get_container_archive_info(container, Some(options)).await {
            Ok(found) => {
                let bytes = u64::try_from(found.size).unwrap_or_default();
                // The mode is checked, too, because an engine may set the mode of a file after its content.
                Ok(Some(Found { bytes, is_executable: found.file_mode & 0o111 == 0o111 }))
            }
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(failed(format!("failed to inspect the volume {}", self.name))(error)),
        }
    }

    /// Returns the name of the container through which the volume is filled.
    fn filler_name(&self) -> String {
        format!("{}{FILLER_SUFFIX}", self.name)
    }
}
