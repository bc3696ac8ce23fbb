use std::sync::Arc;

use muster_job::{FailureReason, JobId, JobStatus};
use muster_pipeline::expand::{Unknown, expand_text};
use muster_pipeline::model::Work;
use muster_runner_api::service::ServiceError;

use crate::actor::Actor;
use crate::artifacts;
use crate::artifacts::NewArtifact;
use crate::command::{Authorization, FinalReport, StoredUpload, TokenUse};
use crate::expiry::ExpiryStep;
use crate::outbox::JobChange;
use crate::schedule::{Event, Outcome, Target};
use crate::store::{ArtifactRow, JobRow};
use crate::timers::Timer;

impl Actor {
    /// Checks whether a token is valid for a job, and whether the status of the job allows `token_use` (docs/spec/runner-api.md, section
    /// 9.2).
    ///
    /// The call may also accept the job and count as contact of its manager, as described for each [`TokenUse`].
    pub(crate) fn authorize(
        &mut self,
        job: JobId,
        token: &str,
        token_use: TokenUse,
    ) -> Result<Authorization, ServiceError> {
        let unknown = ServiceError::Forbidden { status: None };
        let Some(assignment) = self.keys.assignment_of(job, token) else { return Err(unknown) };
        let Some(row) = self.state.jobs.get(&job) else { return Err(unknown) };
        let status = row.status();
        let on_runner = status.is_on_runner();
        if assignment != row.detail.assignment || !(on_runner || status.is_complete()) {
            // The job is assigned to another manager, or back in the queue. This manager must stop.
            return Err(ServiceError::Forbidden { status: Some(JobStatus::Canceled) });
        }
        if !on_runner && token_use != TokenUse::Report {
            return Err(ServiceError::Forbidden { status: Some(status) });
        }
        let authorization = Authorization { status, coverage: self.coverage_expression(row) };
        let assignee = row.runner.zip(row.system_id.clone());
        if on_runner && token_use != TokenUse::Read {
            let accepted = row.detail.accepted;
            if accepted && token_use == TokenUse::Waiting {
                return Err(ServiceError::Conflict("the job has already been accepted".to_owned()));
            }
            self.state.last_contact.insert(job, self.now());
            // Any of these calls accepts the job: some managers do not support acceptance, or do not repeat an
            // acceptance whose answer was lost. No other manager gets the job from now on (J2).
            if !accepted
                && token_use != TokenUse::Waiting
                && let Some(row) = self.state.job_mut(job)
            {
                row.detail.accepted = true;
                self.state.add_event(self.now(), job, JobChange::Accepted);
            }
            // If the manager was unregistered, a call about a job that it still runs does not register it again.
            if let Some((runner, system_id)) = assignee.filter(|_| token_use != TokenUse::Transfer)
                && self.state.registry.has_manager(runner, &system_id)
            {
                let now = self.now();
                self.state.registry.record_contact(runner, &system_id, None, now);
            }
        }
        Ok(authorization)
    }

    fn coverage_expression(&self, row: &JobRow) -> Option<String> {
        let job = self.state.pipelines.get(&row.pipeline)?.compiled.jobs.get(row.job_index)?;
        match &job.work {
            Work::Script(work) => work.coverage.clone(),
            Work::Bridge(_) => None,
        }
    }

    /// Ends a job with the report of its runner. A repeated report gets the same answer (docs/spec/runner-api.md,
    /// section 11, trap 23).
    pub(crate) fn finish(&mut self, job: JobId, token: &str, report: FinalReport) -> Result<JobStatus, ServiceError> {
        let status = self.authorize(job, token, TokenUse::Report)?.status;
        if status.is_complete() {
            let agrees = match status {
                JobStatus::Success => report.success,
                JobStatus::Failed => !report.success,
                // A canceled job stays canceled, regardless of the runner's report.
                _ => true,
            };
            return if agrees { Ok(status) } else { Err(ServiceError::Forbidden { status: Some(status) }) };
        }
        let invalid_report = self.state.jobs.get(&job).and_then(|row| row.detail.invalid_report.clone());
        let outcome = if report.success && invalid_report.is_none() {
            Outcome::Success
        } else {
            let dotenv_failure = invalid_report.is_some().then_some(FailureReason::ScriptFailure);
            Outcome::Failed {
                reason: report.reason.or(dotenv_failure).unwrap_or(FailureReason::UnknownFailure),
                exit_code: report.exit_code.and_then(|code| i32::try_from(code).ok()),
            }
        };
        self.apply_job_event(job, |job| Event::JobFinished { job, outcome })
            .map_err(|rejection| ServiceError::Conflict(rejection.to_string()))?;
        let Some(row) = self.state.job_mut(job) else { return Ok(status) };
        row.exit_code = report.exit_code;
        let has_ended = row.status().is_complete();
        row.coverage = report.coverage;
        row.detail.result_tree = report.result_tree.map(Arc::new);
        if row.status() == JobStatus::Failed {
            row.detail.message = invalid_report;
        }
        if let Some(url) = &row.detail.environment_url {
            let dotenv =
                |name: &str| row.detail.dotenv.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
            row.detail.environment_url = Some(expand_text(url, &dotenv, Unknown::Keep));
        }
        let status = row.status();
        if has_ended {
            self.state.dirty.set_exit_code(job, report.exit_code);
        }
        Ok(status)
    }

