//! `muster manager`: requests jobs from a coordinator and runs them on this host.
//!
//! The first SIGTERM or SIGINT stops the requests for jobs, and cancels the running jobs or lets them finish
//! (`--on-stop`). The second signal ends the process immediately. The next start resumes the jobs that still run, and
//! reports the canceled ones.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use muster_config::settings::{DockerSettings, PULL_POLICIES, RunnerSettings, Settings};
use muster_config::system_id;
use muster_executor::Directories;
use muster_executor::host::{self, HostExecutor, HostOptions};
use muster_executor::registry::Registry;
use muster_job::Secret;
use muster_manager::store::Store;
use muster_manager::{Control, ControlCommand, Manager};
use muster_steps::process::Watched;
use muster_telemetry::Telemetry;
use sha2::{Digest, Sha256};
use tokio::signal::unix::{SignalKind, signal};

use crate::observe::TelemetryRuntime;
use crate::unpack::UnpackArgs;

/// Maximum time until the services of a job accept connections. gitlab-runner's default.
const SERVICE_TIMEOUT_S: u32 = 30;

/// Arguments of `muster manager`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManagerArgs {
    /// Base URL of the coordinator, without `/api/v4`.
    #[arg(long)]
    url: url::Url,
    /// File with the runner's authentication token. There is no flag for the token itself, because other users can read command lines.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// State directory of the manager: `state.log`, and the agent's socket and spool.
    #[arg(long, value_name = "DIR")]
    state_dir: PathBuf,
    /// Directory in which jobs are checked out.
    #[arg(long, value_name = "DIR")]
    builds_dir: PathBuf,
    /// Directory for caches.
    #[arg(long, value_name = "DIR")]
    cache_dir: PathBuf,
    /// Maximum number of jobs to run at the same time.
    #[arg(long, default_value_t = 1, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    concurrent: usize,
    /// Maximum number of open files for each process of a job. Defaults to the limit of this process at its start.
    #[arg(long, value_name = "NUMBER")]
    job_nofile_limit: Option<u64>,
    /// Exit when the process with this ID exits. The agent then exits too, and its jobs end.
    #[arg(long, value_name = "PID")]
    exit_with_pid: Option<i32>,
    /// Shell of the jobs' scripts: bash, sh, pwsh or powershell.
    #[arg(long, default_value = "bash")]
    shell: String,
    /// Start the shells as login shells.
    #[arg(long)]
    login: bool,
    /// Maximum size of a job's log in KiB. Further output is dropped.
    #[arg(long, value_name = "KIB", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    output_limit_kib: u64,
    /// Name of this manager, shown in job logs.
    #[arg(long, default_value = "muster")]
    name: String,
    /// What to do with running jobs when the manager is stopped.
    #[arg(long, value_enum, default_value_t = OnStop::Drain)]
    on_stop: OnStop,
    /// Seconds to keep reconnecting to an unreachable agent before its jobs fail.
    #[arg(long, default_value_t = 60)]
    agent_reconnect_timeout: u64,
    #[command(flatten)]
    unpack: UnpackArgs,
    /// Run jobs in containers of the engine with this URL.
    #[arg(long, value_name = "URL")]
    docker_host: Option<String>,
    /// Image of jobs that do not specify one.
    #[arg(long, value_name = "IMAGE", requires = "docker_host")]
    docker_image: Option<String>,
    /// Run jobs without an image directly on this machine.
    #[arg(long, requires = "docker_host", conflicts_with = "docker_image")]
    host_without_image: bool,
    /// Address to serve metrics and health on, such as 127.0.0.1:9252. Defaults to none.
    #[arg(long, value_name = "HOST:PORT")]
    listen_address: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnStop {
    /// Wait until the running jobs have finished.
    Drain,
    /// Cancel the running jobs, and report them as failed.
    Cancel,
}

