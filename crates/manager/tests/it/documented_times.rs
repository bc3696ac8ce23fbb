//! Times that the documentation guarantees, on a clock that the test controls.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_agent_api::client::AgentConnection;
use muster_agent_api::result::Outcome;
use muster_config::settings::{RunnerSettings, Settings};
use muster_executor::instance::UNRESPONSIVE_TIMEOUT;
use muster_executor::registry::Registry;
use muster_executor::{
    Capacity, Directories, EnvironmentRequest, ExecutionEnvironment, Executor, ExecutorError, Lease, LeaseRecord,
    Replaceable, SlotKey, Slots,
};
use muster_job::{JobStatus, Secret};
use muster_manager::store::Store;
use muster_manager::{Control, Manager};
use muster_runner_api::test_support::{Call, Fault, MemoryCoordinator, RUNNER_TOKEN, Served, serve};
use muster_telemetry::spans::SpanSettings;
use muster_telemetry::{Build, Telemetry};
use serde_json::json;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::agent::FakeAgent;
use crate::harness::{JOB, RUN};

/// Step by which the clock advances.
const STEP: Duration = Duration::from_millis(20);
/// Scheduler turns in one step. Calls over the loopback interface take several turns, but no time.
const TURNS: usize = 200;

/// A manager with one runner, which runs its jobs on an instance.
struct Fixture {
    coordinator: Arc<MemoryCoordinator>,
    agent: FakeAgent,
    /// Whether no data passes through the instance's network.
    frozen: watch::Sender<bool>,
    _home: tempfile::TempDir,
    _served: Served,
    _tasks: JoinSet<()>,
}

impl Fixture {
    /// If `has_slots` is false, jobs wait for an instance.
    async fn start(has_slots: bool) -> Self {
        let coordinator = Arc::new(MemoryCoordinator::new(Duration::from_secs(3600)));
        let served = serve(coordinator.clone()).await.unwrap();
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("agent.sock");
        let agent = FakeAgent::start(&socket);
        let frozen = watch::Sender::new(false);
        let runner = RunnerSettings::new(served.url.clone(), Secret::new(RUNNER_TOKEN), 1);
        let settings = Settings { runners: vec![Arc::new(runner)], ..Settings::new() };
        let environment = Arc::new(RemoteInstance { home: home.path().to_owned(), socket, frozen: frozen.subscribe() });
        let capacity = watch::Sender::new(Capacity::of(1));
        let executor = InstanceStubExecutor { slots: Slots::new(1), capacity, environment, has_slots };
        let executors = Registry::new().register_shared("shell", Arc::new(executor));
        let telemetry = Telemetry::new(&Build::default(), &Arc::default(), SpanSettings::default());
        let store = Store::open(home.path()).await.unwrap();
        let manager = Manager::new(settings, store, executors, telemetry);
        let mut tasks = JoinSet::new();
        let (control, commands) = Control::new();
        tasks.spawn(async move {
            // The manager runs as long as its control exists.
            let _control = control;
            manager.run(commands).await.unwrap();
        });
        Self { coordinator, agent, frozen, _home: home, _served: served, _tasks: tasks }
    }

    /// `extension` is Muster's extension of the payload.
    fn push(&self, extension: &serde_json::Value) {
        let payload = json!({
            "id": JOB.0, "token": "secret", "steps": [{ "name": "script", "script": ["true"] }],
            "features": { "failure_reasons": ["job_canceled", "runner_system_failure"] }, "muster": extension
        });
        self.coordinator.enqueue(serde_json::from_value(payload).unwrap());
    }

    /// Returns the time until the job has ended at the coordinator.
    ///
    /// It does not depend on the speed of the machine.
    async fn until_ended(&self) -> Duration {
        // A paused clock does not advance automatically while a thread is busy.
        let (busy, idle) = std::sync::mpsc::channel::<()>();
        let waiting = tokio::task::spawn_blocking(move || idle.recv());
        tokio::time::pause();
        let mut passed = Duration::ZERO;
        while !self.coordinator.job(JOB).unwrap().status.is_complete() {
            assert!(passed < Duration::from_secs(600), "{:#?}", self.coordinator.job(JOB));
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
            tokio::time::advance(STEP).await;
            passed += STEP;
        }
        tokio::time::resume();
        drop(busy);
        let _ = waiting.await;
        passed
    }
}

/// An instance whose connection a test can freeze.
struct RemoteInstance {
    home: PathBuf,
    socket: PathBuf,
    frozen: watch::Receiver<bool>,
}

#[async_trait]
impl ExecutionEnvironment for RemoteInstance {
    async fn connect(&self) -> Result<AgentConnection, ExecutorError> {
        let (manager_stream, mut instance_stream) = tokio::io::duplex(1 << 16);
        let (socket, mut frozen) = (self.socket.clone(), self.frozen.clone());
        tokio::spawn(async move {
            let mut agent = UnixStream::connect(socket).await.unwrap();
            tokio::select! {
                biased;
                // Nothing arrives anymore, not even the end of the connection.
                _ = async { frozen.wait_for(|frozen| *frozen).await.is_ok() } => std::future::pending().await,
                _ = tokio::io::copy_bidirectional(&mut instance_stream, &mut agent) => {}
            }
        });
        Ok(AgentConnection::from_stream("i1".to_owned(), manager_stream).await?)
    }

