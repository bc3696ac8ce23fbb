//! `run`: runs the manager of one `config.toml` until a signal stops it.
//!
//! ```text
//! config.toml --ConfigWatch--> Settings --Reload--+
//!                                                 +--> Manager (state.log, requests, jobs) --> agent on this host
//! signals ---------------------------Drain, Abort-+
//! ```
//!
//! `ConfigWatch` reads the file when it has changed or after SIGHUP. Reload, Drain and Abort are `ControlCommand`s.
//!
//! The agent is a separate process. No matter how this process ends, jobs that were not canceled continue, and the next
//! `run` with the same configuration resumes them.

mod cache_gc;
mod fleet_endpoints;
mod problems;
mod run_loop;
mod signals;
pub(super) mod single;
mod state_dir;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use muster_config::edit::{self, EditError};
use muster_config::settings::Settings;
use muster_config::{NoPlugin, SettingsContext, Severity};
use muster_executor::Directories;
use muster_executor::deploy::Executable;
use muster_executor::host::{self, HostExecutor, HostOptions};
use muster_executor::instance::{self, InstanceExecutors, InstancesOptions};
use muster_executor::registry::Registry;
use muster_executor::ssh::{self, SshExecutors};
use muster_fleeting::host::PluginSpec;
use muster_fleeting::install;
use muster_manager::reload::ConfigWatch;
use muster_manager::store::{Store, StoreError};
use muster_manager::{Control, Manager, ManagerError, RunLimits};

use crate::config_file::ConfigArg;
use crate::observe::TelemetryRuntime;
use crate::open_files;
use crate::{flags, paths};
use cache_gc::CacheGc;
pub(crate) use fleet_endpoints::{EXPLAIN_PATH, FleetEndpoints, STATUS_PATH};
use run_loop::{RunLoop, Source};
use signals::Signals;

/// Directory with the ledgers of instances, in the state directory.
pub(crate) const INSTANCES: &str = "instances";

/// Returns the default state directory for a configuration, or `None` if it cannot be determined.
pub(crate) fn state_dir(config: &Path) -> Option<PathBuf> {
    state_dir::for_config(config)
}

