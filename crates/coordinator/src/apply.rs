//! Applies events to the engine, and carries out its actions on rows, queue and timers.

use std::collections::BTreeSet;

use muster_job::{FailureReason, JobId, JobStatus, PipelineId, ProjectId};
use muster_pipeline::model::Work;

use crate::actor::Actor;
use crate::clock::{Timestamp, engine_time, from_millis};
use crate::facts::JobKind;
use crate::outbox::JobChange;
use crate::queue::Requirement;
use crate::schedule::{Action, Event, JobRef, JobState, Outcome, RejectedEvent};
use crate::store::{JobDetail, JobRow};
use crate::timers::Timer;

impl Actor {
    pub(crate) fn apply_job_event(
        &mut self,
        job: JobId,
        event: impl FnOnce(JobRef) -> Event,
    ) -> Result<(), RejectedEvent> {
        let Some(row) = self.state.jobs.get(&job) else {
            let unknown_job = JobRef { pipeline: PipelineId(0), job_index: 0, retry: 0 };
            return Err(RejectedEvent::UnknownJob(unknown_job));
        };
        let (job, pipeline) = (row.job_ref(), row.pipeline);
        self.apply_event(pipeline, event(job))
    }

    pub(crate) fn apply_event(&mut self, pipeline: PipelineId, event: Event) -> Result<(), RejectedEvent> {
        let project = self.project_of(pipeline).ok_or(RejectedEvent::UnknownPipeline(pipeline))?;
        let actions = self.apply_to_engine(project, event)?;
        self.carry_out(project, &actions);
        Ok(())
    }

    /// Applies an event without carrying out the actions, for pipelines that have no rows yet.
    pub(crate) fn apply_to_engine(&mut self, project: ProjectId, event: Event) -> Result<Vec<Action>, RejectedEvent> {
        let now = engine_time(self.now());
        self.state.engines.entry(project).or_default().apply(event, now)
    }

    pub(crate) fn project_of(&self, pipeline: PipelineId) -> Option<ProjectId> {
        self.state.pipelines.get(&pipeline).map(|row| row.spec.project.id)
    }

    /// Returns the engine's state of a job. `None` if a retry has replaced `job`.
    fn engine_state(&self, project: ProjectId, job: JobRef) -> Option<JobState> {
        self.state.engines.get(&project)?.job(job).cloned()
    }

    /// Carries out actions in memory. Effects outside the coordinator follow after the write.
    pub(crate) fn carry_out(&mut self, project: ProjectId, actions: &[Action]) {
        for action in actions {
            match *action {
                Action::JobStatusChanged { job, to, reason, .. } => self.status_changed(project, job, to, reason),
                Action::CreateRetry { old, new } => self.create_retry(project, old, new),
                Action::Enqueue { job } => self.enqueue(job),
                Action::StartTimer { job, at } => {
                    if let Some(&id) = self.state.ids.get(&job) {
                        self.timers.add(timestamp(at), Timer::Delayed(id));
                    }
                }
                Action::CreateChild { bridge } => {
                    if let Some(&id) = self.state.ids.get(&bridge) {
                        self.children.request(id);
                    }
                }
                // The manager learns of the cancellation from `Job-Status` in the answer to its next request. If it
                // sends no request in time, `Timer::Runner` ends the job.
                Action::CancelOnRunner { .. } => {}
                Action::PipelineStatusChanged { pipeline, to, warnings, .. } => {
                    self.pipeline_status_changed(pipeline, to, warnings);
                }
            }
        }
    }

    fn status_changed(&mut self, project: ProjectId, job: JobRef, to: JobStatus, reason: Option<FailureReason>) {
        let now = self.now();
        let state = self.engine_state(project, job);
        let Some(&id) = self.state.ids.get(&job) else {
            tracing::error!(%job, "job of the engine has no row");
            return;
        };
        let Some(row) = self.state.job_mut(id) else { return };
        match state {
            Some(state) => row.detail.state = state,
            None => row.detail.state.status = to,
        }
        row.failure_reason = reason;
        row.finished_at = to.is_complete().then_some(now);
        match to {
            JobStatus::Created => (row.queued_at, row.started_at, row.detail.message) = (None, None, None),
            JobStatus::Pending => (row.queued_at, row.started_at) = (Some(now), None),
            JobStatus::Running => row.started_at = row.started_at.or(Some(now)),
            _ => {}
        }
        if to != JobStatus::Pending {
            self.queue.remove(id);
        }
        let change = match to {
            JobStatus::Pending => Some(JobChange::Queued),
            to if to.is_complete() => Some(JobChange::Ended { status: to, reason, exit_code: None }),
            // `JobChange::Assigned` reports this change.
            JobStatus::Running if row.kind == JobKind::Script => None,
            to => Some(JobChange::StatusChanged { to }),
        };
        if let Some(change) = change {
            self.state.add_event(now, id, change);
        }
        let Some(row) = self.state.job_mut(id) else { return };
        if to.is_complete() {
            let key = row.runner.zip(row.detail.idempotency_key.take());
            self.blobs.close_trace(id);
            self.state.last_contact.remove(&id);
            if let Some(key) = key {
                self.state.jobs_by_key.remove(&key);
            }
        }
    }

