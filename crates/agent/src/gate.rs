//! What stands before a job's first user command, where the manager wants to be asked (`JobPlan.ask_first`): a manager that has
//! not opened it knows that nothing of the user's has run, also when the machine is lost (invariant J2).

use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The job is not there yet, or never asks.
    Before,
    /// The job waits.
    Asking,
    /// It may go on.
    Open,
}

/// The gate of one job. Clones are the same gate.
#[derive(Debug, Clone)]
pub(crate) struct Gate(watch::Sender<Stage>);

impl Default for Gate {
    fn default() -> Self {
        Self(watch::Sender::new(Stage::Before))
    }
}

impl Gate {
    /// Waits until it is open. Cancel-safe. The job's own limits bound it.
    pub(crate) async fn pass(&self) {
        self.0.send_if_modified(|stage| {
            let comes = *stage == Stage::Before;
            if comes {
                *stage = Stage::Asking;
            }
            comes
        });
        // The sender lives in `self`.
        let _ = self.0.subscribe().wait_for(|stage| *stage == Stage::Open).await;
    }

    /// Waits until the job stands before it, or has passed: whether it waits. Cancel-safe.
    pub(crate) async fn reached(&self) -> bool {
        let mut stage = self.0.subscribe();
        stage.wait_for(|stage| *stage != Stage::Before).await.is_ok_and(|stage| *stage == Stage::Asking)
    }

    pub(crate) fn open(&self) {
        self.0.send_replace(Stage::Open);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_job_passes_when_it_was_let_and_not_before() {
        let gate = Gate::default();
        assert_eq!(gate.reached().now_or_never(), None, "the job is not there yet");
        let mut job = Box::pin(gate.pass());
        assert!(job.as_mut().now_or_never().is_none());
        assert!(gate.reached().await);
        gate.open();
        job.await;
        assert!(!gate.reached().await, "it does not wait any more");
    }
}
