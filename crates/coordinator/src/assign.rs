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

use crate::actor::{Actor, Staged};
use crate::command::ServiceReply;
use crate::handout::Handout;
use crate::inherit::{Inheritance, Inherited, Obstacle, Unfit};
use crate::outbox::JobChange;
use crate::payload::{self, PayloadInput, QueueFacts};
use crate::schedule::Event;
use crate::store::{ArtifactRow, JobRow, Member};
use crate::timers::Timer;
use crate::variables::{JobVariablesInput, RunnerFacts, job_variables};

/// Delay after a failed read before the job is checked again, unless a command comes first.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// A job that is ready to be assigned.
struct Prepared {
    payload: JobPayload,
    handout: u32,
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
        if self.world.runners.get(&runner).is_none_or(|row| row.settings.paused) {
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
            if let Some(again) = self.given_for(runner, key, &request.info) {
                self.service_reply(reply, Ok(JobRequestAnswer { job: Some(Box::new(again)), ..nothing }));
                return;
            }
        }
        // As with GitLab, a request without the queue's version gets it at once (docs/spec/runner-api.md, section 2.3). Jobs are assigned
        // before this timer is handled.
        let hold = if request.last_update.is_empty() { Duration::ZERO } else { self.options.long_poll };
        let number = self.queue.hold(runner, request, reply);
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
    pub(crate) fn bound_held(&mut self) {
        for held in self.queue.shed(self.options.limits.held_requests) {
            let answer = JobRequestAnswer { job: None, last_update: self.queue.version() };
            self.service_reply(held.reply, Ok(answer));
        }
    }

    /// Ends all held requests at the shutdown. Their answers report no change, so they need no write.
    pub(crate) fn send_held_away(&mut self) {
        for held in self.queue.shed(0) {
            // The caller may have gone away.
            let _ = held.reply.send(Ok(JobRequestAnswer { job: None, last_update: self.queue.version() }));
        }
    }

    /// Returns the job that an earlier request with this key got, if the manager may still have it.
    fn given_for(&mut self, runner: RunnerId, key: &str, info: &VersionInfo) -> Option<JobPayload> {
        let job = *self.world.keys.get(&(runner, key.to_owned()))?;
        let row = self.world.jobs.get(&job)?;
        if !row.status().is_on_runner() || row.detail.idempotency_key.as_deref() != Some(key) {
            return None;
        }
        let handout = row.detail.handout;
        let again = self.prepare(job, runner, info, handout).ok()?.payload;
        // The time for the acceptance starts again: the earlier answer was not received.
        self.world.heard.insert(job, self.now());
        Some(again)
    }

    /// Returns the job that an earlier request with the same key was assigned.
    pub(crate) fn assigned_before(&self, request: &JobRequest) -> Option<JobId> {
        let runner = self.runner_of(&request.token)?;
        self.world.keys.get(&(runner, request.idempotency_key.clone()?)).copied()
    }

    /// Returns a pipeline that is not in memory and has artifacts that a job needs.
    pub(crate) fn lacks(&self, job: JobId) -> Option<PipelineId> {
        match self.inherited(self.world.jobs.get(&job)?) {
            Err(Obstacle::NotRead(pipeline)) => Some(pipeline),
            Ok(_) | Err(Obstacle::Unfit(_)) => None,
        }
    }

    /// Assigns jobs to held requests until no request matches a job. Assigns none while the store cannot be written.
    pub(crate) async fn dispatch(&mut self) {
        while let Some(pipeline) = self.give_out() {
            if let Err(error) = self.admit(Member::Pipeline(pipeline)).await {
                tracing::error!(%error, %pipeline, "failed to read a pipeline whose artifacts a job needs");
                self.timers.add(self.now() + READ_AGAIN, Timer::Flush);
                return;
            }
        }
    }

    /// Assigns jobs to held requests. Returns a pipeline that must be read into memory before it can continue.
    fn give_out(&mut self) -> Option<PipelineId> {
        if self.storage_problem.is_some() {
            return None;
        }
        loop {
            let runners = &self.world.runners;
            let (index, job) = self.queue.next_match(|id| runners.get(&id).map(|row| &row.settings))?;
            let waiter = self.queue.waiter(index)?;
            let row = self.world.jobs.get(&job)?;
            let prepared = self.prepare(job, waiter.runner, &waiter.request.info, row.detail.handout + 1);
            match prepared {
                Err(Obstacle::NotRead(pipeline)) => return Some(pipeline),
                Err(Obstacle::Unfit(unfit)) => self.drop_job(job, unfit.reason, unfit.message),
                Ok(prepared) => self.hand_out(index, job, prepared),
            }
        }
    }