    async fn directories(&self) -> Result<Directories, ExecutorError> {
        Ok(Directories { builds: self.home.join("builds"), cache: self.home.join("cache"), shared: true })
    }

    fn replaceable(&self) -> Option<&dyn Replaceable> {
        Some(self)
    }
}

impl Replaceable for RemoteInstance {
    fn unresponsive_timeout(&self) -> Duration {
        UNRESPONSIVE_TIMEOUT
    }

    fn retire(&self, _: &str) {}
}

struct InstanceStubExecutor {
    slots: Slots,
    capacity: watch::Sender<Capacity>,
    environment: Arc<RemoteInstance>,
    has_slots: bool,
}

impl InstanceStubExecutor {
    fn lease(&self, held_slot: muster_executor::HeldSlot) -> Lease {
        let record = LeaseRecord::remote("g", "i1", held_slot.slot.clone(), "key");
        Lease::new(record, self.environment.clone(), Box::new(held_slot))
    }
}

#[async_trait]
impl Executor for InstanceStubExecutor {
    fn capacity(&self) -> watch::Receiver<Capacity> {
        self.capacity.subscribe()
    }

    async fn acquire(&self, key: &SlotKey, _: &EnvironmentRequest) -> Result<Lease, ExecutorError> {
        if !self.has_slots {
            return std::future::pending().await;
        }
        Ok(self.lease(self.slots.take(key).unwrap()))
    }

    async fn restore(&self, record: &LeaseRecord) -> Result<Lease, ExecutorError> {
        Ok(self.lease(self.slots.reacquire(&record.slot).unwrap()))
    }
}

/// `docs/explanation/crash-safety.md` documents 13 s: 6 s until the connection is closed, and [`UNRESPONSIVE_TIMEOUT`]. 2 s remain for the
/// report.
#[tokio::test]
async fn job_on_unresponsive_instance_ends_within_15_s() {
    let fixture = Fixture::start(true).await;
    fixture.push(&json!({ "trace_interval_ms": 20 }));
    fixture.agent.wait_for(|spool| spool.started == [RUN]).await;
    fixture.agent.write(RUN, "it began\n");
    fixture.coordinator.wait_for(JOB, |job| job.text().contains("it began")).await;
    fixture.frozen.send_replace(true);
    let took = fixture.until_ended().await;
    let job = fixture.coordinator.job(JOB).unwrap();
    assert_eq!(
        job.reports().last().unwrap().failure_reason.as_deref(),
        Some("runner_system_failure"),
        "{}",
        job.text()
    );
    assert!(job.text().contains("it does not respond"), "{}", job.text());
    assert!((UNRESPONSIVE_TIMEOUT..=Duration::from_secs(15)).contains(&took), "{took:?}");
}

#[tokio::test]
async fn job_waiting_for_instance_is_canceled_within_a_second() {
    let fixture = Fixture::start(false).await;
    fixture.push(&json!({ "trace_interval_ms": 20 }));
    fixture.coordinator.wait_for(JOB, |job| job.status == JobStatus::Running).await;
    fixture.coordinator.set_status(JOB, JobStatus::Canceling);
    let took = fixture.until_ended().await;
    let job = fixture.coordinator.job(JOB).unwrap();
    assert_eq!(job.reports().last().unwrap().failure_reason.as_deref(), Some("job_canceled"), "{}", job.text());
    assert!(took <= Duration::from_secs(1) + STEP, "{took:?}");
}

#[tokio::test]
async fn recovered_coordinator_has_everything_within_one_interval() {
    // The coordinator sets this interval in each answer.
    let interval = Duration::from_secs(1);
    for failures in [1, 4, 7] {
        let fixture = Fixture::start(true).await;
        fixture.push(&json!(null));
        fixture.agent.wait_for(|spool| spool.started == [RUN]).await;
        fixture.agent.write(RUN, "it began\n");
        fixture.coordinator.wait_for(JOB, |job| job.text().contains("it began")).await;
        fixture.coordinator.fail(Call::AppendTrace, [Fault::FailBefore; 1000]);
        fixture.coordinator.fail(Call::UpdateJob, [Fault::FailBefore; 1000]);
        fixture.agent.write(RUN, "all of it\n");
        fixture.agent.finish(RUN, Outcome::Success);
        // The clock is not paused during this wait, because the agent behaves like another process.
        fixture.coordinator.wait_for_faults_left(Call::AppendTrace, 1000 - failures).await;
        fixture.coordinator.clear_faults();
        let took = fixture.until_ended().await;
        let job = fixture.coordinator.job(JOB).unwrap();
        assert_eq!((job.status, job.text().as_str()), (JobStatus::Success, "it began\nall of it\n"));
        assert!(took <= interval + STEP, "after {failures} failures: {took:?}");
    }
}
