//! `run`: the manager of one `config.toml`, until a signal ends it (runner-config 2.2, 2.6).
//!
//! ```text
//! config.toml --ConfigWatch--> Settings --ControlCommand::Reload--> Manager (state.log, requests, jobs) --> agent on this host
//!                 SIGHUP, changes           Drain, Abort      ^ signals
//! ```
//!
//! The agent is a process of its own: however this one ends, jobs that were not aborted go on, and the next `run` on
//! the same configuration takes them up.

mod fleet_endpoints;
mod problems;
mod running;
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
use muster_fleeting::host::PluginSpec;
use muster_fleeting::install;
use muster_manager::reload::ConfigWatch;
use muster_manager::store::{Store, StoreError};
use muster_manager::{Control, Manager, ManagerError, RunLimits};

use crate::config_file::ConfigArg;
use crate::observe::Observed;
use crate::open_files;
use crate::{flags, paths};
pub(crate) use fleet_endpoints::{EXPLAIN_PATH, FleetEndpoints, STATUS_PATH};
use running::{Running, Source};
use signals::Signals;

/// Where the books of instances are, in the state directory.
pub(crate) const INSTANCES: &str = "instances";

/// The state directory of the manager of a configuration; none where this user has no home.
pub(crate) fn state_dir(config: &Path) -> Option<PathBuf> {
    state_dir::of(config)
}

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArg,
    /// Address of the metrics and debug server: host:port.
    #[arg(long, env = "LISTEN_ADDRESS", value_name = "ADDRESS")]
    listen_address: Option<String>,
    /// Name of the service that this is; only its unit needs it.
    #[arg(short = 'n', long, default_value = "gitlab-runner", value_name = "NAME")]
    service: String,
    /// Work in this directory: relative paths, and where an entry names none, builds and cache start from it.
    #[arg(short = 'd', long, value_name = "DIR")]
    working_directory: Option<PathBuf>,
    /// Run the commands of jobs as this user.
    #[arg(short = 'u', long, value_name = "NAME")]
    user: Option<String>,
    /// Log to the system's log too.
    #[arg(long, env = "LOG_SYSLOG", value_parser = flags::go_bool, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "true", default_value = "false", hide_default_value = true, value_name = "BOOL")]
    pub(super) syslog: bool,
    /// Directory of this manager's state: jobs under way, the agent's spool. By default one of its own for each
    /// configuration, below /var/lib/muster for root, else below the user's state directory.
    #[arg(long, env = "MUSTER_STATE_DIR", value_name = "DIR", value_parser = flags::path())]
    state_dir: Option<PathBuf>,
}