    fn hand_out(&mut self, index: usize, job: JobId, prepared: Prepared) {
        // The version from before this assignment: the next request sees all changes since.
        let last_update = self.queue.version();
        let Some(waiter) = self.queue.take(index) else { return };
        let winds_down = waiter.request.info.has("cancel_gracefully");
        if let Err(refusal) = self.job_event(job, |job| Event::JobTaken { job, winds_down }) {
            tracing::error!(%job, %refusal, "a job in the queue could not be taken");
            self.queue.remove(job);
            self.service_reply(waiter.reply, Ok(JobRequestAnswer { job: None, last_update }));
            return;
        }
        let now = self.now();
        let Some(row) = self.world.job_mut(job) else { return };
        row.runner = Some(waiter.runner);
        row.system_id = Some(waiter.request.system_id.clone());
        row.detail.handout = prepared.handout;
        row.detail.alive = false;
        let system_id = waiter.request.system_id.clone();
        let assigned = JobChange::Assigned { runner: waiter.runner, system_id, assignment: prepared.handout };
        row.detail.timeout_s = prepared.timeout.as_secs();
        row.detail.environment_url = prepared.environment_url;
        row.detail.idempotency_key.clone_from(&waiter.request.idempotency_key);
        if let Some(key) = &waiter.request.idempotency_key {
            self.world.keys.insert((waiter.runner, key.clone()), job);
        }
        self.world.report(now, job, assigned);
        self.world.heard.insert(job, now);
        self.timers.add(now + self.options.handout_lease, Timer::Handout(job, prepared.handout));
        self.watch(job);
        let assignment = JobRequestAnswer { job: Some(Box::new(prepared.payload)), last_update };
        self.staged.push(Staged::Handout { job, handout: prepared.handout, assignment, reply: waiter.reply });
    }

    /// Returns a job to the queue whose manager has neither accepted it nor sent anything.
    pub(crate) fn give_back(&mut self, job: JobId, handout: u32) {
        let present = self.world.jobs.get(&job).is_some_and(|row| row.detail.handout == handout && !row.detail.alive);
        if !present {
            return;
        }
        if let Err(refusal) = self.job_event(job, |job| Event::JobGivenBack { job }) {
            tracing::debug!(%job, %refusal, "a job that nobody started has ended");
            return;
        }
        tracing::info!(%job, "the taker of a job was silent; the job waits again");
        if let Some(row) = self.world.job_mut(job) {
            let key = row.detail.idempotency_key.take();
            let taker = row.runner.take();
            row.system_id = None;
            if let Some(key) = taker.zip(key) {
                self.world.keys.remove(&key);
            }
        }
        self.world.heard.remove(&job);
    }

    /// Checks a job against the runner's features, and builds its payload (docs/spec/runner-api.md, section 9.3, step 4).
    fn prepare(&self, job: JobId, runner: RunnerId, info: &VersionInfo, handout: u32) -> Result<Prepared, Obstacle> {
        let gone = |what: &str| Unfit { reason: FailureReason::SchedulerFailure, message: format!("{what} is gone") };
        let row = self.world.jobs.get(&job).ok_or_else(|| gone("the job"))?;
        let pipeline = self.world.pipelines.get(&row.pipeline).ok_or_else(|| gone("the pipeline"))?;
        let context = self.world.contexts.get(&row.pipeline).ok_or_else(|| gone("the pipeline's context"))?;
        let compiled = pipeline.compiled.jobs.get(row.place).ok_or_else(|| gone("the job's configuration"))?;
        let runner = self.world.runners.get(&runner).ok_or_else(|| gone("the runner"))?;
        let inherited = self.inherited(row)?;
        if let Some(feature) = payload::missing_feature(compiled, context.source, info) {
            let message = format!("the runner `{}` lacks the feature `{feature}`", runner.settings.description);
            return Err(Unfit { reason: FailureReason::RunnerUnsupported, message }.into());
        }
        let spec = &pipeline.spec;
        let token = Secret::new(self.keys.job_token(job, handout));
        let now = self.now();
        let handout_facts = Handout {
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
            handout: handout_facts,
            runner: RunnerFacts {
                id: runner.id,
                description: &runner.settings.description,
                tags: &runner.settings.tags,
            },
            dotenv: &inherited.dotenv,
            manual: &row.detail.variables,
        });
        let own = compiled.timeout.unwrap_or(spec.project.job_timeout);
        let timeout = runner.settings.maximum_timeout.map_or(own, |maximum| own.min(maximum));
        let payload = payload::build(&PayloadInput {
            handout: handout_facts,
            variables: &variables,
            dependencies: &inherited.archives,
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
        .map_err(|error| Unfit { reason: FailureReason::UnmetPrerequisites, message: error.to_string() })?;
        let url = compiled.environment.as_ref().and_then(|environment| environment.url.as_deref());
        let lookup = |name: &str| layers::value(&variables, name).map(ToOwned::to_owned);
        let environment_url = url.map(|url| expand_text(url, &lookup, Unknown::Keep));
        Ok(Prepared { payload, handout, timeout, environment_url })
    }

    /// Returns what a job gets from earlier jobs.
    pub(crate) fn inherited(&self, row: &JobRow) -> Result<Inherited, Obstacle> {
        self.inheritance().of(row)
    }

    /// Returns whether an archive exists: it has not expired, and was not deleted.
    pub(crate) fn has_archive(&self, archive: &ArtifactRow) -> bool {
        self.inheritance().has_archive(archive)
    }

    fn inheritance(&self) -> Inheritance<'_> {
        let read = |pipeline| self.world.pipelines.contains_key(&pipeline) || self.residency.is_absent(pipeline);
        Inheritance { world: &self.world, blobs: &*self.blobs, now: self.now(), is_read: Box::new(read) }
    }
}
