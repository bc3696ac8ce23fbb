//! Removes the containers, volumes and networks of a job.

use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as ApiError;
use bollard::query_parameters::{RemoveContainerOptions, RemoveVolumeOptions};
use futures::future::join_all;
use muster_agent_api::builtin::{DockerContainer, DockerNetwork};
use muster_steps::failure::Failure;
use tokio::time::{Instant, sleep, timeout};

use super::engine::{is_answer, is_conflict, is_not_found, reason};
use super::{create, directories, network};

/// Maximum time for everything, as in gitlab-runner (docs/spec/job-execution.md, section 5.12).
const TIMEOUT: Duration = Duration::from_secs(300);
/// Delay before objects that are left are removed again.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Number of attempts after which an error of the engine is final. An object that is being removed, and an engine that does not answer, do
/// not count.
const MAX_REJECTIONS: u32 = 10;

/// Names of the objects that exist only for one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Objects {
    containers: Vec<String>,
    volumes: Vec<String>,
    network: Option<String>,
    keep_volumes: bool,
}

impl Objects {
    /// Returns the objects that the step with these inputs may have created.
    pub(super) fn of(job: &DockerContainer) -> Self {
        let services = job.services.iter().map(|service| service.container.name.clone());
        let temporary = job.volumes.iter().filter(|volume| volume.temporary && create::is_named(volume));
        Self {
            containers: [job.build.name.clone(), directories::setup_name(job)].into_iter().chain(services).collect(),
            volumes: temporary.map(|volume| volume.source.clone()).chain([create::run_volume(job)]).collect(),
            network: match &job.network {
                DockerNetwork::PerJob { name, .. } => Some(name.clone()),
                DockerNetwork::Bridge | DockerNetwork::Mode(_) => None,
            },
            keep_volumes: job.keep_volumes,
        }
    }

    /// Removes the objects. An object that does not exist is not an error. Waits for an engine that does not answer, for example because it
    /// is restarting.
    ///
    /// # Errors
    /// [`Failure`] with the objects that are left.
    pub(super) async fn remove(&self, engine: &Docker) -> Result<(), Failure> {
        let start = Instant::now();
        let mut rejected = 0;
        loop {
            let left = match timeout(TIMEOUT.saturating_sub(start.elapsed()), self.remove_once(engine)).await {
                Ok(left) => left,
                Err(_) => vec![Left {
                    object: format!("containers {}", self.containers.join(", ")),
                    error: ApiError::RequestTimeoutError,
                }],
            };
            if left.is_empty() {
                return Ok(());
            }
            rejected += u32::from(left.iter().any(|left| is_answer(&left.error) && !is_conflict(&left.error)));
            if rejected >= MAX_REJECTIONS || start.elapsed() >= TIMEOUT {
                let left: Vec<_> =
                    left.iter().map(|left| format!("{} ({})", left.object, reason(&left.error))).collect();
                return Err(Failure::System(format!(
                    "failed to remove objects of the job from the Docker engine; remove them by hand: {}",
                    left.join(", ")
                )));
            }
            sleep(RETRY_DELAY).await;
        }
    }

    /// Removes the objects. Logs an error.
    pub(super) async fn remove_or_log(&self, engine: &Docker) {
        if let Err(error) = self.remove(engine).await {
            tracing::error!(%error, "failed to clean up after a job in containers");
        }
    }

    /// Tries to remove each object. Returns those that are left.
    async fn remove_once(&self, engine: &Docker) -> Vec<Left> {
        let options =
            RemoveContainerOptions { force: true, v: !self.keep_volumes, ..RemoveContainerOptions::default() };
        let containers = join_all(self.containers.iter().map(async |name| {
            left(format!("container {name}"), engine.remove_container(name, Some(options.clone())).await)
        }));
        let mut found = containers.await;
        let volumes = join_all(self.volumes.iter().map(async |name| {
            left(format!("volume {name}"), engine.remove_volume(name, None::<RemoveVolumeOptions>).await)
        }));
        found.extend(volumes.await);
        if let Some(name) = &self.network {
            found.push(left(format!("network {name}"), network::remove(engine, name).await));
        }
        found.into_iter().flatten().collect()
    }
}

/// An object that could not be removed.
struct Left {
    object: String,
    error: ApiError,
}

fn left(object: String, removed: Result<(), ApiError>) -> Option<Left> {
    removed.err().filter(|error| !is_not_found(error)).map(|error| Left { object, error })
}
