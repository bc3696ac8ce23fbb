use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use muster_executor::{Capacity, EnvironmentRequest, Executor, ExecutorError, Lease, LeaseRecord, SlotKey};
use muster_job::Secret;
use muster_telemetry::Build;
use muster_telemetry::spans::SpanSettings;
use serde_json::json;
use tokio::sync::watch;

use super::*;
use crate::store::Insertion;

struct NoCapacity;

#[async_trait]
impl Executor for NoCapacity {
    fn capacity(&self) -> watch::Receiver<Capacity> {
        watch::Sender::new(Capacity::of(0)).subscribe()
    }

    async fn acquire(&self, _: &SlotKey, _: &EnvironmentRequest) -> Result<Lease, ExecutorError> {
        Err(ExecutorError::NotAcquired("no environment".to_owned()))
    }

    async fn restore(&self, _: &LeaseRecord) -> Result<Lease, ExecutorError> {
        Err(ExecutorError::NotAcquired("no environment".to_owned()))
    }
}

async fn manager(home: &Path, settings: Settings) -> Manager {
    let store = Store::open(home).await.unwrap();
    let telemetry = Telemetry::new(&Build::default(), &Arc::default(), SpanSettings::default());
    Manager::new(settings, store, Registry::new().register_shared("shell", Arc::new(NoCapacity)), telemetry)
}

#[tokio::test]
async fn ended_job_is_not_counted_if_its_runner_got_a_new_token_during_the_request() {
    let home = tempfile::tempdir().unwrap();
    let settings = |token: &str| {
        let new = RunnerSettings::new("http://127.0.0.1:1/".parse().unwrap(), Secret::new(token), 0);
        let runner = Arc::new(RunnerSettings { name: "test".to_owned(), ..new });
        Settings { concurrent: 1, runners: vec![runner], ..Settings::new() }
    };
    let mut manager = manager(home.path(), settings("one")).await;
    manager.configure(settings("one"));
    let runner = Arc::clone(&manager.settings.runners[0]);
    manager.admission.set_capacity(&runner.key, 1);
    let (poll, _) = manager.admission.decide(Instant::now()).start.remove(0);
    manager.configure(Settings { runners: Vec::new(), ..settings("one") });
    manager.configure(settings("two"));
    let payload = serde_json::from_value(json!({ "id": 7, "token": "secret" })).unwrap();
    let Insertion::New(job) = manager.store.insert_job(&runner, 0, payload).unwrap() else {
        panic!("the job must be new")
    };
    let client = manager.client_for_jobs(&runner).unwrap();
    let answer = PollResult::Job { job, client };
    manager.on_poll_result(CompletedPoll { poll, runner, answer, is_repeatable: false }).unwrap();
    let new = &manager.settings.runners[0].key;
    assert!(manager.admission.has_jobs(new), "the job uses the executor of the new key");
    manager.jobs.abort_all();
    let ended = manager.jobs.join_next_with_id().await.unwrap();
    manager.on_job_ended(ended).unwrap();
    assert_eq!(manager.admission.jobs(), 0);
}

#[tokio::test]
async fn instances_get_remaining_shutdown_timeout() {
    let home = tempfile::tempdir().unwrap();
    let settings = Settings { shutdown_timeout: Duration::from_secs(30), ..Settings::new() };
    let mut manager = manager(home.path(), settings).await;
    let remaining_s = |manager: &Manager| manager.time_for_instances().as_secs();
    tokio::time::pause();
    manager.handle_command(ControlCommand::Drain);
    tokio::time::advance(Duration::from_secs(100)).await;
    assert_eq!(remaining_s(&manager), 30, "a drain must not use up the timeout");
    manager.handle_command(ControlCommand::Abort);
    tokio::time::advance(Duration::from_secs(12)).await;
    manager.handle_command(ControlCommand::Abort);
    assert_eq!(remaining_s(&manager), 18);
    tokio::time::advance(Duration::from_secs(100)).await;
    assert_eq!(remaining_s(&manager), 0);
}

#[test]
fn refused_token_is_reported_without_password_of_url() {
    let error = ManagerError::TokenRefused { url: "https://user:s3cret@host/a".parse().unwrap() };
    assert!(error.to_string().starts_with("the coordinator at https://host/a refuses the runner token"), "{error}");
}
