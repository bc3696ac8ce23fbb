//! The volume with the agent's executable, from which every job container of an engine starts its agent.
//!
//! The name of the volume contains the hash of the executable, and the volume is filled once. The executable is copied through a
//! container that is never started, which also works for an engine on another machine. The name of this container serves as a lock, so that
//! at most one agent fills the volume.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::time::Duration;

use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig, VolumeCreateRequest};
use bollard::query_parameters::{
    ContainerArchiveInfoOptions, CreateContainerOptions, ListVolumesOptions, RemoveContainerOptions,
    RemoveVolumeOptions, UploadToContainerOptions,
};
use muster_agent_api::container::{AGENT_DIR, EXECUTABLE};
use muster_steps::failure::Failure;
use sha2::{Digest, Sha256};
use time::format_description::well_known::Rfc3339;
use tokio::io::AsyncReadExt;
use tokio::sync::{Mutex, OnceCell};
use tokio::time::{Instant, sleep};
use tokio_util::io::ReaderStream;

use super::create::MANAGED;
use super::engine::{failed, is_conflict, is_not_found};

/// Path of this process's executable, which is valid even after the file on disk was replaced.
const OWN_EXECUTABLE: &str = "/proc/self/exe";
/// Name of the executable in the volume.
const FILE_NAME: &str = "muster-agent";
/// Mode of the executable in the volume.
const FILE_MODE: u32 = 0o755;
/// Beginning of the volume's name, before the hash.
const VOLUME_PREFIX: &str = "muster-agent-";
/// Age from which the volume of another version of the agent is removed. A younger volume is kept, because agents of both versions may use
/// the engine.
const MAX_OTHER_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Number of hexadecimal digits of the hash in the name of the volume.
const HASH_DIGITS: usize = 12;
/// Length of a block of a tar archive in bytes.
const TAR_BLOCK: u64 = 512;
/// Maximum time to transfer the executable.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(600);
/// Time without progress after which another agent that fills the volume is considered dead.
const STALLED_TIMEOUT: Duration = Duration::from_secs(15);
/// Interval at which the volume is checked while another agent fills it. Engines send no event when a volume is complete.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Serializes the jobs of this process that find an empty volume.
static FILLING: Mutex<()> = Mutex::const_new(());
/// Identities of the volumes that are known to be complete. They are remembered, because querying the engine takes as long as creating a
/// container.
static COMPLETE: parking_lot::Mutex<BTreeSet<String>> = parking_lot::Mutex::new(BTreeSet::new());
/// Identity of this process's own executable.
static OWN: OnceCell<Executable> = OnceCell::const_new();

/// Identity of an executable.
#[derive(Debug, Clone)]
struct Executable {
    hash: String,
    bytes: u64,
}

/// Volume with the agent's executable.
#[derive(Debug)]
pub(super) struct AgentVolume {
    /// Name of the volume.
    pub(super) name: String,
    /// Engine, name and creation time. A volume that is created again with the same name has another identity.
    identity: String,
    bytes: u64,
}

/// Creates the volume at the engine `host` unless it exists. The volume may be empty or incomplete.
pub(super) async fn create(engine: &Docker, host: &str) -> Result<AgentVolume, Failure> {
    let own = OWN.get_or_try_init(read_own).await.map_err(Failure::io("failed to read the agent's executable"))?;
    let name = format!("{VOLUME_PREFIX}{}", own.hash.get(..HASH_DIGITS).unwrap_or(&own.hash));
    let labels = HashMap::from([(MANAGED.0.to_owned(), MANAGED.1.to_owned())]);
    let request = VolumeCreateRequest { name: Some(name.clone()), labels: Some(labels), ..Default::default() };
    let created = engine.create_volume(request).await;
    let created = created.map_err(failed(format!("failed to create the volume {name}")))?;
    let identity = format!("{host} {name} {:?}", created.created_at);
    Ok(AgentVolume { name, identity, bytes: own.bytes })
}

/// Forgets which volumes are complete. Called if a job cannot start, because a changed volume may be the reason.
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

/// Executable that exists in a volume. It may be incomplete, because another agent is still copying it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    /// Size in bytes.
    bytes: u64,
    /// Whether every user can execute it.
    is_executable: bool,
}

impl AgentVolume {
    /// Fills the volume unless it is complete.
    ///
    /// `container` must mount the volume, so that the engine does not remove it. `image` is any image that the engine has.
    pub(super) async fn fill(&self, engine: &Docker, container: &str, image: &str) -> Result<(), Failure> {
        if COMPLETE.lock().contains(&self.identity) {
            return Ok(());
        }
        self.fill_unless_complete(engine, container, image).await?;
        COMPLETE.lock().insert(self.identity.clone());
        Ok(())
    }

    async fn fill_unless_complete(&self, engine: &Docker, container: &str, image: &str) -> Result<(), Failure> {
        let complete = Some(Found { bytes: self.bytes, is_executable: true });
        if self.find(engine, container).await? == complete {
            return Ok(());
        }
        let _filling = FILLING.lock().await;
        let filler = format!("{}-filler", self.name);
        let mut progress = (None, Instant::now());
        loop {
            let found = self.find(engine, container).await?;
            if found == complete {
                return Ok(());
            }
            if found != progress.0 {
                progress = (found, Instant::now());
            }
            // A separate task continues if the job is stopped, and removes the container.
            let (task_engine, task_filler, body) = (engine.clone(), filler.clone(), self.filler(image));
            let (name, bytes) = (self.name.clone(), self.bytes);
            let filling = tokio::spawn(async move {
                task_engine.create_container(Some(with_name(&task_filler)), body).await?;
                let sent = send(&task_engine, &task_filler, &name, bytes).await;
                remove(&task_engine, &task_filler).await;
                Ok(sent)
            });
            let filled = filling.await.map_err(|error| Failure::System(format!("failed to fill a volume: {error}")))?;
            match filled {
                Ok(sent) => {
                    sent?;
                    remove_unused(engine, &self.name).await;
                }
                Err(error) if is_conflict(&error) && progress.1.elapsed() < STALLED_TIMEOUT => {
                    sleep(POLL_INTERVAL).await
                }
                Err(error) if is_conflict(&error) => {
                    tracing::warn!(
                        container = filler,
                        "removing the container of an agent that stopped filling the agent's volume"
                    );
                    remove(engine, &filler).await;
                    progress.1 = Instant::now();
                }
                Err(error) => return Err(failed(format!("failed to create the container {filler}"))(error)),
            }
        }
    }

