//! Bridges and the pipelines that they start (pipeline-yaml 5.9).

use muster_job::{FailureReason, JobEvent, JobStatus, PipelineId};
use muster_pipeline::model::Strategy;

use super::engine::Engine;
use super::event::{Child, JobRef, Refusal};

/// Pipelines below a pipeline may start pipelines of their own; those may not.
pub(super) const DEPTH_MAX: u32 = 2;

impl Engine {
    /// The bridge asked for its pipeline and is still there to have it.
    pub(super) fn check_waiting_bridge(&self, bridge: JobRef) -> Result<(), Refusal> {
        let state = self.newest_state(bridge)?;
        let (status, child) = (state.status, state.child);
        if self.strategy(bridge).is_none() {
            return Err(Refusal::NotABridge(bridge));
        }
        if status != JobStatus::Pending || child.is_some() {
            return Err(Refusal::BridgeNotWaiting { job: bridge, status });
        }
        Ok(())
    }

    /// The pipeline that a waiting bridge asked for is there.
    pub(super) fn child_exists(&mut self, bridge: JobRef, child: Child, status: JobStatus) {
        self.change(bridge.pipeline, bridge.place, |state| state.child = Some(child));
        match self.strategy(bridge) {
            Some(Strategy::None) => self.move_to(bridge.pipeline, bridge.place, JobStatus::Success, None),
            _ => self.show(bridge, status),
        }
    }

    pub(super) fn child_failed(&mut self, bridge: JobRef, reason: FailureReason) -> Result<(), Refusal> {
        self.check_waiting_bridge(bridge)?;
        self.fail(bridge.pipeline, bridge.place, reason, None);
        Ok(())
    }

    pub(super) fn child_elsewhere(&mut self, bridge: JobRef, status: JobStatus) -> Result<(), Refusal> {
        let state = self.newest_state(bridge)?;
        if state.child != Some(Child::Elsewhere) {
            self.check_waiting_bridge(bridge)?;
            self.child_exists(bridge, Child::Elsewhere, status);
        } else if state.status == JobStatus::Canceled {
            // Whoever canceled the bridge did not cancel the other project's pipeline; its end is no news here.
            return Err(muster_job::InvalidTransition { from: JobStatus::Canceled, event: JobEvent::Run }.into());
        } else if self.strategy(bridge) != Some(Strategy::None) {
            self.show(bridge, status);
        }
        Ok(())
    }

    /// A pipeline in this engine has a new status: the bridge that waits for it follows, also when a retry inside the
    /// child brings an ended bridge back to life.
    pub(super) fn follow(&mut self, bridge: JobRef, child: PipelineId, status: JobStatus) {
        let waits = self.newest_state(bridge).is_ok_and(|state| state.child == Some(Child::Here(child)));
        if waits && self.strategy(bridge) != Some(Strategy::None) {
            self.show(bridge, status);
        }
    }

    /// Gives a bridge the status that its strategy makes of its pipeline's.
    fn show(&mut self, bridge: JobRef, status: JobStatus) {
        let Ok(state) = self.newest_state(bridge) else { return };
        let canceling = state.status == JobStatus::Canceling;
        let to = match (self.strategy(bridge), status) {
            // A created bridge would be given its turn again.
            (Some(Strategy::Mirror), JobStatus::Created) => JobStatus::Running,
            (Some(Strategy::Mirror), status) => status,
            (_, status) if canceling && !status.is_complete() => return,
            (_, _) if canceling => JobStatus::Canceled,
            (_, JobStatus::Success | JobStatus::Canceled) => status,
            (_, JobStatus::Failed | JobStatus::Skipped) => JobStatus::Failed,
            _ => JobStatus::Running,
        };
        if to == JobStatus::Failed {
            if state.status != to {
                self.fail(bridge.pipeline, bridge.place, FailureReason::UnknownFailure, None);
            }
        } else {
            self.move_to(bridge.pipeline, bridge.place, to, None);
        }
    }

    /// How a bridge follows its pipeline; `None` for a job that is no bridge.
    pub(super) fn strategy(&self, bridge: JobRef) -> Option<Strategy> {
        self.pipelines.get(&bridge.pipeline)?.graph.nodes.get(bridge.place)?.bridge.map(|kind| kind.strategy)
    }
}
