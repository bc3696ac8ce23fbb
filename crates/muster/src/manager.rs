//! `muster manager`: requests jobs from a coordinator and runs them on this host.
//!
//! The first SIGTERM or SIGINT stops the intake and winds the jobs down, or lets them end (`--on-stop`). A second one
//! ends the process at once; jobs then go on at the agent, and the next start takes them up.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use muster_config::settings::{RunnerSettings, Settings};
use muster_config::system_id;
use muster_executor::Directories;
use muster_executor::host::{self, HostExecutor, HostOptions};
use muster_executor::registry::Registry;
use muster_job::Secret;
use muster_manager::store::Store;
use muster_manager::{Control, ControlCommand, Manager};
use muster_steps::process::Watched;
use muster_telemetry::Telemetry;
use tokio::signal::unix::{SignalKind, signal};

use crate::observe::Observed;
use crate::unpack::UnpackArgs;

/// Arguments of `muster manager`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Base URL of the coordinator, without `/api/v4`.
    #[arg(long)]
    url: url::Url,
    /// File with the runner's authentication token; a token never stands on the command line.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Directory of this manager: `state.log`, the agent's socket and spool.
    #[arg(long, value_name = "DIR")]
    state_dir: PathBuf,
    /// Directory below which jobs are checked out.
    #[arg(long, value_name = "DIR")]
    builds_dir: PathBuf,
    /// Directory of caches.
    #[arg(long, value_name = "DIR")]
    cache_dir: PathBuf,
    /// Jobs to run at the same time.
    #[arg(long, default_value_t = 1, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    concurrent: usize,
    /// Maximum number of open files per process of a job. Defaults to the limit with which this process was started.
    #[arg(long, value_name = "NUMBER")]
    job_nofile_limit: Option<u64>,
    /// ID of the process with which the manager, the agent and all jobs end.
    #[arg(long, value_name = "PID")]
    exit_with_pid: Option<i32>,
    /// Shell of the jobs' scripts: bash or sh.
    #[arg(long, default_value = "bash")]
    shell: String,
    /// Start the shells as login shells.
    #[arg(long)]
    login: bool,
    /// KiB of log after which a job's output is dropped with a notice.
    #[arg(long, value_name = "KIB", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    output_limit: u64,
    /// Name of this manager, as it stands in a job's log.
    #[arg(long, default_value = "muster")]
    name: String,
    /// What happens to the jobs when the manager is asked to stop.
    #[arg(long, value_enum, default_value_t = OnStop::Drain)]
    on_stop: OnStop,
    /// Seconds for which an agent that is out of reach is hoped for.
    #[arg(long, default_value_t = 60)]
    agent_reconnect_timeout: u64,
    #[command(flatten)]
    unpack: UnpackArgs,
    /// Address of the server for metrics and health, as 127.0.0.1:9252; without it there is none.
    #[arg(long, value_name = "HOST:PORT")]
    listen_address: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnStop {
    /// They go on, and the manager stays until they have ended.
    Drain,
    /// They are canceled and reported.
    Cancel,
}

/// Why the manager could not work.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("cannot {action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Environment(#[from] muster_executor::ExecutorError),
    #[error(transparent)]
    Manager(#[from] muster_manager::ManagerError),
    #[error(transparent)]
    Listen(#[from] crate::observe::ObserveError),
    #[error("cannot watch for signals")]
    Signals(#[source] std::io::Error),
}

/// Runs the subcommand.
pub(crate) fn run(mut args: Args) -> ExitCode {
    crate::logging::of_service();
    args.job_nofile_limit = args.job_nofile_limit.or(crate::open_files::raise());
    crate::runtime::block_on_one_thread(async {
        match work(args).await {
            Ok(code) => code,
            Err(error) => {
                tracing::error!(error = muster_job::error_chain(&error), "the manager ended");
                ExitCode::FAILURE
            }
        }
    })
}

async fn work(args: Args) -> Result<ExitCode, RunError> {
    let exit_with_pid = args.exit_with_pid;
    let on_stop = args.on_stop;
    let (control, orders) = Control::new();
    let observed = Observed::start(args.listen_address.as_deref()).await?;
    let manager = build(args, Arc::clone(&observed.telemetry)).await?;
    let ended = tokio::select! {
        // Every part of `run` stands a sudden end: that is what state.log is for.
        ended = manager.run(orders) => ended.map(|()| ExitCode::SUCCESS).map_err(RunError::from),
        signals = signals(&control, on_stop) => {
            if signals.is_ok() {
                tracing::warn!("the manager ends at once; jobs that run are taken up by its next start");
            }
            signals.map(|()| ExitCode::FAILURE).map_err(RunError::Signals)
        }
        () = gone(exit_with_pid) => {
            tracing::info!("the process that the manager works for has ended");
            Ok(ExitCode::SUCCESS)
        }
    };
    observed.stop().await;
    ended
}

async fn build(args: Args, telemetry: Arc<Telemetry>) -> Result<Manager, RunError> {
    let file = |action, path: &Path| {
        let path = path.to_owned();
        move |source| RunError::File { action, path, source }
    };
    let token = std::fs::read_to_string(&args.token_file).map_err(file("read the token file", &args.token_file))?;
    let absolute = |path: &Path| std::path::absolute(path).map_err(file("find", path));
    let (state_dir, builds, cache) =
        (absolute(&args.state_dir)?, absolute(&args.builds_dir)?, absolute(&args.cache_dir)?);
    let executable = std::env::current_exe().map_err(file("find the executable", Path::new("/proc/self/exe")))?;
    let store = Store::open(&state_dir).await.map_err(muster_manager::ManagerError::from)?;
    crate::open_files::tell(args.concurrent);
    let provider = HostExecutor::new(HostOptions {
        state_dir: state_dir.clone(),
        directories: Directories { builds, cache, shared: true },
        slots: args.concurrent.min(crate::open_files::jobs_max()),
        executable,
        exit_with_pid: args.exit_with_pid,
        user: None,
        hidden_variables: Vec::new(),
        nofile_limit: args.job_nofile_limit,
    })?;
    let runner = RunnerSettings {
        name: args.name,
        system_id: system_id(&state_dir),
        request_concurrency: args.concurrent,
        shell: args.shell,
        login: args.login,
        output_limit: args.output_limit * 1024,
        unpack: args.unpack.of_jobs(),
        // The builds directory is this manager's own: a job may have its place in it.
        custom_build_dir: Some(true),
        ..RunnerSettings::new(args.url, Secret::new(token.trim()), 0)
    };
    let settings = Settings {
        concurrent: args.concurrent,
        agent_reconnect_timeout: Duration::from_secs(args.agent_reconnect_timeout),
        exit_on_refusal: true,
        runners: vec![Arc::new(runner)],
        ..Settings::new()
    };
    let executors = Registry::new().register_shared(host::NAME, Arc::new(provider));
    Ok(Manager::new(settings, store, executors, telemetry))
}

/// Stops the manager at the first signal; returns at the second.
async fn signals(control: &Control, on_stop: OnStop) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    for _ in 0..2 {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let order = match on_stop {
            OnStop::Drain => ControlCommand::Drain,
            OnStop::Cancel => ControlCommand::Abort,
        };
        control.send(order).await;
    }
    Ok(())
}

/// Returns when the process has ended, or is gone already.
async fn gone(pid: Option<i32>) {
    match pid.map(Watched::open) {
        None => std::future::pending().await,
        Some(Ok(process)) => process.ended().await,
        Some(Err(error)) => tracing::info!(%error, "the process to work for is gone"),
    }
}
