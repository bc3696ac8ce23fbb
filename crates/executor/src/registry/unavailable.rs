//! Executor for jobs whose runner no longer has an executor.

use async_trait::async_trait;
use tokio::sync::watch;

use crate::{Capacity, EnvironmentRequest, Executor, ExecutorError, Lease, LeaseRecord, SlotKey};

const REASON: &str = "its runner was removed from the configuration, or has another executor";

/// Executor that provides no environments and restores no leases.
pub(super) struct UnavailableExecutor {
    capacity: watch::Sender<Capacity>,
}

impl UnavailableExecutor {
    pub(super) fn new() -> Self {
        Self { capacity: watch::Sender::new(Capacity::of(0)) }
    }
}

#[async_trait]
impl Executor for UnavailableExecutor {
    fn capacity(&self) -> watch::Receiver<Capacity> {
        self.capacity.subscribe()
    }

    async fn acquire(&self, _: &SlotKey, _: &EnvironmentRequest) -> Result<Lease, ExecutorError> {
        Err(ExecutorError::NotAcquired(format!("no execution environment is available for the job: {REASON}")))
    }

    async fn restore(&self, record: &LeaseRecord) -> Result<Lease, ExecutorError> {
        let kind = if record.is_remote() { "instance" } else { "environment" };
        let environment = format!("{kind} {}", record.environment);
        Err(ExecutorError::Lost { environment, message: REASON.to_owned() })
    }
}