/// Arguments of `gitlab-runner run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// Address of the server for metrics and debugging, as host:port.
    #[arg(long, env = "LISTEN_ADDRESS", value_name = "ADDRESS")]
    listen_address: Option<String>,
    /// Name of the service, as set by the service's unit.
    #[arg(short = 'n', long, default_value = "gitlab-runner", value_name = "NAME")]
    service: String,
    /// Working directory. Relative paths start here, and so do the default directories of builds and caches.
    #[arg(short = 'd', long, value_name = "DIR")]
    working_directory: Option<PathBuf>,
    /// Run the commands of jobs as this user.
    #[arg(short = 'u', long, value_name = "NAME")]
    user: Option<String>,
    /// Also log to the system log.
    #[arg(long, env = "LOG_SYSLOG", value_parser = flags::go_bool, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", default_value = "false", hide_default_value = true, value_name = "BOOL")]
    pub(super) syslog: bool,
    /// State directory of the manager, with its running jobs and the agent's spool. By default, each configuration has its own, in
    /// /var/lib/muster for root, or else in the user's state directory.
    #[arg(long, env = "MUSTER_STATE_DIR", value_name = "DIR", value_parser = flags::path())]
    state_dir: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("failed to change to the directory {}", path.display())]
    WorkingDirectory { path: PathBuf, source: std::io::Error },
    #[error("failed to resolve the path {}", path.display())]
    Path { path: PathBuf, source: std::io::Error },
    #[error("C030: another manager is already running with this configuration; stop it, or use a different file")]
    InUse(#[source] EditError),
    #[error(transparent)]
    Lock(EditError),
    #[error("invalid configuration {}; fix the errors above, or run `gitlab-runner verify-config` for the full list", path.display())]
    Configuration { path: PathBuf },
    #[error(transparent)]
    State(#[from] StoreError),
    #[error(transparent)]
    Environment(#[from] muster_executor::ExecutorError),
    #[error(transparent)]
    Manager(#[from] ManagerError),
    #[error(transparent)]
    Listen(#[from] crate::observe::ObserveError),
    #[error("the manager failed")]
    ManagerTask(#[source] tokio::task::JoinError),
    #[error("failed to install a signal handler")]
    Signals(#[source] std::io::Error),
    #[error("no state directory: neither HOME nor XDG_STATE_HOME is set; set --state-dir")]
    NoStateDir,
}

pub(super) fn run(args: RunArgs) -> ExitCode {
    // The limit is raised before any file is opened.
    let open_files = open_files::raise();
    crate::runtime::block_on_one_thread(async { exit_code(start(args, open_files).await) })
}

fn exit_code(result: Result<ExitCode, RunError>) -> ExitCode {
    result.unwrap_or_else(|error| {
        tracing::error!("{}", muster_job::error_chain(&error));
        ExitCode::FAILURE
    })
}

/// `open_files` is the limit of open files with which this process was started.
async fn start(args: RunArgs, open_files: Option<u64>) -> Result<ExitCode, RunError> {
    // The default action of these signals would kill the process.
    let signals = Signals::watch().map_err(RunError::Signals)?;
    if let Some(path) = &args.working_directory {
        std::env::set_current_dir(path).map_err(|source| RunError::WorkingDirectory { path: path.clone(), source })?;
    }
    let config = absolute(&args.config.path())?;
    let _lock = edit::lock_for_manager(&config).map_err(|error| match error {
        EditError::Locked { .. } => RunError::InUse(error),
        error => RunError::Lock(error),
    })?;
    let context = SettingsContext {
        system_id: args.config.system_id(),
        user: args.user.clone(),
        certificates: Some(paths::certificates()),
        default_shell: None,
        find_plugin: Some(check_plugin),
    };
    let (watch, loaded) = ConfigWatch::start(config.clone(), context);
    let source = Source { watch, config, listen_address: args.listen_address };
    // Also sets the format of all later log messages.
    let settings = source.settings();
    problems::log(&loaded.problems, &source.config);
    if loaded.config.is_none() || loaded.has(Severity::Fatal) {
        return Err(RunError::Configuration { path: source.config });
    }
    let state_dir = match flags::non_empty(&args.state_dir) {
        Some(path) => absolute(&path)?,
        None => state_dir::for_config(&source.config).ok_or(RunError::NoStateDir)?,
    };
    let store = Store::open(&state_dir).await?;
    tracing::info!(
        config = %source.config.display(),
        state = %state_dir.display(),
        service = args.service,
        runners = settings.runners.len(),
        concurrent = settings.concurrent,
        "Starting multi-runner from {}...", source.config.display()
    );
    let user = args.user.filter(|user| !user.is_empty());
    let host = HostSettings { state_dir, user, exit_with_pid: None, open_files };
    manage(ManagerParts { settings, source: Some(source), store, host, run_limits: RunLimits::default() }, signals)
        .await
}

struct ManagerParts {
    settings: Settings,
    source: Option<Source>,
    store: Store,
    host: HostSettings,
    run_limits: RunLimits,
}

struct HostSettings {
    state_dir: PathBuf,
    /// `None` means the user of this process.
    user: Option<String>,
    /// ID of a process whose exit ends the agent too. `None` means that the agent does not depend on another process.
    exit_with_pid: Option<i32>,
    /// Limit of open files with which this process was started. `None` means no limit.
    open_files: Option<u64>,
}

async fn manage(parts: ManagerParts, signals: Signals) -> Result<ExitCode, RunError> {
    open_files::warn_if_low(parts.settings.concurrent);
    let runtime = TelemetryRuntime::start(parts.settings.listen_address.as_deref()).await?;
    let telemetry = Arc::clone(&runtime.telemetry);
    telemetry.metrics.configuration_loaded(true);
    let ledgers = parts.host.state_dir.join(INSTANCES);
    let agent = Executable::for_instances()
        .map_err(|source| RunError::Path { path: PathBuf::from("/proc/self/exe"), source })?;
    let agent = Arc::new(agent);
    let instances = instances(&parts.host.state_dir, Arc::clone(&agent));
    let _endpoints = FleetEndpoints::new(&telemetry, &instances);
    let executors = executors(host_executors(&parts.host, &parts.settings.token_env_names)?, instances, agent);
    let manager = Manager::new(parts.settings.clone(), parts.store, executors, Arc::clone(&telemetry));
    let (control, commands) = Control::new();
    let manager = tokio::spawn(manager.with_run_limits(parts.run_limits).run(commands));
    let program = std::env::current_exe();
    let program = program.map_err(|source| RunError::Path { path: PathBuf::from("/proc/self/exe"), source })?;
    let config = parts.source.as_ref().map(|source| source.config.clone());
    let cache_gc = CacheGc::new(program, config);
    let run_loop = RunLoop::new(parts.source, parts.settings, control, manager, telemetry, ledgers, cache_gc);
    let mut run_loop = std::pin::pin!(run_loop.run(signals));
    let result = tokio::select! {
        result = &mut run_loop => result,
        () = crate::startup::release_pages_after_start() => run_loop.await,
    };
    runtime.stop().await;
    result
}

pub(crate) struct HostExecutors {
    /// Runs jobs without containers.
    pub(crate) shell: HostExecutor,
    /// Runs jobs in containers, and the driver of the custom executor. `None` means that `shell` does both.
    pub(crate) docker: Option<HostExecutor>,
}

/// Returns the executors that `config.toml` can name.
///
/// `agent` is the program that runs as the agent on other machines.
pub(crate) fn executors(host: HostExecutors, instances: InstanceExecutors, agent: Arc<Executable>) -> Registry {
    let registry = Registry::new()
        .register_shared(host::NAME, Arc::new(host.shell))
        .register_kind(instance::NAME, Arc::new(instances))
        .register_kind(ssh::NAME, Arc::new(SshExecutors::new(agent, open_files::max_jobs())))
        .alias("docker-autoscaler", instance::NAME)
        .alias("docker+machine", instance::NAME);
    match host.docker {
        Some(docker) => registry.register_shared("docker", Arc::new(docker)).alias("custom", "docker"),
        None => registry.alias("docker", host::NAME).alias("custom", host::NAME),
    }
}

/// Creates the executors for jobs on this machine.
///
/// If a separate user runs the commands of jobs, this user must not control the container engine. So jobs in containers
/// then have another agent, which runs as the manager's user.
fn host_executors(host: &HostSettings, hidden_variables: &[String]) -> Result<HostExecutors, RunError> {
    let shell =
        Directories { builds: absolute(Path::new("builds"))?, cache: absolute(Path::new("cache"))?, shared: true };
    let containers = host.state_dir.join("containers");
    let docker = Directories { builds: containers.join("builds"), cache: containers.join("cache"), shared: true };
    let docker = host.user.is_some().then(|| host_executor(host, None, docker, hidden_variables)).transpose()?;
    Ok(HostExecutors { shell: host_executor(host, host.user.clone(), shell, hidden_variables)?, docker })
}

fn host_executor(
    host: &HostSettings,
    user: Option<String>,
    directories: Directories,
    hidden_variables: &[String],
) -> Result<HostExecutor, RunError> {
    let executable =
        std::env::current_exe().map_err(|source| RunError::Path { path: PathBuf::from("/proc/self/exe"), source })?;
    Ok(HostExecutor::new(HostOptions {
        state_dir: host.state_dir.clone(),
        directories,
        slots: open_files::max_jobs(),
        executable,
        exit_with_pid: host.exit_with_pid,
        user,
        hidden_variables: hidden_variables.to_vec(),
        nofile_limit: host.open_files,
    })?)
}

/// Returns the executors for jobs on instances. `executable` is the program that runs as the agent on the instances.
pub(crate) fn instances(state_dir: &Path, executable: Arc<Executable>) -> InstanceExecutors {
    InstanceExecutors::new(InstancesOptions { ledgers: state_dir.join(INSTANCES), executable, find_plugin })
}

fn find_plugin(plugin: &str) -> Result<PluginSpec, String> {
    let found =
        resolve(plugin).map_err(|(NoPlugin::NotInstalled(message) | NoPlugin::InvalidName(message))| message)?;
    Ok(found.spec())
}

pub(crate) fn check_plugin(plugin: &str) -> Result<(), NoPlugin> {
    resolve(plugin).map(drop)
}

fn resolve(plugin: &str) -> Result<install::ResolvedPlugin, NoPlugin> {
    install::resolve(plugin, &crate::plugin::serve::lookup_context()).map_err(|error| {
        let message = muster_job::error_chain(&error);
        match error {
            install::ResolveError::Reference(_) => NoPlugin::InvalidName(message),
            _ => NoPlugin::NotInstalled(message),
        }
    })
}

fn absolute(path: &Path) -> Result<PathBuf, RunError> {
    std::path::absolute(path).map_err(|source| RunError::Path { path: path.to_owned(), source })
}
