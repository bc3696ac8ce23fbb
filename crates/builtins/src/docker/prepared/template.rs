//! What a container is, apart from the job that uses it. From this, a container can be created before its job exists.

use std::sync::Arc;

use bollard::Docker;
use muster_agent_api::builtin::{ContainerSpec, DockerContainer, DockerEngine, DockerVolume, ImageSpec};
use muster_agent_api::container::RUN_DIR;
use muster_steps::failure::Failure;
use muster_steps::log::{Log, Stream};
use muster_steps::stop::StopToken;
use sha2::{Digest, Sha256};

use super::super::agent_volume::{self, AgentVolume};
use super::super::cleanup::Objects;
use super::super::engine::{self, failed, inspect_container};
use super::super::images::ResolvedImage;
use super::super::socket::RunDirectory;
use super::super::target::Container;
use super::super::{build, create, directories};

/// Prefix of the labels that name the runner and the job.
const RUNNER_LABELS: &str = "com.gitlab.gitlab-runner.";
/// Labels with this prefix that are the same for all jobs of a runner.
const COMMON_LABELS: [&str; 4] = ["managed", "runner.id", "runner.system_id", "type"];
/// Label with the time until which a container waits, in seconds since the Unix epoch.
pub(super) const EXPIRES: &str = "muster.prepared.expires";

/// Description of the containers of one kind. Two jobs with equal keys would create equal containers.
#[derive(Debug, Clone)]
pub(super) struct Template {
    /// Inputs of a job, without everything that is specific to the job.
    job: DockerContainer,
    image: ResolvedImage,
    key: String,
}

impl Template {
    /// Returns the template of a job's container. `None` means that the image has an entrypoint, which may use the variables of the job.
    ///
    /// # Errors
    /// [`Failure::Configuration`] if the inputs cannot be written as text.
    pub(super) fn new(
        job: &DockerContainer,
        image: &ResolvedImage,
        agent: &AgentVolume,
    ) -> Result<Option<Self>, Failure> {
        if directories::has_entrypoint(job, image) {
            return Ok(None);
        }
        let is_common =
            |name: &String| name.strip_prefix(RUNNER_LABELS).is_none_or(|name| COMMON_LABELS.contains(&name));
        let labels = |labels: &std::collections::BTreeMap<String, String>| {
            labels
                .iter()
                .filter(|(name, _)| is_common(name))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        };
        let writable = directories::writable(job).into_iter().map(|(path, _)| path).filter(|path| path != RUN_DIR);
        let run_dir = DockerVolume { destination: RUN_DIR.to_owned(), ..DockerVolume::default() };
        let common = DockerContainer {
            engine: job.engine.clone(),
            labels: labels(&job.labels),
            build: ContainerSpec {
                name: String::new(),
                labels: labels(&job.build.labels),
                image: ImageSpec { platform: job.build.image.platform.clone(), ..ImageSpec::default() },
                env: Vec::new(),
                ..job.build.clone()
            },
            network: job.network.clone(),
            volumes: job.volumes.iter().map(for_any_job).chain([run_dir]).collect(),
            directories: writable.collect(),
            blocked_addresses: job.blocked_addresses.clone(),
            ..DockerContainer::default()
        };
        let invalid = |error| Failure::Configuration(format!("failed to describe the container: {error}"));
        let text = serde_json::to_string(&(&common, &image.id, &agent.name)).map_err(invalid)?;
        let key = format!("{:x}", Sha256::digest(text));
        Ok(Some(Self { job: common, image: image.clone(), key }))
    }

    /// Returns the key of all containers that this template describes.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Returns the engine of the containers.
    pub(super) fn engine(&self) -> &DockerEngine {
        &self.job.engine
    }

    /// Returns the runner whose jobs use the containers, and the engine. The maximum number of waiting containers applies to them together.
    pub(super) fn owner(&self) -> (&DockerEngine, Option<&String>) {
        (&self.job.engine, self.job.labels.get(&format!("{RUNNER_LABELS}runner.id")))
    }

    /// Creates and starts a container, and waits until its agent answers. After a failure, the caller removes the container.
    ///
    /// # Errors
    /// [`Failure`] as if a job created the container.
    pub(super) async fn create(&self, name: &str, expires: i64, stop: &StopToken) -> Result<Container, Failure> {
        let mut job = self.job.clone();
        name.clone_into(&mut job.build.name);
        job.build.labels.insert(EXPIRES.to_owned(), expires.to_string());
        let objects = Objects::from_job(&job)?;
        let engine = engine::connect(&job.engine).await?;
        let agent = agent_volume::create(&engine, engine::location(&job.engine)).await?;
        for volume in job.volumes.iter().filter(|volume| create::is_named(volume)) {
            create::volume(&engine, &job, volume).await?;
        }
        let directories = directories::directories_for_agent(&job, &self.image);
        let body = build::body(&job, &self.image, &agent, &[], None, directories.as_deref())?;
        let id = create::container(&engine, &job.build, body).await?;
        agent.fill(&engine, &id, &self.image.id).await?;
        if directories.is_none() {
            directories::create(&engine, &job, &id, &self.image.id).await?;
        }
        let run_dir = if engine::is_local(&job.engine)? { run_directory(&engine, &id).await? } else { None };
        build::start(&engine, &job, &objects, (id, run_dir), Arc::new(NoLog), stop).await
    }
}

