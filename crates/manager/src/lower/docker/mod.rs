//! Lowers a job to a step that runs all other steps of the job in a container (docs/spec/job-execution.md, section 5).
//!
//! ```text
//! payload, [runners.docker] --names, images, host_config, volumes, services, credentials--> DockerContainer
//! plan: [ docker/container beside [ docker/service, ... ], [ prepare_script, get_sources, ..., cleanup_file_variables ] ]
//! ```
//!
//! The agent on the engine's machine creates the containers. The agent in the build container runs the steps inside.

mod blocked;
mod credentials;
mod host_config;
mod images;
pub(super) mod names;
mod services;
#[cfg(test)]
mod tests;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use muster_agent_api::builtin::{
    ContainerSpec, DockerContainer, DockerEngine, DockerNetwork, DockerVolume, LogLine, PreparedPolicy,
    ServiceContainer,
};
use muster_agent_api::plan::{Call, Step};
use muster_config::settings::{DockerSettings, PreparedContainers, RunnerSettings};
use muster_executor::Directories;
use muster_job::is_loopback;
use muster_runner_api::payload::JobPayload;
use url::Url;

use super::steps::JobParts;
use super::{JobContext, LowerError, header, share, steps};
use host_config::{ContainerFacts, host_config};
use names::{Names, label};
use volumes::Volumes;

const BUILDS_DIR: &str = "/builds";
const CACHE_DIR: &str = "/cache";
const PREPARE_ATTEMPTS: u32 = 3;
/// Maximum size of one variable. The kernel permits little more.
const MAX_ENTRY_BYTES: usize = 100 * 1024;
/// Maximum size of all variables. The kernel permits little more.
const MAX_ENVIRONMENT_BYTES: usize = 1024 * 1024;

/// Files of the manager's machine that the containers of a job need.
#[derive(Debug, Clone, Default)]
pub struct DockerFiles {
    /// Docker's configuration file with credentials. `None` if no such file exists.
    pub auth_file: Option<AuthFile>,
    /// Seccomp profiles by path, or the reason why one cannot be read.
    pub seccomp: BTreeMap<String, Result<String, String>>,
    /// Answers of credential helpers. `None` if the agent calls them itself, or the job has no containers.
    pub helpers: Option<HelperAnswers>,
}

/// Question to a credential helper.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HelperQuestion {
    /// Name of the helper, without `docker-credential-`.
    pub helper: String,
    /// Registry whose credentials are needed.
    pub registry: String,
}

/// Credentials from a helper.
#[derive(Clone)]
pub struct HelperLogin {
    /// User name. Empty with an identity token.
    pub username: String,
    /// Password, or an identity token.
    pub password: String,
    /// Whether the password is an identity token.
    pub is_identity_token: bool,
}

impl std::fmt::Debug for HelperLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HelperLogin").field("username", &self.username).finish_non_exhaustive()
    }
}

/// Answers of credential helpers: `None` if a helper has no credentials, or the reason for a failure.
pub type HelperAnswers = BTreeMap<HelperQuestion, Result<Option<HelperLogin>, String>>;

/// A file with credentials.
#[derive(Clone)]
pub struct AuthFile {
    /// Path, for the log.
    pub path: String,
    /// Content, or the reason why it cannot be read.
    pub content: Result<String, String>,
}

/// Omits the content, which has passwords.
impl std::fmt::Debug for AuthFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthFile").field("path", &self.path).finish_non_exhaustive()
    }
}

pub(crate) fn seccomp_profiles(runner: &RunnerSettings) -> Vec<String> {
    let settings = runner.docker.iter().flat_map(|docker| [&docker.build, &docker.service]);
    let options = settings.flat_map(|container| &container.security_opt);
    options.filter_map(|option| host_config::seccomp_path(option)).map(str::to_owned).collect()
}

