//! What the demo is made of: a coordinator, and a manager with instances, in a folder that goes with it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_config::{self as config, HostFacts, SettingsContext};
use muster_coordinator::http::HttpFront;
use muster_coordinator::{Coordinator, NewRunner, Options};
use muster_executor::Directories;
use muster_executor::host::{HostExecutor, HostOptions};
use muster_manager::store::Store;
use muster_manager::{Control, ControlCommand, Manager, ManagerError};
use muster_taskscaler::fleet::read_fleets;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::DemoError;
use crate::ci::end_descendants;
use crate::observe::Observed;
use crate::runner::{FleetEndpoints, executors};

/// For the manager's end: its jobs are cancelled, its instances removed.
const END_LIMIT: Duration = Duration::from_secs(30);
/// For processes that are left after it.
const GRACE: Duration = Duration::from_secs(2);
/// Jobs are told of as they go.
const TRACE_INTERVAL: Duration = Duration::from_millis(50);

/// How large it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) instances: u32,
    pub(super) slots: u32,
    pub(super) boot: Duration,
    pub(super) seed: u64,
}

/// See the module.
pub(super) struct World {
    folder: tempfile::TempDir,
    pub(super) coordinator: Arc<Coordinator>,
    /// Where the manager is asked.
    pub(super) address: String,
    serve: JoinHandle<()>,
    observed: Observed,
    control: Control,
    manager: JoinHandle<Result<(), ManagerError>>,
    _endpoints: FleetEndpoints,
}

impl World {
    pub(super) async fn start(size: Size) -> Result<Self, DemoError> {
        crate::ci::adopt_orphans();
        let folder = tempfile::Builder::new().prefix("muster-demo-").tempdir().map_err(DemoError::Folder)?;
        let path = |name: &str| folder.path().join(name);
        let front = HttpFront::open(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.map_err(DemoError::Listen)?;
        let url = front.url();
        let mut options = Options::new(path("coordinator"));
        options.server_url.clone_from(&url);
        options.limits.trace_interval = TRACE_INTERVAL;
        options.limits.unwatched_trace_interval = TRACE_INTERVAL;
        options.limits.own_trace_interval = TRACE_INTERVAL;
        let coordinator = Coordinator::in_memory(options).await?;
        let new = NewRunner { description: "demo".to_owned(), run_untagged: true, ..NewRunner::default() };
        let token = coordinator.create_runner(new).await?.token;
        let serve = tokio::spawn(front.serve(Arc::clone(&coordinator), None));

        let text = configuration(size, &url, &token, &path("machines"));
        let loaded = config::parse(&text, &HostFacts::default());
        let parsed = loaded.config.ok_or_else(|| DemoError::Defect("its configuration cannot be read".to_owned()))?;
        let around = SettingsContext { system_id: "s_demo".to_owned(), ..SettingsContext::default() };
        let settings = config::settings(&parsed, &around);
        let observed = Observed::start(Some("127.0.0.1:0")).await?;
        let address = observed.address.ok_or_else(|| DemoError::Defect("the manager has no address".to_owned()))?;
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
        let instances = crate::runner::instances(&state).map_err(DemoError::Executable)?;
        let endpoints = FleetEndpoints::new(&observed.telemetry, &instances);
        let executors = executors(host, instances);
        let manager = Manager::new(settings, store, executors, Arc::clone(&observed.telemetry));
        let (control, orders) = Control::new();
        let manager = tokio::spawn(manager.run(orders));
        Ok(Self {
            folder,
            coordinator,
            address: address.to_string(),
            serve,
            observed,
            control,
            manager,
            _endpoints: endpoints,
        })
    }

    /// Ends everything; how many instances are left, which is a defect.
    pub(super) async fn end(self) -> Result<usize, DemoError> {
        self.control.send(ControlCommand::Abort).await;
        let mut manager = self.manager;
        let ended = match timeout(END_LIMIT, &mut manager).await {
            Ok(ended) => ended.map_err(|error| DemoError::Defect(error.to_string()))?.map_err(DemoError::from),
            Err(_) => {
                manager.abort();
                Err(DemoError::Defect(format!("the manager did not end within {} s", END_LIMIT.as_secs())))
            }
        };
        self.observed.stop().await;
        self.serve.abort();
        self.coordinator.shutdown().await;
        let books: PathBuf = self.folder.path().join("manager").join(crate::runner::INSTANCES);
        let fleets = read_fleets(&books, 0).map_err(|error| DemoError::Defect(error.to_string()))?;
        let in_books = fleets.iter().filter_map(|fleet| Some(fleet.report.status.as_ref()?.instances.len()));
        // A plugin that was ended while it started may leave its folder, which goes with the demo's.
        let plugins = std::fs::read_dir(self.folder.path().join("machines")).into_iter().flatten().flatten();
        let machines: usize = plugins.map(|plugin| folders(&plugin.path())).sum();
        let left = in_books.sum::<usize>().max(machines);
        end_descendants(GRACE).await;
        ended.map(|()| left)
    }
}

fn folders(path: &std::path::Path) -> usize {
    std::fs::read_dir(path).map_or(0, |entries| entries.flatten().filter(|entry| entry.path().is_dir()).count())
}

/// The manager's `config.toml`: nothing in it is special for a demo but the short times.
fn configuration(size: Size, url: &str, token: &str, machines: &std::path::Path) -> String {
    let Size { instances, slots, boot, seed } = size;
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
      boot_delay_ms = {boot}
      boot_jitter = 0.4
      seed = {seed}
"#,
        boot = boot.as_millis(),
    )
}
