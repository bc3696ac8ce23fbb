//! The scheduling engine: receives events and returns actions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use muster_job::{JobEvent, JobStatus, PipelineId, milliseconds};

use super::event::{Action, Child, Event, JobRef, JobState, PipelineOptions, RejectedEvent, ResourceMode};
use super::graph::Graph;
use super::groups::ResourceGroups;
use super::pipelines::Pipelines;
use super::restore::{RestoreError, StoredPipeline};
use super::state::{PipelineState, new_jobs};

/// Maximum time between the end of a delay and its timer event. A delayed job whose event is later fails as `stale_schedule`.
const STALE_AFTER: Duration = Duration::from_secs(60 * 60);

/// All pipelines of one project, with the state of each job. The [module](super) documentation describes how to use it.
#[derive(Debug, Clone, Default)]
pub struct Engine {
    pub(super) pipelines: Pipelines,
    pub(super) groups: ResourceGroups,
    pub(super) work: Work,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Work {
    pub(super) now: u64,
    pub(super) actions: Vec<Action>,
    /// Created jobs that may be ready to start.
    pub(super) wake: VecDeque<(PipelineId, usize)>,
    /// Jobs that became active again. The jobs that were skipped because of them wait again.
    pub(super) revived: VecDeque<(PipelineId, usize)>,
    /// By pipeline: index of a stage. In this stage and all later stages, the skipped jobs without `needs` were already
    /// revived.
    pub(super) revived_from_stage: BTreeMap<PipelineId, usize>,
    /// Resource groups that may have become free.
    pub(super) freed: BTreeSet<usize>,
    /// Pipelines whose status may have changed.
    pub(super) touched: BTreeSet<PipelineId>,
}

impl Engine {
    /// Creates an engine without pipelines.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Processes an event and returns the actions to take.
    ///
    /// `now` is the caller's time in milliseconds, on the same clock as its timers.
    ///
    /// # Errors
    /// [`RejectedEvent`] if the event is late, repeated, or not possible in this state. The engine is then unchanged.
    pub fn apply(&mut self, event: Event, now: u64) -> Result<Vec<Action>, RejectedEvent> {
        self.work.now = now;
        self.dispatch(event)?;
        self.propagate();
        Ok(std::mem::take(&mut self.work.actions))
    }

    /// Every arm checks the event before it changes anything.
    fn dispatch(&mut self, event: Event) -> Result<(), RejectedEvent> {
        match event {
            Event::PipelineCreated { pipeline, graph, options } => self.create(pipeline, *graph, options),
            Event::JobAssigned { job, supports_graceful_cancel } => self.job_assigned(job, supports_graceful_cancel),
            Event::JobRequeued { job } => self.job_requeued(job),
            Event::JobFinished { job, outcome } => self.job_finished(job, outcome),
            Event::Cancel { target } => self.cancel(target, false),
            Event::ForceCancel { target } => self.cancel(target, true),
            Event::Play { job } => self.play(job),
            Event::Unschedule { job } => self.unschedule(job),
            Event::RetryJob { job } => self.retry_by_user(job),
            Event::TimerFired { job } => self.timer_fired(job),
            Event::ChildStatusChanged { bridge, status } => self.remote_child_changed(bridge, status),
            Event::ChildFailed { bridge, reason } => self.child_failed(bridge, reason),
            Event::NewerPipeline { older } => self.cancel_for_newer_pipeline(older),
            Event::SetResourceMode { group, mode } => {
                let number = self.groups.set_mode(&group, mode);
                self.work.freed.insert(number);
                Ok(())
            }
        }
    }

    /// Returns the state of a job's newest record. `None` if `job` names a record that was replaced.
    #[must_use]
    pub fn job(&self, job: JobRef) -> Option<&JobState> {
        self.pipelines.get(job.pipeline)?.jobs.get(job.job_index).filter(|state| state.retry == job.retry)
    }

    /// Returns the newest record of the job at an index.
    #[must_use]
    pub fn newest(&self, pipeline: PipelineId, job_index: usize) -> Option<JobRef> {
        self.pipelines.job(pipeline, job_index).map(|entry| entry.job_ref())
    }

    /// Returns the newest records of all jobs of a pipeline, by job index.
    #[must_use]
    pub fn jobs(&self, pipeline: PipelineId) -> Option<&[JobState]> {
        self.pipelines.get(pipeline).map(|state| state.jobs.as_slice())
    }

    /// Returns the status of a pipeline.
    #[must_use]
    pub fn status(&self, pipeline: PipelineId) -> Option<JobStatus> {
        self.pipelines.get(pipeline).map(|state| state.status)
    }

    /// Returns whether a job of the pipeline that is allowed to fail has failed.
    #[must_use]
    pub fn has_warnings(&self, pipeline: PipelineId) -> bool {
        self.pipelines.get(pipeline).is_some_and(PipelineState::has_warnings)
    }

    /// Returns the dependency graph of a pipeline.
    #[must_use]
    pub fn graph(&self, pipeline: PipelineId) -> Option<&Graph> {
        self.pipelines.get(pipeline).map(|state| &state.graph)
    }

    /// Returns the IDs of all pipelines in the engine, oldest first.
    pub fn pipelines(&self) -> impl Iterator<Item = PipelineId> + '_ {
        self.pipelines.ids()
    }

