//! Early release of the slot of a job that has ended, while the coordinator does not accept the rest of its log or its report.
//!
//! The first upload or report that fails releases the slot, so that an unavailable coordinator does not block other jobs. Log and result
//! stay in the agent's spool. `max_unreported_jobs` limits the number of such jobs. Jobs beyond the limit keep their slots.

use std::sync::Arc;

use muster_executor::ExecutionEnvironment;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::store::JobRunId;

/// Limit on the number of ended jobs that wait for their report without a slot.
/// All jobs of a manager share it.
#[derive(Debug, Clone)]
pub(crate) struct UnreportedJobs {
    permits: Arc<Semaphore>,
    /// Sends to the manager the ID of each job whose slot was released. Holds at most one message per job.
    released: mpsc::UnboundedSender<JobRunId>,
}

impl UnreportedJobs {
    /// Returns a limit of `max` jobs, and the receiver of the jobs whose slots were released.
    pub(crate) fn new(max: usize) -> (Self, mpsc::UnboundedReceiver<JobRunId>) {
        let (released, receiver) = mpsc::unbounded_channel();
        (Self { permits: Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS))), released }, receiver)
    }

    /// Admits a job that has ended in `environment`.
    /// `None` means that too many jobs wait without a slot already.
    pub(super) fn admit(&self, environment: Arc<dyn ExecutionEnvironment>) -> Option<ReleasedEnvironment> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        Some(ReleasedEnvironment { environment, _permit: Some(permit) })
    }

    /// Admits a job whose slot was released by an earlier manager process, even beyond the limit.
    pub(super) fn readmit(&self, environment: Arc<dyn ExecutionEnvironment>) -> ReleasedEnvironment {
        ReleasedEnvironment { environment, _permit: Arc::clone(&self.permits).try_acquire_owned().ok() }
    }

    pub(super) fn notify_released(&self, run: JobRunId) {
        // A manager that has ended counts no jobs.
        let _ = self.released.send(run);
    }
}

/// Environment of a job that has ended there and no longer holds a slot.
pub(super) struct ReleasedEnvironment {
    environment: Arc<dyn ExecutionEnvironment>,
    /// `None` if an earlier manager process released the slot, and the limit was reached on restart.
    _permit: Option<OwnedSemaphorePermit>,
}

impl ReleasedEnvironment {
    /// Returns the environment whose agent keeps the job's log and result.
    pub(super) fn environment(&self) -> Arc<dyn ExecutionEnvironment> {
        Arc::clone(&self.environment)
    }
}
