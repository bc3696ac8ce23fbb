//! Bridges and the child pipelines that they start (docs/spec/pipeline-yaml.md, section 5.9).

use muster_job::{FailureReason, JobEvent, JobStatus, PipelineId};
use muster_pipeline::model::Strategy;

use super::engine::Engine;
use super::event::{Child, JobRef, RejectedEvent};

/// Depth at which a pipeline cannot start child pipelines. A pipeline without a parent has depth 0.
pub(super) const MAX_DEPTH: u32 = 2;

impl Engine {
    pub(super) fn child_created(&mut self, bridge: JobRef, child: Child, status: JobStatus) {
        self.change(bridge.pipeline, bridge.job_index, |state| state.child = Some(child));
        match self.pipelines.strategy(bridge) {
            Some(Strategy::None) => self.move_to(bridge.pipeline, bridge.job_index, JobStatus::Success, None),
            _ => self.set_bridge_status(bridge, status),
        }
    }

    pub(super) fn child_failed(&mut self, bridge: JobRef, reason: FailureReason) -> Result<(), RejectedEvent> {
        self.pipelines.check_waiting_bridge(bridge)?;
        self.fail(bridge.pipeline, bridge.job_index, reason, None);
        Ok(())
    }

    /// Handles the new status of a pipeline in another project. The first status also means that the pipeline exists.
    pub(super) fn remote_child_changed(&mut self, bridge: JobRef, status: JobStatus) -> Result<(), RejectedEvent> {
        let state = self.pipelines.newest_state(bridge)?;
        if state.child != Some(Child::OtherProject) {
            self.pipelines.check_waiting_bridge(bridge)?;
            self.child_created(bridge, Child::OtherProject, status);
        } else if state.status == JobStatus::Canceled {
            // Canceling the bridge did not cancel the other project's pipeline, so the end of that pipeline changes nothing here.
            return Err(muster_job::InvalidTransition { from: JobStatus::Canceled, event: JobEvent::Run }.into());
        } else if self.pipelines.strategy(bridge) != Some(Strategy::None) {
            self.set_bridge_status(bridge, status);
        }
        Ok(())
    }

    /// Updates a bridge after its child pipeline in this engine changed its status.
    ///
    /// A retry inside the child can also move a finished bridge back to running.
    pub(super) fn follow(&mut self, bridge: JobRef, child: PipelineId, status: JobStatus) {
        let follows =
            self.pipelines.newest_state(bridge).is_ok_and(|state| state.child == Some(Child::SameProject(child)));
        if follows && self.pipelines.strategy(bridge) != Some(Strategy::None) {
            self.set_bridge_status(bridge, status);
        }
    }

    fn set_bridge_status(&mut self, bridge: JobRef, status: JobStatus) {
        let Ok(state) = self.pipelines.newest_state(bridge) else { return };
        let canceling = state.status == JobStatus::Canceling;
        let to = match (self.pipelines.strategy(bridge), status) {
            // A bridge with status `created` would be started again.
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
                self.fail(bridge.pipeline, bridge.job_index, FailureReason::UnknownFailure, None);
            }
        } else {
            self.move_to(bridge.pipeline, bridge.job_index, to, None);
        }
    }
}
