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

/// Maximum time for the whole cleanup, as in gitlab-runner (docs/spec/job-execution.md, section 5.12).
const TIMEOUT: Duration = Duration::from_secs(300);
/// Delay before the next attempt to remove the remaining objects.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Number of rejected attempts after which the cleanup fails. An attempt does not count if the engine does not answer, or if an object is
/// already being removed.
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
    ///
    /// # Errors
    /// [`Failure::Configuration`] if engines do not accept a name. Names are parts of the paths of requests, so such a name could address
    /// another object.
    pub(super) fn from_job(job: &DockerContainer) -> Result<Self, Failure> {
        let services = job.services.iter().map(|service| service.container.name.clone());
        let temporary = job.volumes.iter().filter(|volume| volume.temporary && create::is_named(volume));
        let objects = Self {
            containers: [job.build.name.clone(), directories::setup_name(job)].into_iter().chain(services).collect(),
            volumes: temporary.map(|volume| volume.source.clone()).chain([create::run_volume(job)]).collect(),
            network: match &job.network {
                DockerNetwork::PerJob { name, .. } => Some(name.clone()),
                DockerNetwork::Bridge | DockerNetwork::Mode(_) => None,
            },
            keep_volumes: job.keep_volumes,
        };
        let names = objects.containers.iter().chain(&objects.volumes).chain(&objects.network);
        match names.into_iter().find(|name| !is_valid_name(name)) {
            Some(name) => Err(Failure::Configuration(format!(
                "{name:?} is not a valid name of a container, volume or network; use letters, digits, `_`, `.` and `-`"
            ))),
            None => Ok(objects),
        }
    }

    /// Removes the objects. An object that does not exist is not an error.
    ///
    /// If the engine does not answer, for example because it is restarting, tries again until it answers.
    ///
    /// # Errors
    /// [`Failure`] with the objects that remain.
    pub(super) async fn remove(&self, engine: &Docker) -> Result<(), Failure> {
        let start = Instant::now();
        let mut rejected = 0;
        loop {
            let left = match timeout(TIMEOUT.saturating_sub(start.elapsed()), self.remove_once(engine)).await {
                Ok(left) => left,
                Err(_) => vec![RemovalFailure {
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

    /// Removes the objects, and logs an error if that fails.
    pub(super) async fn remove_or_log(&self, engine: &Docker) {
        if let Err(error) = self.remove(engine).await {
            tracing::error!(%error, "failed to clean up after a job in containers");
        }
    }

    /// Tries to remove each object. Returns the objects that remain.
    async fn remove_once(&self, engine: &Docker) -> Vec<RemovalFailure> {
        let options =
            RemoveContainerOptions { force: true, v: !self.keep_volumes, ..RemoveContainerOptions::default() };
        let containers = join_all(self.containers.iter().map(async |name| {
            failure_of(format!("container {name}"), engine.remove_container(name, Some(options.clone())).await)
        }));
        let mut found = containers.await;
        let volumes = join_all(self.volumes.iter().map(async |name| {
            failure_of(format!("volume {name}"), engine.remove_volume(name, None::<RemoveVolumeOptions>).await)
        }));
        found.extend(volumes.await);
        if let Some(name) = &self.network {
            found.push(failure_of(format!("network {name}"), network::remove(engine, name).await));
        }
        found.into_iter().flatten().collect()
    }
}

/// Returns whether engines accept the name. It begins with a letter or digit, so it is not `.` or `..`.
fn is_valid_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

/// An object that could not be removed.
struct RemovalFailure {
    object: String,
    error: ApiError,
}

fn failure_of(object: String, removed: Result<(), ApiError>) -> Option<RemovalFailure> {
    removed.err().filter(|error| !is_not_found(error)).map(|error| RemovalFailure { object, error })
}

#[cfg(test)]
mod tests {
    use muster_agent_api::builtin::{ContainerSpec, DockerVolume, ServiceSpec};

    use super::*;

    #[test]
    fn names_that_would_change_the_path_of_a_request_are_rejected() {
        let with_service = |name: &str| {
            let container = ContainerSpec { name: name.to_owned(), ..ContainerSpec::default() };
            let service = ServiceSpec { container, ..ServiceSpec::default() };
            let build = ContainerSpec { name: "job-build".to_owned(), ..ContainerSpec::default() };
            DockerContainer { build, services: vec![service], ..DockerContainer::default() }
        };
        Objects::from_job(&with_service("job-web.2_a-0")).unwrap();
        for name in [r"job-x\..\victim?-0", "job-x/../victim", "..", "a?b", "a#b", "a%2e", "a b", "", "-a", "a\n"] {
            let failure = Objects::from_job(&with_service(name)).unwrap_err();
            assert!(matches!(failure, Failure::Configuration(_)), "{name:?}: {failure}");
        }
        let mut with_volume = with_service("job-web-0");
        with_volume.volumes =
            vec![DockerVolume { source: "a?b".to_owned(), temporary: true, ..DockerVolume::default() }];
        Objects::from_job(&with_volume).unwrap_err();
    }
}