/// Returns the volume as every job with this template has it. The engine removes an anonymous volume with its container.
fn for_any_job(volume: &DockerVolume) -> DockerVolume {
    if volume.temporary && create::is_named(volume) {
        return DockerVolume { destination: volume.destination.clone(), ..DockerVolume::default() };
    }
    volume.clone()
}

/// Returns the directory of the agent's files on the engine's machine.
async fn run_directory(engine: &Docker, id: &str) -> Result<Option<RunDirectory>, Failure> {
    let found = inspect_container(engine, id).await.map_err(failed("failed to inspect a prepared container"))?;
    let mounts = found.mounts.unwrap_or_default();
    let run = mounts.into_iter().find(|mount| mount.destination.as_deref() == Some(RUN_DIR));
    Ok(run.and_then(|mount| mount.source).map(|source| RunDirectory(source.into())))
}

/// Log of a container that has no job yet. Its image has no entrypoint that could print anything.
struct NoLog;

impl Log for NoLog {
    fn write(&self, _: Stream, _: &[u8]) {}
}

#[cfg(test)]
mod tests {
    use bollard::models::{ImageConfig, ImageInspect};

    use super::*;

    fn image(id: &str, entrypoint: &[&str]) -> ResolvedImage {
        let entrypoint = Some(entrypoint.iter().map(ToString::to_string).collect());
        let config = ImageConfig { entrypoint, ..ImageConfig::default() };
        ResolvedImage { id: id.to_owned(), inspect: ImageInspect { config: Some(config), ..ImageInspect::default() } }
    }

    /// Returns the inputs of a job with this number. `project` owns the checkout volume.
    fn job(number: u32, project: &str) -> DockerContainer {
        let volume = |source: String, destination: &str, temporary| DockerVolume {
            source,
            destination: destination.to_owned(),
            temporary,
            ..DockerVolume::default()
        };
        let label = |name: &str, value: String| (format!("{RUNNER_LABELS}{name}"), value);
        DockerContainer {
            labels: [label("job.id", number.to_string()), label("runner.id", "abc".to_owned())].into(),
            build: ContainerSpec {
                name: format!("job-{number}-build"),
                env: vec![format!("CI_JOB_ID={number}")],
                image: ImageSpec { name: format!("image:{number}"), ..ImageSpec::default() },
                ..ContainerSpec::default()
            },
            volumes: vec![
                volume(format!("{project}-cache"), "/builds", false),
                volume(format!("job-{number}-cache"), "/cache", true),
            ],
            directories: ["/builds", "/builds/group", "/cache"].map(str::to_owned).to_vec(),
            project_dir: format!("/builds/{project}"),
            ..DockerContainer::default()
        }
    }

    fn key(job: &DockerContainer, id: &str) -> String {
        let agent = AgentVolume::named("muster-agent-1");
        Template::new(job, &image(id, &[]), &agent).unwrap().unwrap().key().to_owned()
    }

    #[test]
    fn jobs_that_would_create_equal_containers_have_equal_keys() {
        assert_eq!(key(&job(1, "a"), "sha256:1"), key(&job(2, "a"), "sha256:1"));
    }

    #[test]
    fn everything_that_decides_what_a_container_is_changes_the_key() {
        let original = key(&job(1, "a"), "sha256:1");
        assert_ne!(original, key(&job(1, "b"), "sha256:1"), "checkout of another project");
        assert_ne!(original, key(&job(1, "a"), "sha256:2"), "newer image");
        let changes: [fn(&mut DockerContainer); 7] = [
            |job| job.build.user = "1000".to_owned(),
            |job| job.build.hostname = "other".to_owned(),
            |job| drop(job.build.host_config.insert("Privileged".to_owned(), true.into())),
            |job| drop(job.labels.insert(format!("{RUNNER_LABELS}runner.id"), "def".to_owned())),
            |job| drop(job.labels.insert("team".to_owned(), "blue".to_owned())),
            |job| job.engine.host = "tcp://other".to_owned(),
            |job| job.blocked_addresses = vec!["169.254.169.254".parse().unwrap()],
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut changed = job(1, "a");
            change(&mut changed);
            assert_ne!(original, key(&changed, "sha256:1"), "change {index}");
        }
    }

    #[test]
    fn image_with_an_entrypoint_has_no_template() {
        let agent = AgentVolume::named("muster-agent-1");
        assert!(Template::new(&job(1, "a"), &image("sha256:1", &["/entry"]), &agent).unwrap().is_none());
    }
}
