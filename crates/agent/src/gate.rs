//! Blocks a job before its first user command until the manager approves the start (`JobPlan.require_start_approval`).
//!
//! If the machine is lost before the approval, the manager knows that no user code has run and can reschedule the job (J2 in
//! `docs/spec/life-of-a-job.md`).

use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GateState {
    /// The job has not reached the gate, or does not need an approval.
    NotReached,
    /// The job waits at the gate.
    Waiting,
    /// The start was approved.
    Open,
}

/// The gate of one job. Clones share their state.
#[derive(Debug, Clone)]
pub(crate) struct StartGate(watch::Sender<GateState>);

impl Default for StartGate {
    fn default() -> Self {
        Self(watch::Sender::new(GateState::NotReached))
    }
}

impl StartGate {
    /// Waits until the gate is open. Cancel-safe. The job's timeout limits the wait.
    pub(crate) async fn wait_open(&self) {
        self.0.send_if_modified(|state| {
            let is_first = *state == GateState::NotReached;
            if is_first {
                *state = GateState::Waiting;
            }
            is_first
        });
        // An error cannot happen: the sender is a field of `self`.
        let _ = self.0.subscribe().wait_for(|state| *state == GateState::Open).await;
    }

    /// Waits until the job has reached the gate, or the start was approved. Returns whether the job waits at the gate. Cancel-safe.
    pub(crate) async fn wait_reached(&self) -> bool {
        let mut state = self.0.subscribe();
        state.wait_for(|state| *state != GateState::NotReached).await.is_ok_and(|state| *state == GateState::Waiting)
    }

    pub(crate) fn open(&self) {
        self.0.send_replace(GateState::Open);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn job_waits_until_the_gate_is_open() {
        let gate = StartGate::default();
        assert_eq!(gate.wait_reached().now_or_never(), None, "the job has not reached the gate yet");
        let mut job = Box::pin(gate.wait_open());
        assert!(job.as_mut().now_or_never().is_none());
        assert!(gate.wait_reached().await);
        gate.open();
        job.await;
        assert!(!gate.wait_reached().await, "the job no longer waits");
    }
}
