//! Copies the executable into the volume, through a container that is never started.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as ApiError;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{CreateContainerOptions, RemoveContainerOptions, UploadToContainerOptions};
use muster_agent_api::container::{AGENT_DIR, EXECUTABLE};
use muster_steps::failure::Failure;
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;

use super::{AgentVolume, OWN_EXECUTABLE};
use crate::docker::create::MANAGED;
use crate::docker::engine::{failed, inspect_container, is_conflict, is_not_found};

const FILE_NAME: &str = "muster-agent";
const FILE_MODE: u32 = 0o755;
const TAR_BLOCK: u64 = 512;
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(600);

/// Result of an attempt to copy the executable.
pub(super) enum Transfer {
    /// The engine has accepted the executable.
    Done,
    /// Another agent removed the container before the executable was copied.
    Interrupted,
    /// Another agent copies the executable, or has just done so. Contains the ID of its container, or the name if the
    /// container no longer exists.
    OtherAgent(String),
}

impl AgentVolume {
    /// Copies the executable, unless another agent copies it.
    pub(super) async fn transfer(&self, engine: &Docker, image: &str) -> Result<Transfer, Failure> {
        let name = self.filler_name();
        let (task_engine, task_name, body) = (engine.clone(), name.clone(), self.filler_body(image));
        let (volume, bytes) = (self.name.clone(), self.bytes);
        // If the job is stopped, this task still removes the container.
        let transfer = tokio::spawn(async move {
            let options = CreateContainerOptions { name: Some(task_name), ..CreateContainerOptions::default() };
            let container = task_engine.create_container(Some(options), body).await?.id;
            let sent = match send(&task_engine, &container, &volume, bytes).await {
                Ok(()) => Ok(Transfer::Done),
                Err(failure) => match inspect_container(&task_engine, &container).await {
                    Err(error) if is_not_found(&error) => Ok(Transfer::Interrupted),
                    _ => Err(failure),
                },
            };
            // Removes the container by its ID, because another agent may reuse the name.
            remove(&task_engine, &container).await;
            Ok(sent)
        });
        match transfer.await.map_err(|error| Failure::System(format!("failed to fill a volume: {error}")))? {
            Ok(sent) => sent,
            Err(error) if is_conflict(&error) => match inspect_container(engine, &name).await {
                Ok(found) => Ok(Transfer::OtherAgent(found.id.unwrap_or(name))),
                Err(error) if is_not_found(&error) => Ok(Transfer::OtherAgent(name)),
                Err(error) => Err(failed(format!("failed to inspect the container {name}"))(error)),
            },
            Err(error) => Err(failed(format!("failed to create the container {name}"))(error)),
        }
    }

    fn filler_body(&self, image: &str) -> ContainerCreateBody {
        let host_config =
            HostConfig { binds: Some(vec![format!("{}:{AGENT_DIR}", self.name)]), ..HostConfig::default() };
        ContainerCreateBody {
            image: Some(image.to_owned()),
            // Some images have no command, which the engine requires.
            cmd: Some(vec![EXECUTABLE.to_owned()]),
            labels: Some(HashMap::from([(MANAGED.0.to_owned(), MANAGED.1.to_owned())])),
            host_config: Some(host_config),
            ..ContainerCreateBody::default()
        }
    }
}

async fn send(engine: &Docker, container: &str, volume: &str, bytes: u64) -> Result<(), Failure> {
    let archive = archive(bytes).await.map_err(Failure::io("failed to read the agent's executable"))?;
    let options = UploadToContainerOptions { path: AGENT_DIR.to_owned(), ..Default::default() };
    let engine = engine.clone().with_timeout(TRANSFER_TIMEOUT);
    let sent = engine.upload_to_container(container, Some(options), bollard::body_try_stream(archive)).await;
    let operation = format!("failed to copy the agent to the volume {volume}");
    sent.map_err(|error| match error {
        ApiError::RequestTimeoutError => Failure::System(format!(
            "{operation}: no answer within {} s; check the load of the engine's machine",
            TRANSFER_TIMEOUT.as_secs()
        )),
        error => failed(operation)(error),
    })
}

/// Returns a tar archive with the first `bytes` bytes of this process's executable.
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

/// Removes a container. Errors are only logged.
pub(super) async fn remove(engine: &Docker, container: &str) {
    // Also removes the volumes that the image declares.
    let options = RemoveContainerOptions { force: true, v: true, ..RemoveContainerOptions::default() };
    if let Err(error) = engine.remove_container(container, Some(options)).await
        && !is_not_found(&error)
    {
        tracing::warn!(%error, container, "failed to remove a container");
    }
}