    /// Adds the row of an artifact whose content is stored. Returns the result, and the file to delete, if any: the
    /// replaced file, or the new file if it was rejected.
    pub(crate) fn artifact_stored(&mut self, job: JobId, token: &str, artifact: NewArtifact) -> StoredUpload {
        let (kind, filename) = (artifact.kind.clone(), artifact.filename.clone());
        let previous = self.state.artifact(job, &kind).map(|row| row.filename.clone());
        let result = self.record_artifact(job, token, artifact);
        let leftover = if result.is_ok() { previous } else { Some(filename) };
        let row = self.state.artifact(job, &kind);
        let leftover = leftover.filter(|name| row.is_none_or(|row| row.filename != *name));
        StoredUpload { result, leftover }
    }

    fn record_artifact(&mut self, job: JobId, token: &str, artifact: NewArtifact) -> Result<(), ServiceError> {
        self.authorize(job, token, TokenUse::Transfer)?;
        let now = self.now();
        let expires_at = artifacts::expiry(artifact.expire_in.as_deref())?.map(|after| now + after);
        if artifact.kind == artifacts::DOTENV
            && let Some(row) = self.state.job_mut(job)
        {
            row.detail.dotenv = artifact.dotenv;
            row.detail.invalid_report = None;
        }
        if let Some(at) = expires_at.filter(|at| self.expiry.record_expiry(*at)) {
            self.timers.add(at, Timer::Expiry);
        }
        let row = ArtifactRow {
            job,
            kind: artifact.kind,
            format: artifact.format,
            filename: artifact.filename,
            size: artifact.size,
            created_at: now,
            expires_at,
            deleted: false,
        };
        self.state.dirty.jobs.insert(job);
        self.state.dirty.artifacts.insert((job, row.kind.clone()));
        let rows = self.state.artifacts.entry(job).or_default();
        rows.retain(|other| other.kind != row.kind);
        rows.push(row);
        self.state.record_producer(job);
        Ok(())
    }

    pub(crate) fn record_invalid_report(
        &mut self,
        job: JobId,
        token: &str,
        reason: String,
    ) -> Result<(), ServiceError> {
        self.authorize(job, token, TokenUse::Transfer)?;
        if let Some(row) = self.state.job_mut(job) {
            row.detail.invalid_report = Some(reason);
        }
        Ok(())
    }

    pub(crate) fn on_artifact_expiry(&mut self, step: ExpiryStep) {
        let now = self.now();
        if let Some(at) = self.expiry.advance(step, &mut self.state, now) {
            self.timers.add(at, Timer::Expiry);
        }
    }

    /// Returns the archive of a job. The token must belong to a job of the same project that is on a runner.
    pub(crate) fn download(&mut self, producer: JobId, token: &str) -> Result<ArtifactRow, ServiceError> {
        let (consumer, _) = self.keys.read(token).ok_or(ServiceError::Forbidden { status: None })?;
        self.authorize(consumer, token, TokenUse::Transfer)?;
        let project = |job| self.project_of(self.state.jobs.get(job)?.pipeline);
        if project(&consumer) != project(&producer) {
            return Err(ServiceError::Forbidden { status: None });
        }
        let archive = self.state.artifact(producer, artifacts::ARCHIVE);
        archive
            .filter(|archive| self.upstream().has_archive(archive))
            .cloned()
            .ok_or_else(|| ServiceError::NotFound(format!("job {producer} has no archive, or the archive has expired")))
    }

    /// Starts the timers of all jobs on runners after a restart. The restart counts as contact of their managers.
    pub(crate) fn arm_timers_of_running_jobs(&mut self) {
        let now = self.now();
        let on_runner: Vec<(JobId, u32, bool)> = self
            .state
            .jobs
            .values()
            .filter(|row| row.status().is_on_runner() && row.runner.is_some())
            .map(|row| (row.id, row.detail.assignment, row.detail.accepted))
            .collect();
        for (job, assignment, accepted) in on_runner {
            self.state.last_contact.insert(job, now);
            if !accepted {
                self.timers.add(now + self.options.accept_timeout, Timer::AcceptTimeout(job, assignment));
            }
            self.arm_job_timer(job);
        }
    }

