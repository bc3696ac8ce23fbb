//! The fixture of a test: a coordinator, an agent, a state directory, and managers.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use muster_agent_api::client::AgentConnection;
use muster_config::settings::{RunnerSettings, Settings};
use muster_executor::registry::Registry;
use muster_executor::{
    Capacity, Directories, Elastic, EnvironmentRequest, ExecutionEnvironment, Executor, ExecutorError, Lease,
    LeaseRecord, SlotKey, Slots, Suspend,
};
use muster_job::{JobId, Secret};
use muster_manager::store::{Store, StoreError};
use muster_manager::{Control, ControlCommand, Manager, ManagerError, ManagerStats, RunLimits};
use muster_runner_api::test_support::{Job, MemoryCoordinator, RUNNER_TOKEN, Served, serve};
use muster_telemetry::spans::SpanSettings;
use muster_telemetry::{Build, ProcessState, Telemetry};
use serde_json::json;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::agent::FakeAgent;

pub(crate) const JOB: JobId = JobId(7);

/// ID of the run of [`JOB`].
pub(crate) const RUN: &str = "7-1";

const SLOTS: usize = 100;

pub(crate) struct Harness {
    pub(crate) coordinator: Arc<MemoryCoordinator>,
    pub(crate) agent: FakeAgent,
    served: Served,
    home: tempfile::TempDir,
    /// Slots assigned so far.
    assigned: watch::Sender<Vec<u32>>,
    pub(crate) capacity: watch::Sender<Capacity>,
    pub(crate) suspension: watch::Sender<Suspension>,
}

/// Calls that concern the suspension of the environment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Suspension {
    pub(crate) suspends: u32,
    /// Number of restored leases since the suspension.
    pub(crate) restores: u32,
    /// Whether a call that suspends the environment can end.
    pub(crate) can_end: bool,
}

/// [`Self::kill`] stops it at any `await`, as the death of its process would.
pub(crate) struct RunningManager {
    pub(crate) control: Control,
    /// Maximum size of the state in bytes.
    pub(crate) state_limit: Arc<AtomicU64>,
    /// Number of free slots.
    pub(crate) free_slots: watch::Receiver<usize>,
    telemetry: Arc<Telemetry>,
    task: JoinHandle<Result<(), ManagerError>>,
}

impl RunningManager {
    pub(crate) async fn drain(&self) {
        self.control.send(ControlCommand::Drain).await;
    }

    /// Waits until the manager has handled all earlier events.
    ///
    /// Between two requests for statistics, its main loop runs once.
    pub(crate) async fn wait_for_main_loop(&self) {
        for _ in 0..3 {
            self.control.stats().await.expect("the manager ended too early");
            tokio::task::yield_now().await;
        }
    }

    /// Returns the sum over all labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.telemetry.metrics.text(ProcessState::Running);
        let is_sample = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        text.lines().filter(is_sample).map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// Waits until `condition` holds for the statistics.
    pub(crate) async fn wait_for(&self, condition: impl Fn(&ManagerStats) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let stats = self.control.stats().await.expect("the manager ended too early");
            if condition(&stats) {
                return;
            }
            assert!(Instant::now() < deadline, "timed out waiting for the statistics: {stats:#?}");
            tokio::task::yield_now().await;
        }
    }

    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = (&mut { self.task }).await;
    }

    pub(crate) async fn ended(self) -> Result<(), ManagerError> {
        self.ended_within(Duration::from_secs(20)).await
    }

    pub(crate) async fn ended_within(self, limit: Duration) -> Result<(), ManagerError> {
        tokio::time::timeout(limit, self.task).await.expect("the manager did not end").unwrap()
    }
}

impl Harness {
    pub(crate) async fn start() -> Self {
        Self::with_coordinator(MemoryCoordinator::new(Duration::from_secs(10))).await
    }

    /// Starts a coordinator that holds job requests for a short time.
    pub(crate) async fn with_short_hold() -> Self {
        Self::with_coordinator(MemoryCoordinator::new(Duration::from_millis(100))).await
    }

    /// Starts a coordinator that, like GitLab, loses a job whose answer is not read.
    pub(crate) async fn like_gitlab() -> Self {
        Self::with_coordinator(MemoryCoordinator::new(Duration::from_secs(50)).as_gitlab(Duration::ZERO)).await
    }