/// `None` means that the agent calls the helpers itself, or that the job has no containers.
pub(crate) fn helper_questions(payload: &JobPayload, context: &JobContext) -> Option<BTreeSet<HelperQuestion>> {
    let docker = context.runner.docker.as_deref().filter(|_| uses_engine_of_instance(&context.runner))?;
    let questions = super::with_variables(payload, context, |payload, context, _, variables, _| {
        let (build, _) = images::select_build_image(payload.image.as_ref(), docker, variables)?;
        let mut images = services::image_names(payload, docker, variables);
        images.push(build);
        credentials::questions(variables, &context.docker, &images)
    });
    // Lowering the payload reports the error.
    Some(questions.unwrap_or_default())
}

fn uses_engine_of_instance(runner: &RunnerSettings) -> bool {
    matches!(runner.executor.as_str(), "docker+machine" | "docker-autoscaler")
}

/// Returns whether the engine is on the agent's machine, as far as the configuration shows.
pub(super) fn has_local_engine(runner: &RunnerSettings) -> bool {
    let host = runner.docker.as_ref().map(|docker| docker.host.as_str()).unwrap_or_default();
    // With `docker+machine`, the agent uses the engine of its own machine.
    runner.executor == "docker+machine" || host.is_empty() || host.starts_with("unix://")
}

pub(super) fn container_context(context: &JobContext) -> JobContext {
    let runner = &context.runner;
    let directories = Directories { builds: BUILDS_DIR.into(), cache: CACHE_DIR.into(), shared: false };
    let directories = directories.with(runner.builds_dir.as_deref(), runner.cache_dir.as_deref());
    let builds = directories.builds.display().to_string();
    // A checkout on the engine's machine is visible in other jobs' containers, so each slot needs its own checkout.
    let shared = runner.docker.as_ref().is_some_and(|docker| volumes::is_shared(docker, &builds));
    JobContext { directories: Directories { shared, ..directories }, ..context.clone() }
}

/// Returns the context of a job that runs on the host for lack of an image. `None` means that `context` applies.
pub(super) fn host_context(payload: &JobPayload, context: &JobContext) -> Option<JobContext> {
    let runner = &context.runner;
    let applies = runner.uses_containers() && runner.docker.as_ref().is_some_and(|docker| docker.host_without_image);
    let has_image = payload.image.as_ref().is_some_and(|image| !image.name.trim().is_empty());
    (applies && !has_image).then(|| {
        let runner = RunnerSettings { executor: "shell".to_owned(), docker: None, ..RunnerSettings::clone(runner) };
        JobContext { runner: Arc::new(runner), ..context.clone() }
    })
}

/// Returns the directory for the agent on the engine's machine. The checkout is elsewhere.
pub(super) fn outer_dir(context: &JobContext) -> PathBuf {
    let token = muster_job::short_token(context.runner.token.expose());
    let slot = context.share.as_ref().map_or(context.slot.id, |share| share.slot);
    context.directories.builds.join(token).join(format!("containers-{slot}"))
}

pub(super) fn host_name(payload: &JobPayload, context: &JobContext) -> String {
    let configured = context.runner.docker.as_ref().map(|docker| docker.hostname.as_str());
    let uses_prepared = context.runner.docker.as_ref().is_some_and(|docker| docker.prepared_containers.is_some());
    match configured.filter(|name| !name.is_empty()) {
        Some(name) => name.to_owned(),
        // Prepared containers serve all projects, and their host name cannot be changed.
        None if uses_prepared => names::runner_host_name(context),
        None => Names::of(payload, context).project,
    }
}

/// Returns the name of the network that is created for the job. `None` means that no network is created.
pub(super) fn job_network_name(payload: &JobPayload, context: &JobContext, per_job: bool) -> Option<String> {
    let docker = context.runner.docker.as_ref().filter(|_| context.runner.uses_containers() && per_job)?;
    docker.network_mode.is_empty().then(|| names::network(payload, context))
}