    pub(crate) fn arm_job_timer(&mut self, job: JobId) {
        if let Some((run_deadline, contact_deadline)) = self.deadlines(job) {
            self.timers.add(run_deadline.min(contact_deadline), Timer::Runner(job));
        }
    }

    /// Returns the deadline for the end of the job, and the deadline for the next contact of its manager.
    fn deadlines(&self, job: JobId) -> Option<(crate::clock::Timestamp, crate::clock::Timestamp)> {
        let row = self.state.jobs.get(&job).filter(|row| row.status().is_on_runner())?;
        let limits = &self.options.limits;
        let started = row.started_at.unwrap_or(row.created_at);
        let run_deadline = started + std::time::Duration::from_secs(row.detail.timeout_s) + limits.timeout_grace;
        let last_contact = self.state.last_contact.get(&job).copied().unwrap_or(started);
        Some((run_deadline, last_contact + limits.contact_timeout))
    }

    pub(crate) fn on_timer(&mut self, timer: Timer) {
        match timer {
            Timer::Delayed(job) => {
                if let Err(rejection) = self.apply_job_event(job, |job| Event::TimerFired { job }) {
                    tracing::debug!(%job, %rejection, "ignored stale delay timer");
                }
            }
            Timer::AcceptTimeout(job, assignment) => self.on_accept_timeout(job, assignment),
            Timer::Runner(job) => self.on_runner_timeout(job),
            Timer::Pending(job) => self.on_pending_timeout(job),
            Timer::Expiry => self.expiry.query(self.now()),
            Timer::Sources(bridge) => self.on_sources_timeout(bridge),
            Timer::LongPoll(number) => self.end_long_poll(number),
            // This timer only causes a batch. Each batch ends with the assignment of jobs and a write.
            Timer::Flush => {}
        }
    }

    fn on_accept_timeout(&mut self, job: JobId, assignment: u32) {
        let Some(row) = self.state.jobs.get(&job) else { return };
        if row.detail.assignment != assignment || row.detail.accepted {
            return;
        }
        let deadline =
            self.state.last_contact.get(&job).map(|last_contact| *last_contact + self.options.accept_timeout);
        if let Some(deadline) = deadline.filter(|deadline| *deadline > self.now()) {
            // The manager has reported in the meantime, or got the assignment again. Both restart the timeout.
            self.timers.add(deadline, Timer::AcceptTimeout(job, assignment));
            return;
        }
        if row.status() == JobStatus::Canceling {
            // No manager accepted the job, so no manager can cancel it gracefully.
            let target = Target::Job(row.job_ref());
            let pipeline = row.pipeline;
            if let Err(rejection) = self.apply_event(pipeline, Event::ForceCancel { target }) {
                tracing::debug!(%job, %rejection, "canceled job has already ended");
            }
        } else if row.status() == JobStatus::Running {
            self.requeue(job, assignment);
        }
    }

    fn on_runner_timeout(&mut self, job: JobId) {
        let Some((run_deadline, contact_deadline)) = self.deadlines(job) else { return };
        let Some(status) = self.state.jobs.get(&job).map(JobRow::status) else { return };
        let canceling = status == JobStatus::Canceling;
        let now = self.now();
        if now >= run_deadline {
            let reason =
                if canceling { FailureReason::ServerTimeoutCanceling } else { FailureReason::ServerTimeoutRunning };
            self.drop_job(job, reason, "the job exceeded its timeout and its runner did not end it");
        } else if now >= contact_deadline {
            let reason = if canceling { FailureReason::NoUpdatesCanceling } else { FailureReason::NoUpdatesRunning };
            self.drop_job(job, reason, "the runner of the job has not contacted the coordinator for too long");
        } else {
            self.timers.add(run_deadline.min(contact_deadline), Timer::Runner(job));
        }
    }

    fn on_pending_timeout(&mut self, job: JobId) {
        let Some(row) = self.state.jobs.get(&job) else { return };
        if row.status() != JobStatus::Pending {
            return;
        }
        let (now, limits) = (self.now(), self.options.limits.clone());
        let queued = row.queued_at.unwrap_or(row.created_at);
        let mismatch = self.queue.requirement(job).and_then(|needed| self.state.registry.mismatch_reason(needed));
        if let Some(reason) = mismatch
            && now >= queued + limits.pending_without_runner
        {
            self.drop_job(job, FailureReason::StuckPendingNoMatchingRunners, reason);
        } else if now >= queued + limits.pending_with_runner {
            let message = "the job was pending for too long although a runner matches it";
            self.drop_job(job, FailureReason::StuckPendingWithMatchingRunners, message);
        } else {
            let next = (now + limits.pending_without_runner).min(queued + limits.pending_with_runner);
            self.timers.add(next, Timer::Pending(job));
        }
    }
}
