//! Relay from the build container to an address on this machine, such as the coordinator of `muster ci`.
//!
//! ```text
//! container: connection to 127.0.0.1:PORT --> agent in the container --> RELAY_SOCKET --mounted--> this agent --> 127.0.0.1:PORT
//! ```
//! The agent listens on the same address, so that URLs in variables stay valid.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::models::ContainerCreateBody;
use muster_agent_api::builtin::{DockerContainer, DockerNetwork};
use muster_agent_api::container::{RELAY, RELAY_DIR, RELAY_SOCKET_NAME};
use muster_steps::failure::Failure;
use sha2::{Digest, Sha256};
use tokio::net::{TcpStream, UnixListener};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Delay after an error, such as too many open files.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Maximum number of connections of one job at the same time.
const MAX_CONNECTIONS: usize = 256;

/// Number of hexadecimal digits in the name of the directory. Paths of sockets must be short.
const HASH_DIGITS: usize = 24;

/// Directory that is removed on drop. Its name follows from the job, so that another agent can remove it.
#[derive(Debug)]
struct Directory(PathBuf);

impl Directory {
    /// Creates a private directory. Replaces the directory of a killed agent.
    fn create(job: &DockerContainer) -> io::Result<Self> {
        let path = Self::path(job);
        let create = || DirBuilder::new().mode(0o700).create(&path);
        match create() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Fails if the directory belongs to another user.
                std::fs::remove_dir_all(&path)?;
                create()?;
            }
            created => created?,
        }
        Ok(Self(path))
    }

    fn path(job: &DockerContainer) -> PathBuf {
        let hash = format!("{:x}", Sha256::digest(&job.build.name));
        std::env::temp_dir().join(format!("muster-relay-{}", hash.get(..HASH_DIGITS).unwrap_or(&hash)))
    }

    /// Returns the directory to mount, which every user in the container can enter.
    fn inner(&self) -> PathBuf {
        self.0.join("s")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Removes a directory. Errors are only logged.
fn remove(directory: &Path) {
    if let Err(error) = std::fs::remove_dir_all(directory)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, directory = %directory.display(), "failed to remove the directory of a relay");
    }
}

/// A running relay. Drop closes its connections and removes its socket.
#[derive(Debug)]
pub(super) struct Relay {
    dir: Directory,
    address: String,
    _serving: JoinSet<()>,
}

impl Relay {
    /// Starts the relay of a job, if it needs one. `is_local` means that the engine is on this machine.
    ///
    /// # Errors
    /// [`Failure`] if the engine is remote and cannot mount the socket, or the socket cannot be created.
    pub(super) fn start(job: &DockerContainer, is_local: bool) -> Result<Option<Self>, Failure> {
        let shares_network = matches!(&job.network, DockerNetwork::Mode(mode) if mode == "host");
        if job.relay.is_empty() || is_local && shares_network {
            return Ok(None);
        }
        if !is_local {
            return Err(Failure::Configuration(format!(
                "containers of an engine on another machine cannot reach the coordinator at {}; use an engine on this machine, or a \
                 coordinator at an address that is not a loopback address",
                job.relay
            )));
        }
        let relay = Self::listen(job).map_err(Failure::io("failed to create the socket for the coordinator"))?;
        Ok(Some(relay))
    }

    /// Removes the directory of a killed agent.
    pub(super) fn remove_leftovers(job: &DockerContainer) {
        if !job.relay.is_empty() {
            remove(&Directory::path(job));
        }
    }