    async fn with_coordinator(coordinator: MemoryCoordinator) -> Self {
        let coordinator = Arc::new(coordinator);
        let served = serve(coordinator.clone()).await.unwrap();
        let home = tempfile::tempdir().unwrap();
        let agent = FakeAgent::start(&home.path().join("agent.sock"));
        let capacity = watch::Sender::new(Capacity::of(SLOTS));
        let (assigned, suspension) = (watch::Sender::default(), watch::Sender::default());
        Self { coordinator, agent, served, home, assigned, capacity, suspension }
    }

    /// Enqueues a job whose payload also has the fields of `extra`.
    pub(crate) fn push(&self, extra: &serde_json::Value) {
        let mut payload = json!({
            "id": JOB.0, "token": "secret", "steps": [{ "name": "script", "script": ["true"] }],
            "features": { "failure_reasons": ["runner_interrupted", "job_canceled", "runner_configuration_error"] },
            "muster": { "trace_interval_ms": 5, "result_tree": true }
        });
        for (key, value) in extra.as_object().unwrap() {
            payload[key] = value.clone();
        }
        self.coordinator.enqueue(serde_json::from_value(payload).unwrap());
    }

    pub(crate) fn assigned_slots(&self) -> Vec<u32> {
        self.assigned.borrow().clone()
    }

    pub(crate) async fn wait_for_slots(&self, count: usize) {
        let mut assigned = self.assigned.subscribe();
        let assigned = assigned.wait_for(|assigned| assigned.len() >= count);
        tokio::time::timeout(Duration::from_secs(20), assigned).await.expect("too few slots were assigned").unwrap();
    }

    pub(crate) async fn manager(&self) -> RunningManager {
        self.manager_with_reconnect_timeout(Duration::from_secs(10)).await
    }

    pub(crate) async fn manager_with_reconnect_timeout(&self, agent_reconnect_timeout: Duration) -> RunningManager {
        self.manager_with_settings(Settings { agent_reconnect_timeout, ..self.settings(|_| {}) }).await
    }

    /// `change` changes the runner.
    pub(crate) fn settings(&self, change: impl FnOnce(&mut RunnerSettings)) -> Settings {
        let mut runner = RunnerSettings {
            name: "test".to_owned(),
            system_id: "r_0123456789ab".to_owned(),
            ..RunnerSettings::new(self.served.url.clone(), Secret::new(RUNNER_TOKEN), 1)
        };
        change(&mut runner);
        Settings {
            concurrent: 2,
            agent_reconnect_timeout: Duration::from_secs(10),
            host_name: "host".to_owned(),
            exit_on_refusal: true,
            runners: vec![Arc::new(runner)],
            ..Settings::new()
        }
    }

    pub(crate) async fn manager_with_settings(&self, settings: Settings) -> RunningManager {
        self.manager_with_run_limits(settings, RunLimits::default()).await
    }

    pub(crate) async fn manager_with_run_limits(&self, settings: Settings, run_limits: RunLimits) -> RunningManager {
        let store = self.store().await;
        let state_limit = store.limit();
        let executor = Arc::new(FakeExecutor::new(self));
        let free_slots = executor.slots.free();
        let executors = Registry::new().register_shared("shell", executor).alias("instance", "shell");
        let telemetry = Telemetry::new(&Build::default(), &Arc::default(), SpanSettings::default());
        let manager = Manager::new(settings, store, executors, Arc::clone(&telemetry));
        let (control, commands) = Control::new();
        RunningManager {
            task: tokio::spawn(manager.with_run_limits(run_limits).run(commands)),
            control,
            state_limit,
            free_slots,
            telemetry,
        }
    }

    /// Opens the state. Waits while the last task of an aborted manager still uses it.
    pub(crate) async fn store(&self) -> Store {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match Store::open(self.home.path()).await {
                Err(StoreError::InUse(_)) if Instant::now() < deadline => tokio::task::yield_now().await,
                opened => return opened.unwrap(),
            }
        }
    }

    pub(crate) async fn wait_for_state(&self, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !std::fs::read_to_string(self.home.path().join("state.log")).unwrap().contains(text) {
            assert!(Instant::now() < deadline, "state.log does not contain {text}");
            tokio::task::yield_now().await;
        }
    }

    /// The manager must have ended.
    pub(crate) async fn assert_no_jobs_stored(&self) {
        assert_eq!(self.store().await.jobs(), []);
    }

    pub(crate) async fn wait_for_trace(&self, text: &str) -> Job {
        self.coordinator.wait_for(JOB, |job| job.text().contains(text)).await
    }
}

