//! Early release of the slot of an ended job, so that an unavailable coordinator does not block other jobs.
//!
//! Log and result remain in the agent's spool. Beyond `max_unreported_jobs`, jobs keep their slots.

use std::sync::Arc;

use muster_executor::ExecutionEnvironment;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::store::JobRunId;

/// Limit on ended jobs without a slot. All jobs of a manager share it.
#[derive(Debug, Clone)]
pub(crate) struct UnreportedJobs {
    permits: Arc<Semaphore>,
    /// Sends each job whose slot was released, at most once.
    released: mpsc::UnboundedSender<JobRunId>,
}

impl UnreportedJobs {
    /// Returns the limit, and the receiver of jobs whose slots were released.
    pub(crate) fn new(max: usize) -> (Self, mpsc::UnboundedReceiver<JobRunId>) {
        let (released, receiver) = mpsc::unbounded_channel();
        (Self { permits: Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS))), released }, receiver)
    }

    /// Counts an ended job against the limit until the returned value is dropped.
    /// `None` means that the limit is reached.
    pub(super) fn admit(&self, environment: Arc<dyn ExecutionEnvironment>) -> Option<ReleasedEnvironment> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        Some(ReleasedEnvironment { environment, _permit: Some(permit) })
    }

    /// Admits a job of an earlier manager process, even beyond the limit.
    pub(super) fn readmit(&self, environment: Arc<dyn ExecutionEnvironment>) -> ReleasedEnvironment {
        ReleasedEnvironment { environment, _permit: Arc::clone(&self.permits).try_acquire_owned().ok() }
    }

    pub(super) fn notify_released(&self, run: JobRunId) {
        // The receiver is dropped when the manager ends.
        let _ = self.released.send(run);
    }
}

pub(super) struct ReleasedEnvironment {
    environment: Arc<dyn ExecutionEnvironment>,
    /// `None` if the limit was reached on restart.
    _permit: Option<OwnedSemaphorePermit>,
}

impl ReleasedEnvironment {
    pub(super) fn environment(&self) -> Arc<dyn ExecutionEnvironment> {
        Arc::clone(&self.environment)
    }
}