#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("failed to {action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Environment(#[from] muster_executor::ExecutorError),
    #[error(transparent)]
    Manager(#[from] muster_manager::ManagerError),
    #[error(transparent)]
    Listen(#[from] crate::observe::ObserveError),
    #[error("failed to install a signal handler")]
    Signals(#[source] std::io::Error),
}

pub(crate) fn run(mut args: ManagerArgs) -> ExitCode {
    crate::logging::init_service();
    args.job_nofile_limit = args.job_nofile_limit.or(crate::open_files::raise());
    crate::runtime::block_on_one_thread(async {
        match run_manager(args).await {
            Ok(code) => code,
            Err(error) => {
                tracing::error!(error = muster_job::error_chain(&error), "manager failed");
                ExitCode::FAILURE
            }
        }
    })
}

async fn run_manager(args: ManagerArgs) -> Result<ExitCode, RunError> {
    let exit_with_pid = args.exit_with_pid;
    let on_stop = args.on_stop;
    let (control, commands) = Control::new();
    let telemetry = TelemetryRuntime::start(args.listen_address.as_deref()).await?;
    let manager = build(args, Arc::clone(&telemetry.telemetry)).await?;
    let result = tokio::select! {
        // It is safe to drop `run` at any point: state.log contains everything that the next start needs.
        result = manager.run(commands) => result.map(|()| ExitCode::SUCCESS).map_err(RunError::from),
        signals = stop_on_signals(&control, on_stop) => {
            if signals.is_ok() {
                tracing::warn!("exiting immediately; the next start resumes the running jobs, and reports the canceled ones");
            }
            signals.map(|()| ExitCode::FAILURE).map_err(RunError::Signals)
        }
        () = wait_for_exit(exit_with_pid) => {
            tracing::info!("exiting because the process of --exit-with-pid has exited");
            Ok(ExitCode::SUCCESS)
        }
    };
    telemetry.stop().await;
    result
}

async fn build(args: ManagerArgs, telemetry: Arc<Telemetry>) -> Result<Manager, RunError> {
    let file = |action, path: &Path| {
        let path = path.to_owned();
        move |source| RunError::File { action, path, source }
    };
    let token = std::fs::read_to_string(&args.token_file).map_err(file("read the token file", &args.token_file))?;
    let absolute = |path: &Path| std::path::absolute(path).map_err(file("resolve the path", path));
    let (state_dir, builds, cache) =
        (absolute(&args.state_dir)?, absolute(&args.builds_dir)?, absolute(&args.cache_dir)?);
    let executable = std::env::current_exe().map_err(file("find the executable", Path::new("/proc/self/exe")))?;
    let store = Store::open(&state_dir).await.map_err(muster_manager::ManagerError::from)?;
    crate::open_files::warn_if_low(args.concurrent);
    let cache_volume = format!("{}:/cache", cache_volume(&cache));
    let provider = HostExecutor::new(HostOptions {
        state_dir: state_dir.clone(),
        directories: Directories { builds, cache, shared: true },
        slots: args.concurrent.min(crate::open_files::max_jobs()),
        executable,
        exit_with_pid: args.exit_with_pid,
        user: None,
        hidden_variables: Vec::new(),
        nofile_limit: args.job_nofile_limit,
    })?;
    let executor = if args.docker_host.is_some() { "docker" } else { host::NAME };
    let docker = args.docker_host.map(|engine| DockerSettings {
        host: engine,
        image: args.docker_image.unwrap_or_default(),
        host_without_image: args.host_without_image,
        // An image that a developer has built exists in no registry, and a pull for each job takes long.
        pull_policy: vec!["if-not-present".to_owned()],
        allowed_pull_policies: PULL_POLICIES.map(str::to_owned).to_vec(),
        wait_for_services_s: SERVICE_TIMEOUT_S,
        // Each `muster ci run` creates a new runner, whose volumes later runs could not find. So all volumes except the
        // one for caches are removed at the end of the job.
        disable_cache: true,
        volumes: vec![cache_volume],
        ..DockerSettings::default()
    });
    let runner = RunnerSettings {
        executor: executor.to_owned(),
        docker: docker.map(Box::new),
        name: args.name,
        system_id: system_id(&state_dir),
        request_concurrency: args.concurrent,
        shell: args.shell,
        login: args.login,
        output_limit: args.output_limit_kib * 1024,
        unpack: args.unpack.job_settings(),
        // The manager owns the builds directory, so GIT_CLONE_PATH may name any directory in it.
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
    let executors = Registry::new().register_shared(host::NAME, Arc::new(provider)).alias("docker", host::NAME);
    Ok(Manager::new(settings, store, executors, telemetry))
}

/// Returns the name of the volume for caches. It depends on the directory, so each repository has a separate volume.
fn cache_volume(cache: &Path) -> String {
    let hash = format!("{:x}", Sha256::digest(cache.as_os_str().as_encoded_bytes()));
    format!("muster-ci-cache-{}", hash.get(..16).unwrap_or(&hash))
}

/// Asks the manager to stop on each signal. Returns after the second signal.
async fn stop_on_signals(control: &Control, on_stop: OnStop) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    for _ in 0..2 {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let command = match on_stop {
            OnStop::Drain => ControlCommand::Drain,
            OnStop::Cancel => ControlCommand::Abort,
        };
        control.send(command).await;
    }
    Ok(())
}

/// Waits until the process has exited. Waits forever if `pid` is `None`.
async fn wait_for_exit(pid: Option<i32>) {
    match pid.map(Watched::open) {
        None => std::future::pending().await,
        Some(Ok(process)) => process.ended().await,
        Some(Err(error)) => tracing::info!(%error, "the process of --exit-with-pid does not exist"),
    }
}
