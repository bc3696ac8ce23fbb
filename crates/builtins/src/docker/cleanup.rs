//! Removes the containers, volumes and networks of a job.

use std::fmt;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as ApiError;
use bollard::query_parameters::{RemoveContainerOptions, RemoveVolumeOptions};
use futures::future::join_all;
use muster_agent_api::builtin::{DockerContainer, DockerNetwork};
use muster_steps::failure::Failure;
use tokio::time::{Instant, sleep, timeout};

use super::engine::{is_answer, is_conflict, is_not_found, location, reason};
use super::{block, create, directories, network};

/// Maximum time for the cleanup, as in gitlab-runner (docs/spec/job-execution.md, section 5.12).
const TIMEOUT: Duration = Duration::from_secs(300);
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// Number of rejected attempts after which the cleanup fails. An attempt is rejected if the engine answers with an
/// error other than a conflict.
const MAX_REJECTIONS: u32 = 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Objects {
    containers: Vec<String>,
    volumes: Vec<String>,
    network: Option<String>,
    keep_volumes: bool,
    /// URL of the engine, for messages.
    engine_location: String,
}

impl Objects {
    /// Returns the objects that the step with these inputs may have created.
    ///
    /// # Errors
    /// [`Failure::Configuration`] if a name is invalid, because it could change the path of a request.
    pub(super) fn from_job(job: &DockerContainer) -> Result<Self, Failure> {
        let temporary = job.volumes.iter().filter(|volume| volume.temporary && create::is_named(volume));
        let objects = Self {
            containers: [job.build.name.clone(), directories::setup_name(job)]
                .into_iter()
                .chain(job.services.iter().cloned())
                .chain(block::helper_names(job))
                .collect(),
            volumes: temporary.map(|volume| volume.source.clone()).chain([create::run_volume_name(job)]).collect(),
            network: match &job.network {
                DockerNetwork::PerJob { name, .. } => Some(name.clone()),
                DockerNetwork::Bridge | DockerNetwork::Mode(_) => None,
            },
            keep_volumes: job.keep_volumes,
            engine_location: location(&job.engine),
        };
        let names = objects.containers.iter().chain(&objects.volumes).chain(&objects.network);
        match names.into_iter().find(|name| !is_valid_name(name)) {
            Some(name) => Err(Failure::Configuration(format!(
                "{name:?} is not a valid name of a container, volume or network; use letters, digits, `_`, `.` and `-`"
            ))),
            None => Ok(objects),
        }
    }

    /// Adds the objects of a prepared container, which has other names than the inputs of the step.
    pub(super) fn with_objects_of(mut self, prepared: &Self) -> Self {
        self.containers.extend_from_slice(&prepared.containers);
        self.with_volumes(prepared.volumes.iter().cloned())
    }

    /// Adds volumes that the inputs of the step do not name.
    pub(super) fn with_volumes(mut self, names: impl IntoIterator<Item = String>) -> Self {
        self.volumes.extend(names);
        self
    }

    pub(super) fn volumes(&self) -> &[String] {
        &self.volumes
    }

    /// Removes the objects that exist. Retries failed removals until the time limit, or until [`MAX_REJECTIONS`]
    /// attempts were rejected.
    ///
    /// # Errors
    /// [`Failure`] with the remaining objects.
    pub(super) async fn remove(&self, engine: &Docker) -> Result<(), Failure> {
        self.remove_within(engine, TIMEOUT).await
    }

    async fn remove_within(&self, engine: &Docker, limit: Duration) -> Result<(), Failure> {
        let start = Instant::now();
        let mut rejected = 0;
        let mut left = self.all();
        loop {
            // Even after a timeout, `left` has the results of the removals that ended.
            let _ = timeout(limit.saturating_sub(start.elapsed()), self.try_remove(engine, &mut left)).await;
            left.retain(|object| !object.is_removed);
            if left.is_empty() {
                return Ok(());
            }
            let is_rejected = |error: &ApiError| is_answer(error) && !is_conflict(error);
            rejected += u32::from(left.iter().any(|object| object.error.as_ref().is_some_and(is_rejected)));
            if rejected >= MAX_REJECTIONS || start.elapsed() >= limit {
                let left: Vec<_> = left.iter().map(ToString::to_string).collect();
                return Err(Failure::System(format!(
                    "failed to remove objects of the job from the Docker engine at {}; remove them by hand: {}",
                    self.engine_location,
                    left.join(", ")
                )));
            }
            sleep(RETRY_DELAY).await;
        }
    }

