//! Which request gets which job, and what goes with it (runner-api 9.3).
//!
//! A job that is given out is `running` with a new hand-out number, which is part of its token. It stays with its taker
//! once that shows a sign of life (rule R1); until then its lease may take it back.

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

/// Time after a failed read until the job is checked again, unless a command comes first.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// A job as it is about to be given out.
struct Prepared {
    payload: JobPayload,
    handout: u32,
    timeout: Duration,
    environment_url: Option<String>,
}

impl Actor {
    /// Answers a job request now, or holds it.
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
            // The same key is the same request said again: an earlier connection of it waits in vain.
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
        // Who does not know the queue's version yet is told it at once, as by GitLab's front end (runner-api 2.3): what fits
        // is given out before this timer is looked at.
        let hold = if request.last_update.is_empty() { Duration::ZERO } else { self.options.long_poll };
        let number = self.queue.hold(runner, request, reply);
        self.timers.add(self.now() + hold, Timer::LongPoll(number));
    }

    /// Lets a held request go without a job.
    pub(crate) fn end_long_poll(&mut self, number: u64) {
        for held in self.queue.release(|held| held.number == number) {
            let answer = JobRequestAnswer { job: None, last_update: self.queue.version() };
            self.service_reply(held.reply, Ok(answer));
        }
    }

    /// Lets the newest of the held requests go where there are more than may be: they were looked at, and got no job.
    pub(crate) fn bound_held(&mut self) {
        for held in self.queue.shed(self.options.limits.held_requests) {
            let answer = JobRequestAnswer { job: None, last_update: self.queue.version() };
            self.service_reply(held.reply, Ok(answer));
        }
    }

    /// Lets all held requests go: the coordinator ends. Their answer says nothing that would have to be stored.
    pub(crate) fn send_held_away(&mut self) {
        for held in self.queue.shed(0) {
            // Who asked may be gone.
            let _ = held.reply.send(Ok(JobRequestAnswer { job: None, last_update: self.queue.version() }));
        }
    }

    /// The job that an earlier request with this key was given, if its taker still may have it.
    fn given_for(&mut self, runner: RunnerId, key: &str, info: &VersionInfo) -> Option<JobPayload> {
        let job = *self.world.keys.get(&(runner, key.to_owned()))?;
        let row = self.world.jobs.get(&job)?;
        if !row.status().is_on_runner() || row.detail.idempotency_key.as_deref() != Some(key) {
            return None;
        }
        let handout = row.detail.handout;
        let again = self.prepare(job, runner, info, handout).ok()?.payload;
        // The lease begins anew: the answer before this one did not arrive.
        self.world.heard.insert(job, self.now());
        Some(again)
    }

    /// The job that an earlier request with the key of this one was assigned.
    pub(crate) fn assigned_before(&self, request: &JobRequest) -> Option<JobId> {
        let runner = self.runner_of(&request.token)?;
        self.world.keys.get(&(runner, request.idempotency_key.clone()?)).copied()
    }

    /// A pipeline that is not in memory and has artifacts that a job needs.
    pub(crate) fn lacks(&self, job: JobId) -> Option<PipelineId> {
        match self.inherited(self.world.jobs.get(&job)?) {
            Err(Obstacle::NotRead(pipeline)) => Some(pipeline),
            Ok(_) | Err(Obstacle::Unfit(_)) => None,
        }
    }

    /// Gives waiting jobs to held requests until no two fit. Nothing is given out while nothing can be stored.
    pub(crate) async fn dispatch(&mut self) {
        while let Some(pipeline) = self.give_out() {
            if let Err(error) = self.admit(Member::Pipeline(pipeline)).await {
                tracing::error!(%error, %pipeline, "failed to read a pipeline whose artifacts a job needs");
                self.timers.add(self.now() + READ_AGAIN, Timer::Flush);
                return;
            }
        }
    }

    /// Assigns jobs to waiting requests. Returns a pipeline that must be read before it can continue.
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
        // The version is that of before this look at the queue: what came since is seen by the next request.
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

    /// Takes a job back from a taker that was never heard of.
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

    /// Checks a job against its taker, and makes its payload (runner-api 9.3, step 4).
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
        // A missing secret stays missing: nothing that is tried again.
        .map_err(|error| Unfit { reason: FailureReason::UnmetPrerequisites, message: error.to_string() })?;
        let url = compiled.environment.as_ref().and_then(|environment| environment.url.as_deref());
        let lookup = |name: &str| layers::value(&variables, name).map(ToOwned::to_owned);
        let environment_url = url.map(|url| expand_text(url, &lookup, Unknown::Keep));
        Ok(Prepared { payload, handout, timeout, environment_url })
    }

    /// What a job gets from earlier ones.
    pub(crate) fn inherited(&self, row: &JobRow) -> Result<Inherited, Obstacle> {
        self.inheritance().of(row)
    }

    /// Whether an archive exists: it has not expired, and was not deleted.
    pub(crate) fn has_archive(&self, archive: &ArtifactRow) -> bool {
        self.inheritance().has_archive(archive)
    }

    fn inheritance(&self) -> Inheritance<'_> {
        let read = |pipeline| self.world.pipelines.contains_key(&pipeline) || self.residency.is_absent(pipeline);
        Inheritance { world: &self.world, blobs: &*self.blobs, now: self.now(), is_read: Box::new(read) }
    }
}
