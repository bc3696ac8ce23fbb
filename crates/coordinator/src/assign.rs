//! Assigns jobs to job requests, and builds the payloads (docs/spec/runner-api.md, section 9.3).
//!
//! Assigning a job sets it to `running` and gives it a new assignment number, which is part of its token. If the runner manager neither
//! accepts the job nor sends anything in time, the job returns to the queue (docs/spec/life-of-a-job.md, rule R1).

use std::time::Duration;

use muster_job::{FailureReason, JobId, PipelineId, RunnerId, Secret};
use muster_pipeline::expand::{Unknown, expand_text};
use muster_pipeline::layers;
use muster_runner_api::payload::JobPayload;
use muster_runner_api::service::{JobRequestAnswer, ServiceError};
use muster_runner_api::wire::{JobRequest, VersionInfo};

use crate::actor::{Actor, StagedReply};
use crate::assignment::JobAssignment;
use crate::command::ServiceReply;
use crate::outbox::JobChange;
use crate::payload::{self, PayloadInput, QueueFacts};
use crate::schedule::Event;
use crate::store::{ArtifactRow, JobRow, Member};
use crate::timers::Timer;
use crate::upstream::{Obstacle, Undispatchable, UpstreamOutputs, UpstreamResolver};
use crate::variables::{JobVariablesInput, RunnerFacts, job_variables};

/// Delay after a failed read before the job is checked again, unless a command comes first.
const READ_RETRY_DELAY: Duration = Duration::from_secs(1);

/// A job that is ready to be assigned.
struct PreparedJob {
    payload: JobPayload,
    assignment: u32,
    timeout: Duration,
    environment_url: Option<String>,
}

impl Actor {
    /// Answers a job request, or holds it until there is a job.
    pub(crate) fn request_job(&mut self, request: Box<JobRequest>, reply: ServiceReply<JobRequestAnswer>) {
        let Some(runner) = self.runner_of(&request.token) else {
            self.service_reply(reply, Err(ServiceError::Forbidden { status: None }));
            return;
        };
        self.contact(runner, &request.system_id, Some(&request.info));
        let nothing = JobRequestAnswer { job: None, last_update: self.queue.version() };
        if self.state.runners.get(&runner).is_none_or(|row| row.settings.paused) {
            self.service_reply(reply, Ok(nothing));
            return;
        }
        if let Some(key) = &request.idempotency_key {
            // A request with the same key is a repetition: its earlier connection gets an empty answer.
            for held in
                self.queue.release(|held| held.runner == runner && held.request.idempotency_key.as_ref() == Some(key))
            {
                let answer = JobRequestAnswer { job: None, last_update: self.queue.version() };
                self.service_reply(held.reply, Ok(answer));
            }
            if let Some(again) = self.assignment_for_key(runner, key, &request.info) {
                self.service_reply(reply, Ok(JobRequestAnswer { job: Some(Box::new(again)), ..nothing }));
                return;
            }
        }
        // As with GitLab, a request without the queue's version gets it at once (docs/spec/runner-api.md, section 2.3). Jobs are assigned
        // before this timer is handled.
        let hold = if request.last_update.is_empty() { Duration::ZERO } else { self.options.long_poll };
        let number = self.queue.hold_request(runner, request, reply);
        self.timers.add(self.now() + hold, Timer::LongPoll(number));
    }

    /// Ends a held request without a job.
    pub(crate) fn end_long_poll(&mut self, number: u64) {
        for held in self.queue.release(|held| held.number == number) {
            let answer = JobRequestAnswer { job: None, last_update: self.queue.version() };
            self.service_reply(held.reply, Ok(answer));
        }
    }

    /// Ends the newest held requests if there are more than allowed. They were considered already, and got no job.
    pub(crate) fn shed_long_polls(&mut self) {
        for held in self.queue.shed_newest(self.options.limits.held_requests) {
            let answer = JobRequestAnswer { job: None, last_update: self.queue.version() };
            self.service_reply(held.reply, Ok(answer));
        }
    }

    /// Ends all held requests at the shutdown. Their answers report no change, so they need no write.
    pub(crate) fn close_long_polls(&mut self) {
        for held in self.queue.shed_newest(0) {
            // The caller may have gone away.
            let _ = held.reply.send(Ok(JobRequestAnswer { job: None, last_update: self.queue.version() }));
        }
    }

