//! Ended jobs that could not be closed at their agents yet. If the manager exits, its next start closes them.

use tokio::sync::watch;

/// Number of unclosed jobs. All jobs of a manager share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnclosedJobs(watch::Sender<usize>);

impl UnclosedJobs {
    pub(crate) fn subscribe(&self) -> watch::Receiver<usize> {
        self.0.subscribe()
    }

    /// Counts a job until the returned value is dropped.
    pub(super) fn count_job(&self) -> UnclosedJob {
        self.0.send_modify(|jobs| *jobs += 1);
        UnclosedJob(self.0.clone())
    }
}

pub(super) struct UnclosedJob(watch::Sender<usize>);

impl Drop for UnclosedJob {
    fn drop(&mut self) {
        self.0.send_modify(|jobs| *jobs -= 1);
    }
}
