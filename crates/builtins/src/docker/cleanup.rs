//! Removes the containers, volumes and networks of a job.

use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as ApiError;
use bollard::query_parameters::{RemoveContainerOptions, RemoveVolumeOptions};
use futures::future::join_all;
use muster_agent_api::builtin::{DockerContainer, DockerNetwork};
use tokio::time::{sleep, timeout};

use super::engine::{is_conflict, is_not_found, reason};
use super::{create, directories, network};

/// Maximum time for everything, as in gitlab-runner (docs/spec/job-execution.md, section 5.12).
const TIMEOUT: Duration = Duration::from_secs(300);
/// Delay before an object that is still in use is removed again.
const RETRY_DELAY: Duration = Duration::from_millis(200);

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

    /// Removes the objects. An object that does not exist is not an error. Other errors are logged.
    pub(super) async fn remove(&self, engine: &Docker) {
        let removing = async {
            join_all(self.containers.iter().map(|name| self.remove_container(engine, name))).await;
            join_all(self.volumes.iter().map(|name| remove_volume(engine, name))).await;
            if let Some(network) = &self.network {
                network::remove(engine, network).await;
            }
        };
        if timeout(TIMEOUT, removing).await.is_err() {
            tracing::error!(containers = ?self.containers, "failed to remove the containers of a job in time; remove them by hand");
        }
    }

    async fn remove_container(&self, engine: &Docker, name: &str) {
        let options =
            RemoveContainerOptions { force: true, v: !self.keep_volumes, ..RemoveContainerOptions::default() };
        loop {
            let removed = engine.remove_container(name, Some(options.clone())).await;
            // Another call already removes the container: it is gone soon.
            if !removed.as_ref().is_err_and(is_conflict) {
                return log(removed, "container", name);
            }
            sleep(RETRY_DELAY).await;
        }
    }
}

async fn remove_volume(engine: &Docker, name: &str) {
    log(engine.remove_volume(name, None::<RemoveVolumeOptions>).await, "volume", name);
}

fn log(removed: Result<(), ApiError>, kind: &'static str, name: &str) {
    match removed {
        Err(error) if !is_not_found(&error) => {
            tracing::warn!(kind, name, error = reason(&error), "failed to remove an object of a job from the engine");
        }
        Ok(()) | Err(_) => {}
    }
}