    /// Returns the job that an earlier request with this key got, if the manager may still have it.
    fn assignment_for_key(&mut self, runner: RunnerId, key: &str, info: &VersionInfo) -> Option<JobPayload> {
        let job = *self.state.keys.get(&(runner, key.to_owned()))?;
        let row = self.state.jobs.get(&job)?;
        if !row.status().is_on_runner() || row.detail.idempotency_key.as_deref() != Some(key) {
            return None;
        }
        let assignment = row.detail.assignment;
        let again = self.prepare(job, runner, info, assignment).ok()?.payload;
        // The time for the acceptance starts again: the earlier answer was not received.
        self.state.last_contact.insert(job, self.now());
        Some(again)
    }

    /// Returns the job that an earlier request with the same key was assigned.
    pub(crate) fn earlier_assignment(&self, request: &JobRequest) -> Option<JobId> {
        let runner = self.runner_of(&request.token)?;
        self.state.keys.get(&(runner, request.idempotency_key.clone()?)).copied()
    }

    /// Returns a pipeline that is not in memory and has artifacts that a job needs.
    pub(crate) fn missing_upstream(&self, job: JobId) -> Option<PipelineId> {
        match self.upstream(self.state.jobs.get(&job)?) {
            Err(Obstacle::NotRead(pipeline)) => Some(pipeline),
            Ok(_) | Err(Obstacle::Undispatchable(_)) => None,
        }
    }

    /// Assigns jobs to held requests until no request matches a job. Assigns none while the store cannot be written.
    pub(crate) async fn dispatch(&mut self) {
        while let Some(pipeline) = self.assign_ready_jobs() {
            if let Err(error) = self.admit(Member::Pipeline(pipeline)).await {
                tracing::error!(%error, %pipeline, "failed to read a pipeline whose artifacts a job needs");
                self.timers.add(self.now() + READ_RETRY_DELAY, Timer::Flush);
                return;
            }
        }
    }

    /// Assigns jobs to held requests. Returns a pipeline that must be read into memory before it can continue.
    fn assign_ready_jobs(&mut self) -> Option<PipelineId> {
        if self.storage_problem.is_some() {
            return None;
        }
        loop {
            let runners = &self.state.runners;
            let (index, job) = self.queue.next_match(|id| runners.get(&id).map(|row| &row.settings))?;
            let held_request = self.queue.held_request(index)?;
            let row = self.state.jobs.get(&job)?;
            let prepared =
                self.prepare(job, held_request.runner, &held_request.request.info, row.detail.assignment + 1);
            match prepared {
                Err(Obstacle::NotRead(pipeline)) => return Some(pipeline),
                Err(Obstacle::Undispatchable(undispatchable)) => {
                    self.drop_job(job, undispatchable.reason, undispatchable.message)
                }
                Ok(prepared) => self.assign(index, job, prepared),
            }
        }
    }

    fn assign(&mut self, index: usize, job: JobId, prepared: PreparedJob) {
        // The version from before this assignment: the next request sees all changes since.
        let last_update = self.queue.version();
        let Some(held_request) = self.queue.take(index) else { return };
        let supports_graceful_cancel = held_request.request.info.has("cancel_gracefully");
        if let Err(rejection) = self.job_event(job, |job| Event::JobAssigned { job, supports_graceful_cancel }) {
            tracing::error!(%job, %rejection, "a job in the queue could not be taken");
            self.queue.remove(job);
            self.service_reply(held_request.reply, Ok(JobRequestAnswer { job: None, last_update }));
            return;
        }
        let now = self.now();
        let Some(row) = self.state.job_mut(job) else { return };
        row.runner = Some(held_request.runner);
        row.system_id = Some(held_request.request.system_id.clone());
        row.detail.assignment = prepared.assignment;
        row.detail.accepted = false;
        let system_id = held_request.request.system_id.clone();
        let assigned = JobChange::Assigned { runner: held_request.runner, system_id, assignment: prepared.assignment };
        row.detail.timeout_s = prepared.timeout.as_secs();
        row.detail.environment_url = prepared.environment_url;
        row.detail.idempotency_key.clone_from(&held_request.request.idempotency_key);
        if let Some(key) = &held_request.request.idempotency_key {
            self.state.keys.insert((held_request.runner, key.clone()), job);
        }
        self.state.report(now, job, assigned);
        self.state.last_contact.insert(job, now);
        self.timers.add(now + self.options.accept_timeout, Timer::AcceptTimeout(job, prepared.assignment));
        self.arm_job_timer(job);
        let answer = JobRequestAnswer { job: Some(Box::new(prepared.payload)), last_update };
        self.staged.push(StagedReply::Assignment {
            job,
            assignment: prepared.assignment,
            answer,
            reply: held_request.reply,
        });
    }