    /// Removes the objects. Errors are only logged.
    pub(super) async fn remove_or_log(&self, engine: &Docker) {
        if let Err(error) = self.remove(engine).await {
            tracing::error!(%error, "failed to clean up after a job in containers");
        }
    }

    fn all(&self) -> Vec<Remaining> {
        let named = |kind| move |name: &String| Remaining { kind, name: name.clone(), is_removed: false, error: None };
        let containers = self.containers.iter().map(named(Kind::Container));
        let others = self.volumes.iter().map(named(Kind::Volume)).chain(self.network.iter().map(named(Kind::Network)));
        containers.chain(others).collect()
    }

    /// Tries to remove each object, containers first, because volumes and networks cannot be removed while containers
    /// use them.
    async fn try_remove(&self, engine: &Docker, left: &mut [Remaining]) {
        for kind in [Kind::Container, Kind::Volume, Kind::Network] {
            let of_kind = left.iter_mut().filter(|object| object.kind == kind);
            join_all(of_kind.map(|object| self.try_remove_one(engine, object))).await;
        }
    }

    async fn try_remove_one(&self, engine: &Docker, object: &mut Remaining) {
        let removed = match object.kind {
            Kind::Container => {
                let options =
                    RemoveContainerOptions { force: true, v: !self.keep_volumes, ..RemoveContainerOptions::default() };
                engine.remove_container(&object.name, Some(options)).await
            }
            Kind::Volume => engine.remove_volume(&object.name, None::<RemoveVolumeOptions>).await,
            Kind::Network => network::remove(engine, &object.name).await,
        };
        object.error = removed.err().filter(|error| !is_not_found(error));
        object.is_removed = object.error.is_none();
    }
}

/// Returns whether engines accept the name.
fn is_valid_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

struct Remaining {
    kind: Kind,
    name: String,
    is_removed: bool,
    /// Error of the last attempt that ended.
    error: Option<ApiError>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Container,
    Volume,
    Network,
}

impl fmt::Display for Remaining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Container => "container",
            Kind::Volume => "volume",
            Kind::Network => "network",
        };
        let reason = self.error.as_ref().map_or_else(|| "the engine did not answer".to_owned(), reason);
        write!(f, "{kind} {} ({reason})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use muster_agent_api::builtin::{ContainerSpec, DockerEngine, DockerVolume};

    use super::*;
    use crate::docker::engine::fake::{Answer, FakeEngine};

    fn container_named(name: &str) -> ContainerSpec {
        ContainerSpec { name: name.to_owned(), ..ContainerSpec::default() }
    }

    #[tokio::test]
    async fn error_names_only_remaining_objects_if_the_engine_stops_answering() {
        let settings = DockerEngine { host: "tcp://builds:2375".to_owned(), ..DockerEngine::default() };
        let job = DockerContainer {
            engine: settings,
            build: container_named("job"),
            services: vec!["job-web".to_owned()],
            ..DockerContainer::default()
        };
        let engine = FakeEngine::start(|call| match call {
            "DELETE /containers/job-web" => None,
            _ => Some(Answer::json(204, "")),
        });
        let removed = Objects::from_job(&job).unwrap().remove_within(&engine.client, Duration::from_millis(100)).await;
        let failure = removed.unwrap_err().to_string();
        let named = "at tcp://builds:2375; remove them by hand: container job-web (the engine did not answer), volume job-agent (the engine did not answer)";
        assert!(failure.ends_with(named), "{failure}");
    }

    #[tokio::test]
    async fn objects_that_were_removed_are_not_tried_again() {
        let job = DockerContainer { build: container_named("job"), ..DockerContainer::default() };
        let engine = FakeEngine::start(|call| match call {
            "DELETE /volumes/job-agent" => Some(Answer::json(500, r#"{"message":"a disk is broken"}"#)),
            _ => Some(Answer::json(204, "")),
        });
        let removed = Objects::from_job(&job).unwrap().remove(&engine.client).await;
        let failure = removed.unwrap_err().to_string();
        assert!(failure.ends_with("by hand: volume job-agent (a disk is broken)"), "{failure}");
        assert_eq!(engine.count("DELETE /containers/job-setup"), 1);
    }

    #[test]
    fn names_that_would_change_the_path_of_a_request_are_rejected() {
        let with_service = |name: &str| {
            let (build, services) = (container_named("job-build"), vec![name.to_owned()]);
            DockerContainer { build, services, ..DockerContainer::default() }
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
