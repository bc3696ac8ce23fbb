//! Cancellation by users, by a newer pipeline and after a failed job.
//!
//! The rules are in docs/spec/pipeline-yaml.md, section 5.8, and docs/spec/runner-api.md, section 9.4.

use muster_job::{JobStatus, PipelineId};
use muster_pipeline::model::{OnNewCommit, Strategy};

use super::engine::Engine;
use super::event::{Action, JobRef, RejectedEvent, Target};
use super::state::PipelineState;

impl Engine {
    /// Cancels a job or a whole pipeline. `force` does not wait for runners that cancel gracefully.
    pub(super) fn cancel(&mut self, target: Target, force: bool) -> Result<(), RejectedEvent> {
        match target {
            Target::Pipeline(pipeline) if !self.pipelines.contains(pipeline) => {
                return Err(RejectedEvent::UnknownPipeline(pipeline));
            }
            Target::Pipeline(pipeline) => self.cancel_pipeline(pipeline, force),
            Target::Job(job) => {
                self.pipelines.newest_state(job)?;
                self.cancel_job(job.pipeline, job.job_index, force);
            }
        }
        Ok(())
    }

    pub(super) fn cancel_pipeline(&mut self, pipeline: PipelineId, force: bool) {
        for job_index in 0..self.pipelines.job_count(pipeline) {
            self.cancel_job(pipeline, job_index, force);
            if let Some(child) = self.pipelines.local_child(pipeline, job_index) {
                self.cancel_pipeline(child, force);
            }
        }
    }

    fn cancel_job(&mut self, pipeline: PipelineId, job_index: usize, force: bool) {
        let Some(entry) = self.pipelines.job(pipeline, job_index) else { return };
        let job = entry.job_ref();
        let gracefully = entry.state.supports_graceful_cancel && !force;
        match entry.state.status {
            status if status.is_complete() => {}
            _ if entry.state.child.is_some() => self.cancel_bridge_with_child(job, force),
            JobStatus::Running if gracefully => {
                self.move_to(pipeline, job_index, JobStatus::Canceling, None);
                self.work.actions.push(Action::CancelOnRunner { job, gracefully: true });
            }
            JobStatus::Canceling if !force => {}
            JobStatus::Running | JobStatus::Canceling => {
                self.move_to(pipeline, job_index, JobStatus::Canceled, None);
                self.work.actions.push(Action::CancelOnRunner { job, gracefully: false });
            }
            _ => self.move_to(pipeline, job_index, JobStatus::Canceled, None),
        }
    }

    /// Cancels a bridge together with its child pipeline, and ends the bridge when the child ends.
    ///
    /// If the pipeline is in another project, only the bridge is canceled, and ends immediately.
    fn cancel_bridge_with_child(&mut self, bridge: JobRef, force: bool) {
        let Some(child) = self.pipelines.local_child(bridge.pipeline, bridge.job_index) else {
            return self.move_to(bridge.pipeline, bridge.job_index, JobStatus::Canceled, None);
        };
        if self.pipelines.strategy(bridge) == Some(Strategy::Depend) {
            self.move_to(bridge.pipeline, bridge.job_index, JobStatus::Canceling, None);
        }
        self.cancel_pipeline(child, force);
        if let Some(status) = self.pipelines.get(child).map(PipelineState::composite) {
            self.follow(bridge, child, status);
        }
    }

    /// Applies `auto_cancel:on_new_commit` of an older pipeline after a newer commit of the same ref got a pipeline.
    pub(super) fn cancel_for_newer_pipeline(&mut self, older: PipelineId) -> Result<(), RejectedEvent> {
        if !self.pipelines.contains(older) {
            return Err(RejectedEvent::UnknownPipeline(older));
        }
        self.cancel_superseded(older);
        Ok(())
    }

    /// Cancels the jobs of a superseded pipeline and of its descendants.
    ///
    /// For each descendant, its own configuration applies. A bridge with a child pipeline is not canceled itself: it ends with its child.
    fn cancel_superseded(&mut self, pipeline: PipelineId) {
        let Some(state) = self.pipelines.get(pipeline) else { return };
        let cancels_all = match state.graph.auto_cancel.on_new_commit {
            OnNewCommit::None => return,
            OnNewCommit::Interruptible => false,
            OnNewCommit::Conservative => {
                if state.entries().any(|entry| entry.state.started && !entry.node.interruptible) {
                    return;
                }
                true
            }
        };
        for job_index in 0..self.pipelines.job_count(pipeline) {
            let Some(entry) = self.pipelines.job(pipeline, job_index) else { return };
            let interruptible = entry.node.interruptible;
            if let Some(child) = self.pipelines.local_child(pipeline, job_index) {
                self.cancel_superseded(child);
            } else if cancels_all || interruptible {
                self.cancel_job(pipeline, job_index, false);
            }
        }
    }
}