/// Returns the step that runs the steps `inside` in the build container. Adds warnings for the log.
pub(super) fn step(
    parts: &JobParts<'_>,
    title: &str,
    inside: Vec<Step>,
    mirror: Option<DockerVolume>,
    warnings: &mut Vec<String>,
) -> Result<Step, LowerError> {
    let docker = parts.context.runner.docker.as_deref();
    let docker = docker.ok_or_else(|| LowerError::configuration("missing docker configuration"))?;
    if let Some(problem) = docker.problems.first() {
        return Err(LowerError::configuration(problem));
    }
    let (mut container, services) = containers(parts, docker, warnings)?;
    container.volumes.extend(mirror);
    let services = services.iter().map(|service| steps::services::step(&service.title, service));
    let mut step = Step::new("docker", title, Call::delegate(&container, services.collect(), inside));
    "prepare_executor".clone_into(&mut step.policy.section);
    step.policy.attempts = PREPARE_ATTEMPTS;
    Ok(step)
}

/// Returns the inputs of the steps that create the build container and the services.
fn containers(
    parts: &JobParts<'_>,
    docker: &DockerSettings,
    warnings: &mut Vec<String>,
) -> Result<(DockerContainer, Vec<ServiceContainer>), LowerError> {
    let JobParts { payload, context, paths, variables, settings, flags, .. } = *parts;
    let names = Names::of(payload, context);
    let image = payload.image.as_ref();
    let (name, is_default) = images::select_build_image(image, docker, variables)?;
    let mut volumes = Volumes::new(payload, docker, &names, variables);
    volumes.add_configured(paths, variables)?;
    volumes.add_builds(&paths.builds_dir, settings.strategy == "fetch");
    let cache_dir = context.directories.cache.display().to_string();
    let cache_dir = (!payload.cache.is_empty()).then_some(cache_dir);
    if let Some(directory) = &cache_dir {
        volumes.add_caches(directory);
    }
    let mut lines: Vec<LogLine> = header::before_containers(context, flags).into_iter().map(LogLine::Plain).collect();
    if is_default {
        lines.push(LogLine::Info("Using default image".to_owned()));
    }
    lines.push(LogLine::Plain(format!("Using Docker executor with image {name} ...")));
    if docker.volume_keep {
        lines.push(LogLine::Warning(
            "volume_keep is set: the volumes of this job are not removed, so they accumulate on the engine's machine"
                .to_owned(),
        ));
    }
    let mut build = build_spec(parts, docker, &names, name, warnings)?;
    if let Some(policy) = &context.runner.steps.policy {
        host_config::apply_limits(&mut build.host_config, &policy.limits);
    }
    let mut services = services::services(parts, docker, &names, warnings)?;
    let images: Vec<&str> = services
        .iter()
        .map(|service| &service.container)
        .chain([&build])
        .map(|spec| spec.image.name.as_str())
        .collect();
    let credentials = credentials::credentials(payload, variables, &context.docker, &images, warnings)?;
    let per_job = flags.is_on("FF_NETWORK_PER_BUILD");
    let mut container = DockerContainer {
        lines,
        engine: engine(&context.runner, docker),
        labels: names::labels(payload, context, variables, &docker.container_labels)?,
        build,
        services: services.iter().map(|service| service.container.name.clone()).collect(),
        network: match job_network_name(payload, context, per_job) {
            Some(name) => DockerNetwork::PerJob { name, ipv6: docker.enable_ipv6, mtu: docker.network_mtu },
            None if docker.network_mode.is_empty() => DockerNetwork::Bridge,
            None => DockerNetwork::Mode(docker.network_mode.clone()),
        },
        directories: volumes.directories(paths, cache_dir.as_deref()),
        owned: volumes.owned(paths, cache_dir.as_deref()),
        volumes: volumes.into_list(),
        credentials,
        project_dir: paths.project_dir.clone(),
        service_timeout_ms: u64::from(docker.wait_for_services_s) * 1000,
        keep_volumes: docker.volume_keep,
        log_services: settings.debug_services,
        relay: relay(&context.runner.url),
        blocked_addresses: docker.blocked_addresses.clone(),
        prepared: docker.prepared_containers.map(prepared_policy),
    };
    blocked::prepare(&mut container, &mut services, docker)?;
    Ok((container, services))
}

