//! Blocks a job before its first user command until the manager approves the start (`JobPlan.require_start_approval`).
//!
//! If the machine is lost before the approval, the manager knows that no user code has run and can reschedule the job (J2 in
//! `docs/spec/life-of-a-job.md`).

use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The job has not reached the gate, or does not need an approval.
    Before,
    /// The job waits at the gate.
    Asking,
    /// The start was approved.
    Open,
}

/// The gate of one job. Clones share their state.
#[derive(Debug, Clone)]
pub(crate) struct Gate(watch::Sender<Stage>);

impl Default for Gate {
    fn default() -> Self {
        Self(watch::Sender::new(Stage::Before))
    }
}

impl Gate {
    /// Waits until the gate is open. Cancel-safe. The timeout of the job bounds the time.
    pub(crate) async fn pass(&self) {
        self.0.send_if_modified(|stage| {
            let comes = *stage == Stage::Before;
            if comes {
                *stage = Stage::Asking;
            }
            comes
        });
        // The sender is a field of `self`.
        let _ = self.0.subscribe().wait_for(|stage| *stage == Stage::Open).await;
    }

    /// Waits until the job has reached the gate. Returns whether it waits there. Cancel-safe.
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
