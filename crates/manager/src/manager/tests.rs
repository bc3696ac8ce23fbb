use std::time::Duration;

use async_trait::async_trait;
use muster_executor::{Capacity, EnvironmentRequest, Executor, ExecutorError, Lease, LeaseRecord, SlotKey};
use muster_telemetry::Build;
use muster_telemetry::spans::SpanSettings;
use tokio::sync::watch;

use super::*;

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

#[tokio::test]
async fn instances_get_remaining_shutdown_timeout() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    let telemetry = Telemetry::new(&Build::default(), &Arc::default(), SpanSettings::default());
    let settings = Settings { shutdown_timeout: Duration::from_secs(30), ..Settings::new() };
    let mut manager =
        Manager::new(settings, store, Registry::new().register_shared("shell", Arc::new(NoCapacity)), telemetry);
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
