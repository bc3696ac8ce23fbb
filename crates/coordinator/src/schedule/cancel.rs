//! Cancellation by users, by a newer pipeline and after a failed job.
//!
//! The rules are in docs/spec/pipeline-yaml.md, section 5.8, and docs/spec/runner-api.md, section 9.4.

use muster_job::{JobStatus, PipelineId};
use muster_pipeline::model::{OnNewCommit, Strategy};

use super::engine::Engine;
use super::event::{Action, Child, JobRef, Refusal, Target};

impl Engine {
    /// Cancels a job or a whole pipeline. `force` does not wait for runners that cancel gracefully.
    pub(super) fn cancel(&mut self, target: Target, force: bool) -> Result<(), Refusal> {
        match target {
            Target::Pipeline(pipeline) if !self.pipelines.contains_key(&pipeline) => {
                return Err(Refusal::UnknownPipeline(pipeline));
            }
            Target::Pipeline(pipeline) => self.cancel_pipeline(pipeline, force),
            Target::Job(job) => {
                self.newest_state(job)?;
                self.cancel_job(job.pipeline, job.place, force);
            }
        }
        Ok(())
    }

    /// Cancels all unfinished jobs of a pipeline and of its descendants.
    pub(super) fn cancel_pipeline(&mut self, pipeline: PipelineId, force: bool) {
        for place in 0..self.places(pipeline) {
            self.cancel_job(pipeline, place, force);
            if let Some(child) = self.child_here(pipeline, place) {
                self.cancel_pipeline(child, force);
            }
        }
    }

    fn cancel_job(&mut self, pipeline: PipelineId, place: usize, force: bool) {
        let Some(state) = self.pipelines.get(&pipeline) else { return };
        let job = state.job_ref(place);
        let JobRef { pipeline, place, .. } = job;
        let winds_down = state.jobs[place].winds_down && !force;
        match state.jobs[place].status {
            status if status.is_complete() => {}
            _ if state.jobs[place].child.is_some() => self.cancel_waiting_bridge(job, force),
            JobStatus::Running if winds_down => {
                self.move_to(pipeline, place, JobStatus::Canceling, None);
                self.work.actions.push(Action::CancelOnRunner { job, gracefully: true });
            }
            JobStatus::Canceling if !force => {}
            JobStatus::Running | JobStatus::Canceling => {
                self.move_to(pipeline, place, JobStatus::Canceled, None);
                self.work.actions.push(Action::CancelOnRunner { job, gracefully: false });
            }
            _ => self.move_to(pipeline, place, JobStatus::Canceled, None),
        }
    }

    /// Cancels a bridge together with its child pipeline. The bridge ends when the child does.
    fn cancel_waiting_bridge(&mut self, bridge: JobRef, force: bool) {
        let Some(child) = self.child_here(bridge.pipeline, bridge.place) else {
            return self.move_to(bridge.pipeline, bridge.place, JobStatus::Canceled, None);
        };
        if self.strategy(bridge) == Some(Strategy::Depend) {
            self.move_to(bridge.pipeline, bridge.place, JobStatus::Canceling, None);
        }
        self.cancel_pipeline(child, force);
        if let Some(status) = self.pipelines.get(&child).map(super::state::PipelineState::composite) {
            self.follow(bridge, child, status);
        }
    }

    /// Applies `auto_cancel:on_new_commit` of an older pipeline after a newer commit of the same ref got a pipeline.
    pub(super) fn newer_pipeline(&mut self, older: PipelineId) -> Result<(), Refusal> {
        if !self.pipelines.contains_key(&older) {
            return Err(Refusal::UnknownPipeline(older));
        }
        self.make_room(older);
        Ok(())
    }

    /// Cancels the jobs of a superseded pipeline and of its descendants.
    ///
    /// Each descendant follows its own configuration. A bridge is not canceled itself: it runs as long as its child pipeline.
    fn make_room(&mut self, pipeline: PipelineId) {
        let Some(state) = self.pipelines.get(&pipeline) else { return };
        let all = match state.graph.auto_cancel.on_new_commit {
            OnNewCommit::None => return,
            OnNewCommit::Interruptible => false,
            OnNewCommit::Conservative => {
                let mut jobs = state.jobs.iter().zip(&state.graph.nodes);
                if jobs.any(|(job, node)| job.started && !node.interruptible) {
                    return;
                }
                true
            }
        };
        for place in 0..self.places(pipeline) {
            let Some(state) = self.pipelines.get(&pipeline) else { return };
            let interruptible = state.graph.nodes[place].interruptible;
            if let Some(child) = self.child_here(pipeline, place) {
                self.make_room(child);
            } else if all || interruptible {
                self.cancel_job(pipeline, place, false);
            }
        }
    }

    fn places(&self, pipeline: PipelineId) -> usize {
        self.pipelines.get(&pipeline).map_or(0, |state| state.jobs.len())
    }

    fn child_here(&self, pipeline: PipelineId, place: usize) -> Option<PipelineId> {
        match self.pipelines.get(&pipeline)?.jobs.get(place)?.child? {
            Child::Here(child) => self.pipelines.contains_key(&child).then_some(child),
            Child::Elsewhere => None,
        }
    }
}
