//! Description of a container that can be created before its job exists.

use std::sync::Arc;
use std::time::Duration;

use bollard::models::MountPoint;
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

/// Prefix of labels that name the runner and the job.
const RUNNER_LABELS: &str = "com.gitlab.gitlab-runner.";
/// Labels, without the prefix, that all jobs of a runner share.
const COMMON_LABELS: [&str; 4] = ["managed", "runner.id", "runner.system_id", "type"];
/// Label with the maximum number of seconds for which a container waits.
pub(super) const MAX_IDLE: &str = "muster.prepared.max_idle_seconds";
/// Variables that the agent reads at its start, in lower case. They are part of the template.
const AGENT_VARIABLES: [&str; 6] =
    ["all_proxy", "http_proxy", "https_proxy", "no_proxy", "ssl_cert_dir", "ssl_cert_file"];
/// Prefix of variables that NVIDIA's runtime reads at the start of a container. This can be the engine's default
/// runtime.
const GPU_VARIABLES: &str = "NVIDIA_";
/// First word of a health check that is disabled.
const NO_HEALTH_CHECK: &str = "NONE";

/// Description of containers of one kind. Jobs with equal keys would create equal containers.
#[derive(Debug, Clone)]
pub(super) struct Template {
    /// Inputs without values of a specific job.
    job: DockerContainer,
    image: ResolvedImage,
    /// Image as in the first job, for messages.
    image_name: String,
    key: String,
}

impl Template {
    /// Returns the template of a job's container. `None` means that the container must not start before its job.
    ///
    /// Reasons are an entrypoint, which may use the job's variables, a health check, which runs code of the image, and
    /// GPUs that variables select.
    pub(super) fn new(
        job: &DockerContainer,
        image: &ResolvedImage,
        agent: &AgentVolume,
    ) -> Result<Option<Self>, Failure> {
        let selects_gpus = job.build.env.iter().any(|variable| variable.starts_with(GPU_VARIABLES));
        if directories::has_entrypoint(job, image) || has_health_check(image) || selects_gpus {
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
                env: job.build.env.iter().filter(|variable| is_read_by_agent(variable)).cloned().collect(),
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
        let image_name = job.build.image.name.clone();
        Ok(Some(Self { job: common, image: image.clone(), image_name, key }))
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn engine(&self) -> &DockerEngine {
        &self.job.engine
    }

    pub(super) fn image_name(&self) -> &str {
        &self.image_name
    }

    pub(super) fn owner(&self) -> Owner {
        Owner::of(&self.job)
    }

    /// Creates and starts a container, and waits for its agent. The caller cleans up after a failure.
    pub(super) async fn create(&self, name: &str, max_idle: Duration, stop: &StopToken) -> Result<Container, Failure> {
        let mut job = self.job.clone();
        name.clone_into(&mut job.build.name);
        job.build.image.name.clone_from(&self.image_name);
        job.build.labels.insert(MAX_IDLE.to_owned(), max_idle.as_secs().to_string());
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
        let found = inspect_container(&engine, &id).await.map_err(failed("failed to inspect a prepared container"))?;
        let mounts = found.mounts.unwrap_or_default();
        let run_dir = mounts.iter().find(|mount| mount.destination.as_deref() == Some(RUN_DIR));
        let run_dir = run_dir.and_then(|mount| mount.source.clone()).map(|source| RunDirectory(source.into()));
        let run_dir = run_dir.filter(|_| engine::is_local(&job.engine).is_ok_and(|is_local| is_local));
        let is_anonymous = |mount: &&MountPoint| {
            let is_same = |volume: &&DockerVolume| Some(volume.destination.as_str()) == mount.destination.as_deref();
            job.volumes.iter().find(is_same).is_some_and(|volume| volume.source.is_empty())
        };
        let anonymous: Vec<_> = mounts.iter().filter(is_anonymous).filter_map(|mount| mount.name.clone()).collect();
        let objects = objects.with_volumes(anonymous);
        build::start(&engine, &job, &objects, (id, run_dir), Arc::new(NoLog), stop).await
    }
}

/// Returns the volume for any job with this template. A temporary volume becomes anonymous.
fn for_any_job(volume: &DockerVolume) -> DockerVolume {
    if volume.temporary && create::is_named(volume) {
        return DockerVolume { destination: volume.destination.clone(), ..DockerVolume::default() };
    }
    volume.clone()
}

/// Returns whether the agent reads a variable of the form `NAME=value` at its start.
fn is_read_by_agent(variable: &str) -> bool {
    let name = variable.split_once('=').map_or(variable, |(name, _)| name);
    AGENT_VARIABLES.contains(&name.to_ascii_lowercase().as_str())
}

/// Returns whether the engine regularly runs a command of the image.
fn has_health_check(image: &ResolvedImage) -> bool {
    let check = image.inspect.config.as_ref().and_then(|config| config.healthcheck.as_ref());
    let command = check.and_then(|check| check.test.as_ref());
    command.is_some_and(|command| command.first().is_some_and(|kind| kind != NO_HEALTH_CHECK))
}

/// Runner and engine, for which the maximum number of waiting containers applies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    engine: String,
    runner: Option<String>,
}

impl Owner {
    pub(super) fn of(job: &DockerContainer) -> Self {
        let runner = job.labels.get(&format!("{RUNNER_LABELS}runner.id")).cloned();
        Self { engine: engine::location(&job.engine), runner }
    }
}

/// Log of a container without a job. Its image has no entrypoint that prints.
struct NoLog;

impl Log for NoLog {
    fn write(&self, _: Stream, _: &[u8]) {}
}

#[cfg(test)]
mod tests {
    use bollard::models::{HealthConfig, ImageConfig, ImageInspect};