/// Why there is no manager.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("cannot work in {}", path.display())]
    WorkingDirectory { path: PathBuf, source: std::io::Error },
    #[error("cannot find {}", path.display())]
    Path { path: PathBuf, source: std::io::Error },
    #[error("C030: another manager must not run with this configuration")]
    InUse(#[source] EditError),
    #[error(transparent)]
    Hold(EditError),
    #[error("{} cannot be used: mend what is told above, `verify-config` shows all of it", path.display())]
    Configuration { path: PathBuf },
    #[error(transparent)]
    State(#[from] StoreError),
    #[error(transparent)]
    Environment(#[from] muster_executor::ExecutorError),
    #[error(transparent)]
    Manager(#[from] ManagerError),
    #[error(transparent)]
    Listen(#[from] crate::observe::ObserveError),
    #[error("the manager died: {0}")]
    Died(tokio::task::JoinError),
    #[error("cannot watch for signals")]
    Signals(#[source] std::io::Error),
    #[error("neither HOME nor XDG_STATE_HOME says where this user's state is kept; name a directory with --state-dir")]
    NoStateDir,
}

/// Runs the command.
pub(super) fn run(args: Args) -> ExitCode {
    // Before anything is opened that another limit would be too low for.
    let open_files = open_files::raise();
    crate::runtime::block_on_one_thread(async { exit_code(work(args, open_files).await) })
}

/// How the process ends; why it fails is told.
fn exit_code(ended: Result<ExitCode, RunError>) -> ExitCode {
    ended.unwrap_or_else(|error| {
        tracing::error!("{}", muster_job::error_chain(&error));
        ExitCode::FAILURE
    })
}

/// `open_files` is the limit that this process was started with.
async fn work(args: Args, open_files: Option<u64>) -> Result<ExitCode, RunError> {
    // First of all, so that no signal finds its default, which is to kill.
    let signals = Signals::watch().map_err(RunError::Signals)?;
    if let Some(path) = &args.working_directory {
        std::env::set_current_dir(path).map_err(|source| RunError::WorkingDirectory { path: path.clone(), source })?;
    }
    let config = absolute(&args.config.path())?;
    let _held = edit::hold(&config).map_err(|error| match error {
        EditError::Locked { .. } => RunError::InUse(error),
        error => RunError::Hold(error),
    })?;
    let around = SettingsContext {
        system_id: args.config.system_id(),
        user: args.user.clone(),
        certificates: Some(paths::certificates()),
        default_shell: None,
        find_plugin: Some(look_for_plugin),
    };
    let (watch, loaded) = ConfigWatch::start(config.clone(), around);
    let source = Source { watch, config, listen_address: args.listen_address };
    // The form of the log is among them: from here on all of it has that.
    let settings = source.settings();
    problems::tell(&loaded.problems, &source.config);
    if loaded.config.is_none() || loaded.has(Severity::Fatal) {
        return Err(RunError::Configuration { path: source.config });
    }
    let state_dir = match flags::filled(&args.state_dir) {
        Some(path) => absolute(&path)?,
        None => state_dir::of(&source.config).ok_or(RunError::NoStateDir)?,
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
    let host = Host { state_dir, user, exit_with_pid: None, open_files };
    manage(Work { settings, source: Some(source), store, host, quota: RunLimits::default() }, signals).await
}

/// What a manager is made of.
struct Work {
    settings: Settings,
    source: Option<Source>,
    store: Store,
    host: Host,
    quota: RunLimits,
}

/// This host, as the place of jobs.
struct Host {
    state_dir: PathBuf,
    /// Whose commands they are; none is the user of this process.
    user: Option<String>,
    /// Whom the agent does not outlive.
    exit_with_pid: Option<i32>,
    /// The limit of open files that jobs have.
    open_files: Option<u64>,
}

/// Works until it has ended, by itself or by a signal.
async fn manage(work: Work, signals: Signals) -> Result<ExitCode, RunError> {
    open_files::tell(work.settings.concurrent);
    let observed = Observed::start(work.settings.listen_address.as_deref()).await?;
    let telemetry = Arc::clone(&observed.telemetry);
    telemetry.metrics.configuration_loaded(true);
    let ledgers = work.host.state_dir.join(INSTANCES);
    let instances = instances(&work.host.state_dir)
        .map_err(|source| RunError::Path { path: PathBuf::from("/proc/self/exe"), source })?;
    let _endpoints = FleetEndpoints::new(&telemetry, &instances);
    let executors = executors(host_executor(work.host, work.settings.token_env_names.clone())?, instances);
    let manager = Manager::new(work.settings.clone(), work.store, executors, Arc::clone(&telemetry));
    let (control, orders) = Control::new();
    let manager = tokio::spawn(manager.with_run_limits(work.quota).run(orders));
    let running = Running::new(work.source, work.settings, control, manager, telemetry, ledgers);
    let mut running = std::pin::pin!(running.until_end(signals));
    let ended = tokio::select! {
        ended = &mut running => ended,
        () = crate::startup::give_back_when_started() => running.await,
    };
    observed.stop().await;
    ended
}

/// Returns the executors that `config.toml` can name. A new one is one line here ([`muster_executor::registry`]).
pub(crate) fn executors(host: HostExecutor, instances: InstanceExecutors) -> Registry {
    Registry::new().register_shared(host::NAME, Arc::new(host)).register_kind(instance::NAME, Arc::new(instances))
}

fn host_executor(host: Host, hidden: Vec<String>) -> Result<HostExecutor, RunError> {
    let executable =
        std::env::current_exe().map_err(|source| RunError::Path { path: PathBuf::from("/proc/self/exe"), source })?;
    let directories =
        Directories { builds: absolute(Path::new("builds"))?, cache: absolute(Path::new("cache"))?, shared: true };
    Ok(HostExecutor::new(HostOptions {
        state_dir: host.state_dir,
        directories,
        slots: open_files::jobs_max(),
        executable,
        exit_with_pid: host.exit_with_pid,
        user: host.user,
        hidden_variables: hidden,
        nofile_limit: host.open_files,
    })?)
}

/// Returns the executors of instances, whose ledgers are in the state directory. Their agent is this program.
pub(crate) fn instances(state_dir: &Path) -> std::io::Result<InstanceExecutors> {
    let executable = Arc::new(Executable::for_instances()?);
    Ok(InstanceExecutors::new(InstancesOptions { ledgers: state_dir.join(INSTANCES), executable, find_plugin }))
}

/// The plugin that `[runners.autoscaler]` names; the ones that come with this program are the last that are found.
fn find_plugin(plugin: &str) -> Result<PluginSpec, String> {
    let found = resolve(plugin).map_err(|(NoPlugin::NotInstalled(why) | NoPlugin::InvalidName(why))| why)?;
    Ok(found.spec())
}

/// For the checks of a configuration: why a plugin cannot be run.
pub(crate) fn look_for_plugin(plugin: &str) -> Result<(), NoPlugin> {
    resolve(plugin).map(drop)
}

fn resolve(plugin: &str) -> Result<install::ResolvedPlugin, NoPlugin> {
    install::resolve(plugin, &crate::plugin::serve::surroundings()).map_err(|error| {
        let why = muster_job::error_chain(&error);
        match error {
            install::ResolveError::Reference(_) => NoPlugin::InvalidName(why),
            _ => NoPlugin::NotInstalled(why),
        }
    })
}

fn absolute(path: &Path) -> Result<PathBuf, RunError> {
    std::path::absolute(path).map_err(|source| RunError::Path { path: path.to_owned(), source })
}
