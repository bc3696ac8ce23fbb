//! Blocks a job before its first user command until the manager approves the start (`JobPlan.require_start_approval`).
//!
//! If the machine is lost before the approval, the manager can reschedule the job (J2 in `docs/spec/life-of-a-job.md`).

use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GateState {
    NotReached,
    Waiting,
    Open,
}

/// Clones share their state.
#[derive(Debug, Clone)]
pub(crate) struct StartGate(watch::Sender<GateState>);

impl Default for StartGate {
    fn default() -> Self {
        Self(watch::Sender::new(GateState::NotReached))
    }
}

impl StartGate {
    /// Waits until the gate is open. Only the job's timeout limits the wait. Cancel-safe.
    pub(crate) async fn wait_open(&self) {
        self.0.send_if_modified(|state| {
            let is_first = *state == GateState::NotReached;
            if is_first {
                *state = GateState::Waiting;
            }
            is_first
        });
        // Cannot fail, because `self` has the sender.
        let _ = self.0.subscribe().wait_for(|state| *state == GateState::Open).await;
    }

    /// Waits until the job has reached the gate, or the gate is open. Returns whether the job waits. Cancel-safe.
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