    use super::*;

    fn image(id: &str, entrypoint: &[&str]) -> ResolvedImage {
        let entrypoint = Some(entrypoint.iter().map(ToString::to_string).collect());
        let config = ImageConfig { entrypoint, ..ImageConfig::default() };
        ResolvedImage { id: id.to_owned(), inspect: ImageInspect { config: Some(config), ..ImageInspect::default() } }
    }

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
    fn each_property_of_a_container_changes_the_key() {
        let original = key(&job(1, "a"), "sha256:1");
        assert_ne!(original, key(&job(1, "b"), "sha256:1"), "checkout of another project");
        assert_ne!(original, key(&job(1, "a"), "sha256:2"), "newer image");
        let changes: [fn(&mut DockerContainer); 8] = [
            |job| job.build.user = "1000".to_owned(),
            |job| job.build.env.push("HTTPS_PROXY=http://proxy:3128".to_owned()),
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
    fn container_that_must_not_start_before_its_job_has_no_template() {
        let agent = AgentVolume::named("muster-agent-1");
        let has_template =
            |job: &DockerContainer, image: &ResolvedImage| Template::new(job, image, &agent).unwrap().is_some();
        assert!(!has_template(&job(1, "a"), &image("sha256:1", &["/entry"])));
        for (check, expected) in [("CMD", false), ("NONE", true)] {
            let mut checked = image("sha256:1", &[]);
            let test = Some(vec![check.to_owned()]);
            let healthcheck = Some(HealthConfig { test, ..HealthConfig::default() });
            checked.inspect.config.as_mut().unwrap().healthcheck = healthcheck;
            assert_eq!(has_template(&job(1, "a"), &checked), expected, "{check}");
        }
        let mut with_gpus = job(1, "a");
        with_gpus.build.env.push("NVIDIA_VISIBLE_DEVICES=all".to_owned());
        assert!(!has_template(&with_gpus, &image("sha256:1", &[])));
    }

    #[test]
    fn agent_has_the_proxy_of_the_job() {
        let mut proxied = job(1, "a");
        proxied.build.env.push("https_proxy=http://proxy:3128".to_owned());
        let agent = AgentVolume::named("muster-agent-1");
        let template = Template::new(&proxied, &image("sha256:1", &[]), &agent).unwrap().unwrap();
        assert_eq!(template.job.build.env, ["https_proxy=http://proxy:3128"]);
    }
}