    fn listen(job: &DockerContainer) -> io::Result<Self> {
        let (dir, address) = (Directory::create(job)?, job.relay.clone());
        DirBuilder::new().mode(0o700).create(dir.inner())?;
        let socket = dir.inner().join(RELAY_SOCKET_NAME);
        let listener = UnixListener::bind(&socket)?;
        std::fs::set_permissions(&socket, Permissions::from_mode(0o666))?;
        std::fs::set_permissions(dir.inner(), Permissions::from_mode(0o711))?;
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, address.clone()));
        Ok(Self { dir, address, _serving: serving })
    }

    /// Adds the relay to the description of the build container.
    pub(super) fn add_to(&self, body: &mut ContainerCreateBody) {
        let bind = format!("{}:{RELAY_DIR}:ro", self.dir.inner().display());
        body.host_config.get_or_insert_default().binds.get_or_insert_default().push(bind);
        body.env.get_or_insert_default().push(format!("{RELAY}={}", self.address));
    }
}

/// Forwards connections until the task is aborted.
async fn accept(listener: UnixListener, address: String) {
    let (mut connections, free) = (JoinSet::new(), Arc::new(Semaphore::new(MAX_CONNECTIONS)));
    loop {
        let accepting = async {
            let permit = Arc::clone(&free).acquire_owned().await.ok();
            (listener.accept().await, permit)
        };
        tokio::select! {
            (accepted, permit) = accepting => match accepted {
                Ok((mut inside, _)) => {
                    let address = address.clone();
                    connections.spawn(async move {
                        let _permit = permit;
                        let copied = async {
                            let mut outside = TcpStream::connect(&address).await?;
                            tokio::io::copy_bidirectional(&mut inside, &mut outside).await
                        };
                        if let Err(error) = copied.await {
                            tracing::debug!(%error, address, "connection of a container ended with an error");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection of a container, retrying");
                    sleep(RETRY_DELAY).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_agent_api::builtin::ContainerSpec;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, UnixStream};

    use super::*;

    fn job(relay: &str, network: DockerNetwork) -> DockerContainer {
        let build = ContainerSpec { name: format!("relay-{}-{relay}", std::process::id()), ..ContainerSpec::default() };
        DockerContainer { relay: relay.to_owned(), network, build, ..DockerContainer::default() }
    }

    #[tokio::test]
    async fn bytes_reach_the_address_and_the_socket_is_removed_at_the_end() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap().to_string();
        let relay = Relay::start(&job(&address, DockerNetwork::Bridge), true).unwrap().unwrap();
        let socket = relay.dir.inner().join(RELAY_SOCKET_NAME);
        let mut inside = UnixStream::connect(&socket).await.unwrap();
        inside.write_all(b"ping").await.unwrap();
        inside.shutdown().await.unwrap();
        let (mut outside, _) = server.accept().await.unwrap();
        let mut received = String::new();
        outside.read_to_string(&mut received).await.unwrap();
        outside.write_all(b"pong").await.unwrap();
        drop(outside);
        let mut answer = String::new();
        inside.read_to_string(&mut answer).await.unwrap();
        assert_eq!((received.as_str(), answer.as_str()), ("ping", "pong"));
        drop(relay);
        assert!(!socket.exists());
    }

    #[tokio::test]
    async fn directory_of_a_killed_agent_is_replaced_or_removed() {
        let job = job("127.0.0.1:1", DockerNetwork::Bridge);
        let leave = || std::mem::forget(Relay::start(&job, true).unwrap().unwrap());
        leave();
        leave();
        assert!(Directory::path(&job).join("s").join(RELAY_SOCKET_NAME).exists());
        Relay::remove_leftovers(&job);
        assert!(!Directory::path(&job).exists());
    }

    #[tokio::test]
    async fn only_a_local_engine_can_have_a_relay() {
        let host = DockerNetwork::Mode("host".to_owned());
        assert!(Relay::start(&job("127.0.0.1:1", host.clone()), true).unwrap().is_none());
        assert!(Relay::start(&job("", DockerNetwork::Bridge), false).unwrap().is_none());
        for network in [DockerNetwork::Bridge, host] {
            let failure = Relay::start(&job("127.0.0.1:1", network), false).unwrap_err();
            assert!(failure.to_string().contains("use an engine on this machine"), "{failure}");
        }
    }
}