/// Slots, and one environment with the agent in memory.
struct FakeExecutor {
    slots: Slots,
    capacity: watch::Sender<Capacity>,
    environment: Arc<FakeEnvironment>,
    assigned: watch::Sender<Vec<u32>>,
    suspension: watch::Sender<Suspension>,
}

struct FakeEnvironment {
    directories: Directories,
    socket: std::path::PathBuf,
    suspension: watch::Sender<Suspension>,
}

impl FakeExecutor {
    fn new(harness: &Harness) -> Self {
        let home = harness.home.path();
        let (capacity, assigned) = (harness.capacity.clone(), harness.assigned.clone());
        let suspension = harness.suspension.clone();
        let directories = Directories { builds: home.join("builds"), cache: home.join("cache"), shared: true };
        let socket = home.join("agent.sock");
        let environment = Arc::new(FakeEnvironment { directories, socket, suspension: suspension.clone() });
        Self { slots: Slots::new(SLOTS), capacity, environment, assigned, suspension }
    }

    fn is_suspended(&self) -> bool {
        self.suspension.borrow().suspends > 0
    }

    fn lease(&self, held_slot: muster_executor::HeldSlot) -> Lease {
        let record = LeaseRecord::local("fake", held_slot.slot.clone());
        Lease::new(record, self.environment.clone(), Box::new(held_slot))
    }
}

#[async_trait]
impl Executor for FakeExecutor {
    fn capacity(&self) -> watch::Receiver<Capacity> {
        self.capacity.subscribe()
    }

    async fn acquire(&self, key: &SlotKey, _: &EnvironmentRequest) -> Result<Lease, ExecutorError> {
        let lease = self.lease(self.slots.take(key).expect("a manager must not run more jobs than it has slots"));
        self.assigned.send_modify(|assigned| assigned.push(lease.record.slot.id));
        Ok(lease)
    }

    async fn restore(&self, record: &LeaseRecord) -> Result<Lease, ExecutorError> {
        if self.is_suspended() {
            self.suspension.send_modify(|suspension| suspension.restores += 1);
            let (environment, message) = (record.environment.clone(), "it is suspended".to_owned());
            return Err(ExecutorError::Lost { environment, message });
        }
        Ok(self.lease(self.slots.reacquire(&record.slot).expect("the slot of a restored job must be free")))
    }

    fn environment_without_lease(&self, _: &LeaseRecord) -> Option<Arc<dyn ExecutionEnvironment>> {
        Some(self.environment.clone())
    }

    fn elastic(&self) -> Option<&dyn Elastic> {
        self.is_suspended().then_some(self)
    }
}

#[async_trait]
impl Elastic for FakeExecutor {
    fn request_answered(&self, _: bool) {}

    fn announce_lease(&self, _: &LeaseRecord) {}

    fn leases_announced(&self) {}

    async fn has_suspended_environment(&self, _: &str) -> bool {
        self.is_suspended()
    }
}

#[async_trait]
impl ExecutionEnvironment for FakeEnvironment {
    async fn connect(&self) -> Result<AgentConnection, ExecutorError> {
        let socket = self.socket.clone();
        let location = socket.display().to_string();
        let dial = move || UnixStream::connect(socket.clone());
        Ok(AgentConnection::open(location, dial).await?)
    }

    async fn directories(&self) -> Result<Directories, ExecutorError> {
        Ok(self.directories.clone())
    }

    fn suspendable(&self) -> Option<&dyn Suspend> {
        Some(self)
    }
}

#[async_trait]
impl Suspend for FakeEnvironment {
    async fn can_suspend(&self) -> Result<(), String> {
        Ok(())
    }

    async fn suspend(&self, _: &str) -> Result<(), String> {
        self.suspension.send_modify(|suspension| suspension.suspends += 1);
        self.suspension.subscribe().wait_for(|suspension| suspension.can_end).await.unwrap();
        Ok(())
    }
}