    /// Creates an engine from stored rows.
    ///
    /// Also returns the actions that may not have been carried out before the last stop, and further actions that have become due. The
    /// order of the pipelines does not matter.
    ///
    /// # Errors
    /// [`RestoreError`] if the rows are inconsistent.
    pub fn restore(
        stored: Vec<StoredPipeline>,
        modes: &BTreeMap<String, ResourceMode>,
        now: u64,
    ) -> Result<(Self, Vec<Action>), RestoreError> {
        let mut engine = Self::new();
        for (name, mode) in modes {
            engine.groups.set_mode(name, *mode);
        }
        let actions = engine.admit(stored, now)?;
        Ok((engine, actions))
    }

    /// Adds stored pipelines, which must be complete hierarchies. Returns the same actions as [`Engine::restore`].
    ///
    /// # Errors
    /// [`RestoreError`] if the rows are inconsistent.
    pub fn admit(&mut self, mut stored: Vec<StoredPipeline>, now: u64) -> Result<Vec<Action>, RestoreError> {
        self.work.now = now;
        // Parents are older than their children.
        stored.sort_by_key(|row| row.pipeline);
        let admitted: Vec<PipelineId> = stored.iter().map(|row| row.pipeline).collect();
        for StoredPipeline { pipeline, graph, parent, status, jobs } in stored {
            if self.pipelines.contains(pipeline) {
                return Err(RestoreError::Duplicate(pipeline));
            }
            if graph.len() != jobs.len() {
                return Err(RestoreError::JobCount { pipeline, expected: graph.len(), stored: jobs.len() });
            }
            self.insert(pipeline, graph, jobs, parent);
            if let Some(state) = self.pipelines.get_mut(pipeline) {
                state.status = status;
            }
        }
        self.work.actions.extend(self.pipelines.actions_to_repeat(&admitted));
        self.work.freed.extend(self.groups.numbers());
        self.propagate();
        Ok(std::mem::take(&mut self.work.actions))
    }

    /// Removes a finished pipeline. Remove its descendants first.
    pub fn forget(&mut self, pipeline: PipelineId) {
        let Some(state) = self.pipelines.remove(pipeline) else { return };
        for entry in state.entries() {
            if let Some(group) = entry.group {
                self.groups.leave(group, entry.group_member());
            }
        }
    }

    /// Returns whether the engine equals a new one: it has no pipelines and no resource groups.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.pipelines.is_empty() && self.groups.is_empty()
    }

    fn create(&mut self, pipeline: PipelineId, graph: Graph, options: PipelineOptions) -> Result<(), RejectedEvent> {
        if self.pipelines.contains(pipeline) {
            return Err(RejectedEvent::PipelineExists(pipeline));
        }
        if let Some(bridge) = options.parent {
            self.pipelines.check_waiting_bridge(bridge)?;
        }
        let jobs = new_jobs(&graph, &options);
        self.insert(pipeline, graph, jobs, options.parent);
        if let Some(bridge) = options.parent {
            self.child_created(bridge, Child::SameProject(pipeline), JobStatus::Created);
        }
        Ok(())
    }

    pub(super) fn insert(&mut self, id: PipelineId, graph: Graph, jobs: Vec<JobState>, bridge: Option<JobRef>) {
        let parent = bridge.and_then(|bridge| self.pipelines.get(bridge.pipeline));
        let mut state = PipelineState::new(id, graph, jobs, parent, bridge);
        for (group, node) in state.groups.iter_mut().zip(&state.graph.nodes) {
            *group = node.resource_group.as_deref().map(|name| self.groups.enter(name));
        }
        self.work.wake.extend(state.candidates());
        self.work.touched.insert(id);
        let job_count = state.jobs.len();
        self.pipelines.insert(state);
        for job_index in 0..job_count {
            self.update_claim(id, job_index);
        }
    }

    fn play(&mut self, job: JobRef) -> Result<(), RejectedEvent> {
        let state = self.pipelines.newest_state(job)?;
        if state.child.is_some() {
            return Err(RejectedEvent::FollowsChild(job));
        }
        if !matches!(state.status, JobStatus::Manual | JobStatus::Scheduled) {
            return Err(muster_job::InvalidTransition { from: state.status, event: JobEvent::Enqueue }.into());
        }
        self.change(job.pipeline, job.job_index, |state| state.requested_by_user = true);
        self.start(job.pipeline, job.job_index);
        Ok(())
    }

    fn unschedule(&mut self, job: JobRef) -> Result<(), RejectedEvent> {
        let state = self.pipelines.newest_state(job)?;
        if state.child.is_some() {
            return Err(RejectedEvent::FollowsChild(job));
        }
        let to = state.status.after(JobEvent::Unschedule)?;
        self.move_to(job.pipeline, job.job_index, to, None);
        Ok(())
    }

    fn timer_fired(&mut self, job: JobRef) -> Result<(), RejectedEvent> {
        let state = self.pipelines.newest_state(job)?;
        let Some(at) = state.timer_at else {
            return Err(muster_job::InvalidTransition { from: state.status, event: JobEvent::Enqueue }.into());
        };
        let now = self.work.now;
        if now < at {
            return Err(RejectedEvent::NotDue { job, at });
        }
        if now - at > milliseconds(STALE_AFTER) {
            self.fail(job.pipeline, job.job_index, muster_job::FailureReason::StaleSchedule, None);
        } else {
            self.start(job.pipeline, job.job_index);
        }
        Ok(())
    }
}