    fn create_retry(&mut self, project: ProjectId, old: JobRef, new: JobRef) {
        let Some(state) = self.engine_state(project, new) else { return };
        let Some(&old_id) = self.state.ids.get(&old) else { return };
        let (id, now) = (self.state.new_job_id(), self.now());
        let Some(row) = self.state.job_mut(old_id) else { return };
        row.detail.retried = true;
        let (position, names) = ((row.pipeline, row.job_index), (row.name.clone(), row.stage.clone()));
        let detail = JobDetail { variables: row.detail.variables.clone(), ..JobDetail::new(state) };
        let row = JobRow { attempt: new.retry + 1, ..JobRow::new(id, position, names, row.kind, detail, now) };
        self.state.add_event(now, old_id, JobChange::Replaced { by: id });
        self.state.add_new(row);
    }

    fn enqueue(&mut self, job: JobRef) {
        let Some(row) = self.state.ids.get(&job).and_then(|id| self.state.jobs.get(id)) else { return };
        let Some(pipeline) = self.state.pipelines.get(&row.pipeline) else { return };
        let Some(compiled) = pipeline.compiled.jobs.get(row.job_index) else { return };
        let requirement =
            Requirement { tags: compiled.tags.iter().cloned().collect(), protected: pipeline.spec.ref_protected() };
        let priority = self.state.priorities.get(&row.pipeline).and_then(|all| all.get(row.job_index)).copied();
        let (id, queued_at) = (row.id, row.queued_at.unwrap_or(row.created_at));
        self.queue.add(id, requirement, priority.unwrap_or(0));
        self.timers.add(queued_at + self.options.limits.pending_without_runner, Timer::Pending(id));
    }

    fn pipeline_status_changed(&mut self, pipeline: PipelineId, to: JobStatus, warnings: bool) {
        let now = self.now();
        let Some(row) = self.state.pipeline_mut(pipeline) else { return };
        row.status = to;
        row.detail.warnings = warnings;
        row.finished_at = to.is_complete().then_some(now);
    }

    pub(crate) fn add_job_rows(&mut self, pipeline: PipelineId, compiled: &muster_pipeline::model::Pipeline) {
        let now = self.now();
        let Some(project) = self.project_of(pipeline) else { return };
        let states: Vec<JobState> =
            self.state.engines.get(&project).and_then(|engine| engine.jobs(pipeline)).unwrap_or_default().to_vec();
        for (job_index, (job, state)) in compiled.jobs.iter().zip(states).enumerate() {
            let kind = match job.work {
                Work::Script(_) => JobKind::Script,
                Work::Bridge(_) => JobKind::Bridge,
            };
            let (id, names) = (self.state.new_job_id(), (job.name.clone(), job.stage.clone()));
            self.state.add_new(JobRow::new(id, (pipeline, job_index), names, kind, JobDetail::new(state), now));
        }
    }

    /// Fails a job with a reason and a message. A job that has already ended is not changed.
    pub(crate) fn drop_job(&mut self, job: JobId, reason: FailureReason, message: impl Into<String>) {
        let outcome = Outcome::Failed { reason, exit_code: None };
        match self.apply_job_event(job, |job| Event::JobFinished { job, outcome }) {
            Ok(()) => {
                if let Some(row) = self.state.job_mut(job) {
                    row.detail.message = Some(message.into());
                }
            }
            Err(rejection) => {
                tracing::debug!(%job, %rejection, "job was not dropped because it has already ended");
                self.queue.remove(job);
            }
        }
    }

    /// Returns the pipelines that a new pipeline of the same ref may cancel (docs/spec/pipeline-yaml.md, section 5.8).
    pub(crate) fn older_on_same_ref(&self, pipeline: PipelineId) -> BTreeSet<PipelineId> {
        let Some(new) = self.state.pipelines.get(&pipeline) else { return BTreeSet::new() };
        let older = self.state.pipelines.values().filter(|row| {
            row.id < new.id
                && row.parent.is_none()
                && !row.status.is_complete()
                && row.spec.project.id == new.spec.project.id
                && row.spec.same_ref(&new.spec)
                && row.spec.git.sha != new.spec.git.sha
        });
        older.map(|row| row.id).collect()
    }
}

fn timestamp(millis: u64) -> Timestamp {
    from_millis(i64::try_from(millis).unwrap_or(i64::MAX))
}