fn prepared_policy(settings: PreparedContainers) -> PreparedPolicy {
    PreparedPolicy {
        max_containers: settings.max_containers,
        min_uses: settings.min_uses,
        window_ms: u64::from(settings.window_s) * 1000,
        max_idle_ms: u64::from(settings.max_idle_s) * 1000,
    }
}

fn build_spec(
    parts: &JobParts<'_>,
    docker: &DockerSettings,
    names: &Names,
    image: String,
    warnings: &mut Vec<String>,
) -> Result<ContainerSpec, LowerError> {
    let JobParts { payload, context, variables, flags, .. } = *parts;
    let of_job = payload.image.as_ref().filter(|own| !own.name.trim().is_empty());
    let privileged = docker.build.privileged && images::may_be_privileged(&image, &docker.allowed_privileged_images);
    let facts = ContainerFacts {
        privileged,
        cgroup_parent: share::container_cgroup(context, None).unwrap_or_else(|| docker.build.cgroup_parent.clone()),
        devices: Vec::new(),
        init: flags.is_on("FF_USE_INIT_WITH_DOCKER_EXECUTOR"),
    };
    let variables_of_job = variables.resolved().map(|(variable, value)| (variable.key.clone(), value));
    Ok(ContainerSpec {
        name: format!("{}-build", names.job),
        labels: [(label("type"), "build".to_owned())].into(),
        image: images::image_spec(image, of_job, docker, variables)?,
        entrypoint: images::entrypoint(of_job.and_then(|own| own.entrypoint.as_deref()), docker, warnings),
        command: None,
        user: user(parts, docker)?,
        hostname: host_name(payload, context),
        env: environment(variables_of_job.collect()),
        mac_address: docker.mac_address.clone(),
        host_config: host_config(&docker.build, &facts, &context.docker)?,
    })
}

/// Returns the configured user, or else the job's.
fn user(parts: &JobParts<'_>, docker: &DockerSettings) -> Result<String, LowerError> {
    let of_job =
        || parts.payload.image.as_ref().and_then(|image| images::docker_option(image, "user", parts.variables));
    let user = match docker.user.as_str() {
        "" => of_job().unwrap_or_default(),
        user => user.to_owned(),
    };
    let allowed = &docker.allowed_users;
    if user.is_empty() || allowed.is_empty() || allowed.contains(&user) {
        return Ok(user);
    }
    let message = format!("user {user:?} is not an allowed user: [{}]", allowed.join(" "));
    Err(LowerError::of_reason(muster_job::FailureReason::RunnerSystemFailure, message))
}

/// The agent on an instance connects without TLS.
fn engine(runner: &RunnerSettings, docker: &DockerSettings) -> DockerEngine {
    match runner.executor.as_str() {
        // As in gitlab-runner, the engine of the instance replaces the configured one.
        "docker+machine" => DockerEngine::default(),
        "docker-autoscaler" => DockerEngine { host: docker.host.clone(), ..DockerEngine::default() },
        _ => DockerEngine {
            host: docker.host.clone(),
            cert_path: docker.tls_cert_path.clone(),
            tls_verify: docker.tls_verify,
        },
    }
}

/// Returns `host:port` of a coordinator at a loopback address, which containers reach through a relay.
fn relay(coordinator: &Url) -> String {
    let address = coordinator.host_str().zip(coordinator.port_or_known_default());
    let address = address.filter(|(host, _)| is_loopback(host));
    address.map(|(host, port)| format!("{host}:{port}")).unwrap_or_default()
}

/// Omits variables that the kernel or the engine would reject.
fn environment(variables: Vec<(String, String)>) -> Vec<String> {
    let mut total = 0;
    let mut fits = |key: &str, value: &str| {
        let size = key.len() + value.len() + 2;
        let is_valid = !key.is_empty() && !key.contains(['=', '\0']) && !value.contains('\0');
        let fits = is_valid && size <= MAX_ENTRY_BYTES && total + size <= MAX_ENVIRONMENT_BYTES;
        total += if fits { size } else { 0 };
        fits
    };
    let fitting = variables.into_iter().filter(|(key, value)| fits(key, value));
    fitting.map(|(key, value)| format!("{key}={value}")).collect()
}