    /// Returns a job to the queue whose manager has neither accepted it nor sent anything.
    pub(crate) fn requeue(&mut self, job: JobId, assignment: u32) {
        let present =
            self.state.jobs.get(&job).is_some_and(|row| row.detail.assignment == assignment && !row.detail.accepted);
        if !present {
            return;
        }
        if let Err(rejection) = self.job_event(job, |job| Event::JobRequeued { job }) {
            tracing::debug!(%job, %rejection, "a job that nobody started has ended");
            return;
        }
        tracing::info!(%job, "the assignee of a job was silent; the job waits again");
        if let Some(row) = self.state.job_mut(job) {
            let key = row.detail.idempotency_key.take();
            let assignee = row.runner.take();
            row.system_id = None;
            if let Some(key) = assignee.zip(key) {
                self.state.keys.remove(&key);
            }
        }
        self.state.last_contact.remove(&job);
    }

    /// Checks a job against the runner's features, and builds its payload (docs/spec/runner-api.md, section 9.3, step 4).
    fn prepare(
        &self,
        job: JobId,
        runner: RunnerId,
        info: &VersionInfo,
        assignment: u32,
    ) -> Result<PreparedJob, Obstacle> {
        let gone =
            |what: &str| Undispatchable { reason: FailureReason::SchedulerFailure, message: format!("{what} is gone") };
        let row = self.state.jobs.get(&job).ok_or_else(|| gone("the job"))?;
        let pipeline = self.state.pipelines.get(&row.pipeline).ok_or_else(|| gone("the pipeline"))?;
        let context = self.state.contexts.get(&row.pipeline).ok_or_else(|| gone("the pipeline's context"))?;
        let compiled = pipeline.compiled.jobs.get(row.job_index).ok_or_else(|| gone("the job's configuration"))?;
        let runner = self.state.runners.get(&runner).ok_or_else(|| gone("the runner"))?;
        let upstream = self.upstream(row)?;
        if let Some(feature) = payload::missing_feature(compiled, context.source, info) {
            let message = format!("the runner `{}` lacks the feature `{feature}`", runner.settings.description);
            return Err(Undispatchable { reason: FailureReason::RunnerUnsupported, message }.into());
        }
        let spec = &pipeline.spec;
        let token = Secret::new(self.keys.job_token(job, assignment));
        let now = self.now();
        let handout_facts = JobAssignment {
            job: compiled,
            job_id: job,
            pipeline_id: row.pipeline,
            pipeline_iid: row.pipeline.0,
            token: &token,
            project: &spec.project,
            context,
            git: &spec.git,
            server_url: &self.options.server_url,
            now,
        };
        let variables = job_variables(&JobVariablesInput {
            assignment: handout_facts,
            runner: RunnerFacts {
                id: runner.id,
                description: &runner.settings.description,
                tags: &runner.settings.tags,
            },
            dotenv: &upstream.dotenv,
            manual: &row.detail.variables,
        });
        let own = compiled.timeout.unwrap_or(spec.project.job_timeout);
        let timeout = runner.settings.maximum_timeout.map_or(own, |maximum| own.min(maximum));
        let payload = payload::build(&PayloadInput {
            assignment: handout_facts,
            variables: &variables,
            dependencies: &upstream.archives,
            timeout,
            queue: QueueFacts {
                waited: Duration::try_from(now - row.queued_at.unwrap_or(now)).unwrap_or_default(),
                size: self.queue.len(),
                depth: 0,
            },
            secrets: &spec.secrets,
            signer: &self.signer,
            trace_interval: self.options.limits.own_trace_interval,
            local_repository: self.options.local_repository,
        })
        // A retry would not help: a missing secret stays missing.
        .map_err(|error| Undispatchable { reason: FailureReason::UnmetPrerequisites, message: error.to_string() })?;
        let url = compiled.environment.as_ref().and_then(|environment| environment.url.as_deref());
        let lookup = |name: &str| layers::value(&variables, name).map(ToOwned::to_owned);
        let environment_url = url.map(|url| expand_text(url, &lookup, Unknown::Keep));
        Ok(PreparedJob { payload, assignment, timeout, environment_url })
    }

    /// Returns what a job gets from earlier jobs.
    pub(crate) fn upstream(&self, row: &JobRow) -> Result<UpstreamOutputs, Obstacle> {
        self.resolver().of(row)
    }

    /// Returns whether an archive exists: it has not expired, and was not deleted.
    pub(crate) fn has_archive(&self, archive: &ArtifactRow) -> bool {
        self.resolver().has_archive(archive)
    }

    fn resolver(&self) -> UpstreamResolver<'_> {
        let read = |pipeline| self.state.pipelines.contains_key(&pipeline) || self.residency.is_absent(pipeline);
        UpstreamResolver { state: &self.state, blobs: &*self.blobs, now: self.now(), is_read: Box::new(read) }
    }
}
