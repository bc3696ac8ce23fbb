//! The pipelines of an engine, and queries on them.

use std::collections::BTreeMap;

use muster_job::{JobStatus, PipelineId};
use muster_pipeline::model::Strategy;

use super::event::{Action, Child, JobRef, JobState, RejectedEvent};
use super::groups::Member;
use super::state::{JobEntry, PipelineState};

#[derive(Debug, Clone, Default)]
pub(super) struct Pipelines(BTreeMap<PipelineId, PipelineState>);

impl Pipelines {
    pub(super) fn get(&self, pipeline: PipelineId) -> Option<&PipelineState> {
        self.0.get(&pipeline)
    }

    pub(super) fn get_mut(&mut self, pipeline: PipelineId) -> Option<&mut PipelineState> {
        self.0.get_mut(&pipeline)
    }

    pub(super) fn contains(&self, pipeline: PipelineId) -> bool {
        self.0.contains_key(&pipeline)
    }

    pub(super) fn insert(&mut self, state: PipelineState) {
        self.0.insert(state.id, state);
    }

    pub(super) fn remove(&mut self, pipeline: PipelineId) -> Option<PipelineState> {
        self.0.remove(&pipeline)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = PipelineId> + '_ {
        self.0.keys().copied()
    }

    pub(super) fn job(&self, pipeline: PipelineId, job_index: usize) -> Option<JobEntry<'_>> {
        self.get(pipeline)?.entry(job_index)
    }

    /// Returns the number of jobs of a pipeline. 0 if the pipeline does not exist.
    pub(super) fn job_count(&self, pipeline: PipelineId) -> usize {
        self.get(pipeline).map_or(0, |state| state.jobs.len())
    }

    /// Returns the state of a record. Rejects a record that was replaced.
    pub(super) fn newest_state(&self, job: JobRef) -> Result<&JobState, RejectedEvent> {
        let pipeline = self.get(job.pipeline).ok_or(RejectedEvent::UnknownPipeline(job.pipeline))?;
        let state = pipeline.jobs.get(job.job_index).ok_or(RejectedEvent::UnknownJob(job))?;
        match job.retry.cmp(&state.retry) {
            std::cmp::Ordering::Equal => Ok(state),
            std::cmp::Ordering::Less => Err(RejectedEvent::Replaced { job, newest: state.retry }),
            std::cmp::Ordering::Greater => Err(RejectedEvent::UnknownJob(job)),
        }
    }

    /// Returns the status of a job. Rejects bridges.
    pub(super) fn script_status(&self, job: JobRef) -> Result<JobStatus, RejectedEvent> {
        let status = self.newest_state(job)?.status;
        if self.strategy(job).is_some() { Err(RejectedEvent::IsBridge(job)) } else { Ok(status) }
    }

    /// Returns the strategy of a bridge. `None` if the job is not a bridge.
    pub(super) fn strategy(&self, bridge: JobRef) -> Option<Strategy> {
        self.job(bridge.pipeline, bridge.job_index)?.node.bridge.map(|kind| kind.strategy)
    }

    pub(super) fn check_waiting_bridge(&self, bridge: JobRef) -> Result<(), RejectedEvent> {
        let state = self.newest_state(bridge)?;
        if self.strategy(bridge).is_none() {
            return Err(RejectedEvent::NotABridge(bridge));
        }
        if state.status != JobStatus::Pending || state.child.is_some() {
            return Err(RejectedEvent::BridgeNotWaiting { job: bridge, status: state.status });
        }
        Ok(())
    }

    /// Returns the child pipeline of a bridge. `None` if the bridge has no child, or the child is not in this engine.
    pub(super) fn local_child(&self, pipeline: PipelineId, job_index: usize) -> Option<PipelineId> {
        match self.job(pipeline, job_index)?.state.child? {
            Child::SameProject(child) => self.contains(child).then_some(child),
            Child::OtherProject => None,
        }
    }

    pub(super) fn is_below(&self, pipeline: PipelineId, bridge: Member) -> bool {
        let parent = |pipeline: PipelineId| self.get(pipeline).and_then(|state| state.parent);
        let mut ancestors = std::iter::successors(parent(pipeline), |ancestor| parent(ancestor.pipeline));
        ancestors.any(|ancestor| (ancestor.pipeline, ancestor.job_index) == (bridge.pipeline, bridge.job_index))
    }

    pub(super) fn actions_to_repeat(&self, pipelines: &[PipelineId]) -> Vec<Action> {
        let jobs = pipelines.iter().filter_map(|id| self.get(*id)).flat_map(PipelineState::entries);
        let action = |entry: JobEntry<'_>| {
            let (job, is_bridge) = (entry.job_ref(), entry.node.bridge.is_some());
            match (entry.state.status, entry.state.timer_at) {
                (JobStatus::Pending, _) if !is_bridge => Some(Action::Enqueue { job }),
                (JobStatus::Pending, _) if entry.state.child.is_none() => Some(Action::CreateChild { bridge: job }),
                (JobStatus::Scheduled, Some(at)) => Some(Action::StartTimer { job, at }),
                (JobStatus::Canceling, _) if !is_bridge => Some(Action::CancelOnRunner { job, gracefully: true }),
                _ => None,
            }
        };
        jobs.filter_map(action).collect()
    }
}
