//! Runs a coordinator, and a manager with instances, in a temporary directory.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_config::{self as config, HostFacts, SettingsContext};
use muster_coordinator::http::HttpServer;
use muster_coordinator::{Coordinator, Options, RunnerSpec};
use muster_executor::Directories;
use muster_executor::deploy::Executable;
use muster_executor::host::{HostExecutor, HostOptions};
use muster_manager::store::Store;
use muster_manager::{Control, ControlCommand, Manager, ManagerError};
use muster_taskscaler::fleet::read_fleets;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::DemoError;
use crate::ci::end_descendants;
use crate::observe::TelemetryRuntime;
use crate::runner::{FleetEndpoints, HostExecutors, executors};

const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between SIGTERM and SIGKILL for processes that the manager left behind.
const KILL_GRACE: Duration = Duration::from_secs(2);
/// Interval for sending job logs. Short, so that the screen shows progress.
const TRACE_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) instances: u32,
    /// Simultaneous jobs of an instance.
    pub(super) slots: u32,
    /// Average time from the creation of an instance until jobs can run on it.
    pub(super) boot_time: Duration,
    /// Seed of the random variation of boot times.
    pub(super) seed: u64,
}

pub(super) struct DemoStack {
    directory: tempfile::TempDir,
    pub(super) coordinator: Arc<Coordinator>,
    /// `listen_address` of the manager.
    pub(super) address: String,
    server: JoinHandle<()>,
    telemetry: TelemetryRuntime,
    control: Control,
    manager: JoinHandle<Result<(), ManagerError>>,
    _endpoints: FleetEndpoints,
}

impl DemoStack {
    pub(super) async fn start(size: Size) -> Result<Self, DemoError> {
        crate::ci::adopt_orphans();
        let directory = tempfile::Builder::new().prefix("muster-demo-").tempdir().map_err(DemoError::TempDir)?;
        let path = |name: &str| directory.path().join(name);
        let http_server =
            HttpServer::open(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.map_err(DemoError::Listen)?;
        let url = http_server.url();
        let mut options = Options::new(path("coordinator"));
        options.server_url.clone_from(&url);
        options.limits.trace_interval = TRACE_INTERVAL;
        options.limits.unwatched_trace_interval = TRACE_INTERVAL;
        options.limits.own_trace_interval = TRACE_INTERVAL;
        let coordinator = Coordinator::in_memory(options).await?;
        let new = RunnerSpec { description: "demo".to_owned(), run_untagged: true, ..RunnerSpec::default() };
        let token = coordinator.create_runner(new).await?.token;
        let server = tokio::spawn(http_server.serve(Arc::clone(&coordinator), None));

        let text = configuration(size, &url, &token, &path("machines"));
        let loaded = config::parse(&text, &HostFacts::default());
        let parsed =
            loaded.config.ok_or_else(|| DemoError::Internal("failed to parse the demo's configuration".to_owned()))?;
        let context = SettingsContext { system_id: "s_demo".to_owned(), ..SettingsContext::default() };
        let settings = config::settings(&parsed, &context);
        let telemetry = TelemetryRuntime::start(Some("127.0.0.1:0")).await?;
        let address =
            telemetry.address.ok_or_else(|| DemoError::Internal("the metrics server has no address".to_owned()))?;
        let (state, store) = (path("manager"), Store::open(&path("manager")).await?);
        let host = HostExecutor::new(HostOptions {
            state_dir: state.clone(),
            directories: Directories { builds: path("builds"), cache: path("cache"), shared: true },
            slots: 1,
            executable: std::env::current_exe().map_err(DemoError::Executable)?,
            exit_with_pid: None,
            user: None,
            hidden_variables: Vec::new(),
            nofile_limit: None,
        })?;
        let agent = Arc::new(Executable::for_instances().map_err(DemoError::Executable)?);
        let instances = crate::runner::instances(&state, Arc::clone(&agent));
        let endpoints = FleetEndpoints::new(&telemetry.telemetry, &instances);
        let executors = executors(HostExecutors { shell: host, docker: None }, instances, agent);
        let manager = Manager::new(settings, store, executors, Arc::clone(&telemetry.telemetry));
        let (control, commands) = Control::new();
        let manager = tokio::spawn(manager.run(commands));
        Ok(Self {
            directory,
            coordinator,
            address: address.to_string(),
            server,
            telemetry,
            control,
            manager,
            _endpoints: endpoints,
        })
    }

    /// Stops the manager and the coordinator, and returns the number of instances that still exist. Any number above 0
    /// is a bug.
    pub(super) async fn stop(self) -> Result<usize, DemoError> {
        self.control.send(ControlCommand::Abort).await;
        let mut manager = self.manager;
        let stopped = match timeout(STOP_TIMEOUT, &mut manager).await {
            Ok(stopped) => stopped.map_err(|error| DemoError::Internal(error.to_string()))?.map_err(DemoError::from),
            Err(_) => {
                manager.abort();
                Err(DemoError::Internal(format!("the manager did not stop within {} s", STOP_TIMEOUT.as_secs())))
            }
        };
        self.telemetry.stop().await;
        self.server.abort();
        self.coordinator.shutdown().await;
        let ledgers: PathBuf = self.directory.path().join("manager").join(crate::runner::INSTANCES);
        let fleets = read_fleets(&ledgers, 0).map_err(|error| DemoError::Internal(error.to_string()))?;
        let in_ledgers = fleets.iter().filter_map(|fleet| Some(fleet.report.status.as_ref()?.instances.len()));
        // Counts the directories inside each plugin's directory, because each of them is an instance. The plugin's
        // directory itself is no instance, and may remain if the plugin was stopped during its start.
        let plugins = std::fs::read_dir(self.directory.path().join("machines")).into_iter().flatten().flatten();
        let machines: usize = plugins.map(|plugin| count_directories(&plugin.path())).sum();
        let remaining = in_ledgers.sum::<usize>().max(machines);
        end_descendants(KILL_GRACE).await;
        stopped.map(|()| remaining)
    }
}

fn count_directories(path: &std::path::Path) -> usize {
    std::fs::read_dir(path).map_or(0, |entries| entries.flatten().filter(|entry| entry.path().is_dir()).count())
}

fn configuration(size: Size, url: &str, token: &str, machines: &std::path::Path) -> String {
    let Size { instances, slots, boot_time, seed } = size;
    let jobs = instances * slots;
    format!(
        r#"concurrent = {jobs}
check_interval = 1
[[runners]]
  name = "demo"
  url = "{url}"
  token = "{token}"
  executor = "instance"
  shell = "sh"
  request_concurrency = {jobs}
  [runners.autoscaler]
    plugin = "fleeting-plugin-local"
    capacity_per_instance = {slots}
    max_instances = {instances}
    max_use_count = 12
    update_interval = "2s"
    update_interval_when_expecting = "200ms"
    delete_instances_on_shutdown = true
    [[runners.autoscaler.policy]]
      idle_count = 1
      idle_time = "2s"
      preemptive_mode = false
    [runners.autoscaler.plugin_config]
      name = "demo"
      max_size = {instances}
      directory = {machines:?}
      boot_delay_ms = {boot_ms}
      boot_jitter = 0.4
      seed = {seed}
"#,
        boot_ms = boot_time.as_millis(),
    )
}