    /// Returns the executable in the volume. `None` means that the file does not exist.
    async fn find(&self, engine: &Docker, container: &str) -> Result<Option<Found>, Failure> {
        let options = ContainerArchiveInfoOptions { path: EXECUTABLE.to_owned() };
        match engine.get_container_archive_info(container, Some(options)).await {
            Ok(found) => {
                let bytes = u64::try_from(found.size).unwrap_or_default();
                // An engine may set the mode of a file after its content.
                Ok(Some(Found { bytes, is_executable: found.file_mode & 0o111 == 0o111 }))
            }
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(failed(format!("failed to inspect the volume {}", self.name))(error)),
        }
    }

    fn filler(&self, image: &str) -> ContainerCreateBody {
        let host_config =
            HostConfig { binds: Some(vec![format!("{}:{AGENT_DIR}", self.name)]), ..HostConfig::default() };
        ContainerCreateBody {
            image: Some(image.to_owned()),
            // Some images have no command. The container is never started.
            cmd: Some(vec![EXECUTABLE.to_owned()]),
            labels: Some(HashMap::from([(MANAGED.0.to_owned(), MANAGED.1.to_owned())])),
            host_config: Some(host_config),
            ..ContainerCreateBody::default()
        }
    }
}

/// Copies the executable into the volume with this name.
async fn send(engine: &Docker, filler: &str, volume: &str, bytes: u64) -> Result<(), Failure> {
    let archive = archive(bytes).await.map_err(Failure::io("failed to read the agent's executable"))?;
    let options = UploadToContainerOptions { path: AGENT_DIR.to_owned(), ..Default::default() };
    let engine = engine.clone().with_timeout(TRANSFER_TIMEOUT);
    let sent = engine.upload_to_container(filler, Some(options), bollard::body_try_stream(archive)).await;
    sent.map_err(failed(format!("failed to copy the agent to the volume {volume}")))
}

/// Removes the volumes of other versions that are older than [`MAX_OTHER_AGE`].
///
/// The engine keeps a volume that a container uses. An agent whose volume was removed creates and fills it again.
async fn remove_unused(engine: &Docker, own: &str) {
    let filters = [("name", VOLUME_PREFIX.to_owned()), ("label", format!("{}={}", MANAGED.0, MANAGED.1))];
    let filters = filters.map(|(name, value)| (name.to_owned(), vec![value])).into();
    let options = ListVolumesOptions { filters: Some(filters) };
    let found = match engine.list_volumes(Some(options)).await {
        Ok(found) => found.volumes.unwrap_or_default(),
        Err(error) => {
            tracing::warn!(%error, "failed to list the volumes of other versions of the agent");
            return;
        }
    };
    let oldest = time::OffsetDateTime::now_utc() - MAX_OTHER_AGE;
    let is_old = |created: &str| time::OffsetDateTime::parse(created, &Rfc3339).is_ok_and(|created| created < oldest);
    for volume in found {
        let is_other = volume.name.starts_with(VOLUME_PREFIX) && volume.name != own;
        if !is_other || !volume.created_at.as_deref().is_some_and(is_old) {
            continue;
        }
        match engine.remove_volume(&volume.name, None::<RemoveVolumeOptions>).await {
            Ok(()) => tracing::info!(volume = volume.name, "volume of another version of the agent removed"),
            Err(error) => {
                tracing::debug!(%error, volume = volume.name, "keeping the volume of another version of the agent")
            }
        }
    }
}

/// Returns a tar archive with this process's own executable, whose size is `bytes`.
async fn archive(bytes: u64) -> io::Result<ReaderStream<impl tokio::io::AsyncRead>> {
    let mut header = tar::Header::new_ustar();
    header.set_path(FILE_NAME)?;
    header.set_mode(FILE_MODE);
    header.set_size(bytes);
    header.set_mtime(0);
    header.set_cksum();
    let file = tokio::fs::File::open(OWN_EXECUTABLE).await?.take(bytes);
    // The content is padded to whole blocks, and two empty blocks end the archive.
    let padding = bytes.next_multiple_of(TAR_BLOCK) - bytes + 2 * TAR_BLOCK;
    let start = io::Cursor::new(header.as_bytes().to_vec());
    Ok(ReaderStream::with_capacity(start.chain(file).chain(tokio::io::repeat(0).take(padding)), 256 * 1024))
}

fn with_name(name: &str) -> CreateContainerOptions {
    CreateContainerOptions { name: Some(name.to_owned()), ..CreateContainerOptions::default() }
}

async fn remove(engine: &Docker, container: &str) {
    // The image may declare volumes, which the engine created for the container.
    let options = RemoveContainerOptions { force: true, v: true, ..RemoveContainerOptions::default() };
    if let Err(error) = engine.remove_container(container, Some(options)).await
        && !is_not_found(&error)
    {
        tracing::warn!(%error, container, "failed to remove a container");
    }
}
