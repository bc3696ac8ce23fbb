//! Assigns jobs to job requests (docs/spec/runner-api.md, section 9.3).
//!
//! Assigning a job sets it to `running` and gives it a new assignment number, which is part of its token. If the runner manager neither
//! accepts the job nor sends anything in time, the job returns to the queue (docs/spec/life-of-a-job.md, rule R1).

use std::time::Duration;

use muster_job::{JobId, PipelineId, RunnerId};
use muster_runner_api::payload::JobPayload;
use muster_runner_api::service::{JobRequestAnswer, ServiceError};
use muster_runner_api::wire::{JobRequest, VersionInfo};

use crate::actor::{Actor, StagedReply};
use crate::command::ServiceReply;
use crate::long_polls::HeldRequest;
use crate::outbox::JobChange;
use crate::prepare::{JobPreparer, PreparedJob};
use crate::schedule::Event;
use crate::store::Member;
use crate::timers::Timer;
use crate::upstream::{Obstacle, UpstreamResolver};

/// Delay before a failed read is repeated, unless a command comes first.
const READ_RETRY_DELAY: Duration = Duration::from_secs(1);

impl Actor {
    pub(crate) fn request_job(&mut self, request: Box<JobRequest>, reply: ServiceReply<JobRequestAnswer>) {
        let now = self.now();
        let Some(runner) = self.state.registry.runner_of(&request.token, now) else {
            self.service_reply(reply, Err(ServiceError::Forbidden { status: None }));
            return;
        };
        self.state.registry.record_contact(runner, &request.system_id, Some(&request.info), now);
        if self.state.registry.get(runner).is_none_or(|row| row.settings.paused) {
            let answer = self.no_job();
            self.service_reply(reply, Ok(answer));
            return;
        }
        if let Some(key) = &request.idempotency_key {
            // A request with the same key is a retry: the held request that it replaces gets an empty answer.
            let repeated = self
                .long_polls
                .release(|held| held.runner == runner && held.request.idempotency_key.as_ref() == Some(key));
            self.answer_without_job(repeated);
            if let Some(payload) = self.assignment_for_key(runner, key, &request.info) {
                let answer = JobRequestAnswer { job: Some(Box::new(payload)), ..self.no_job() };
                self.service_reply(reply, Ok(answer));
                return;
            }
        }
        // As with GitLab, a request without the queue's version gets the version immediately (docs/spec/runner-api.md,
        // section 2.3). Jobs are assigned before the timer below is handled.
        let hold = if request.last_update.is_empty() { Duration::ZERO } else { self.options.long_poll };
        let number = self.long_polls.hold(runner, request, reply);
        self.timers.add(now + hold, Timer::LongPoll(number));
    }

    fn no_job(&self) -> JobRequestAnswer {
        JobRequestAnswer { job: None, last_update: self.queue.version() }
    }

    fn answer_without_job(&mut self, requests: impl IntoIterator<Item = HeldRequest>) {
        for held in requests {
            let answer = self.no_job();
            self.service_reply(held.reply, Ok(answer));
        }
    }

    pub(crate) fn end_long_poll(&mut self, number: u64) {
        let ended = self.long_polls.release(|held| held.number == number);
        self.answer_without_job(ended);
    }

    pub(crate) fn shed_long_polls(&mut self) {
        let shed = self.long_polls.shed_newest(self.options.limits.held_requests);
        self.answer_without_job(shed);
    }

    /// Ends all held requests at shutdown. Their answers report no change, so they need no write.
    pub(crate) fn close_long_polls(&mut self) {
        for held in self.long_polls.shed_newest(0) {
            // The caller may have stopped waiting.
            let _ = held.reply.send(Ok(self.no_job()));
        }
    }

    /// Returns the payload of the job that an earlier request with this key got, if the job is still on a runner.
    fn assignment_for_key(&mut self, runner: RunnerId, key: &str, info: &VersionInfo) -> Option<JobPayload> {
        let job = *self.state.jobs_by_key.get(&(runner, key.to_owned()))?;
        let row = self.state.jobs.get(&job)?;
        if !row.status().is_on_runner() || row.detail.idempotency_key.as_deref() != Some(key) {
            return None;
        }
        let prepared = self.preparer().prepare(job, row.detail.assignment, runner, info).ok()?;
        // The accept timeout starts again, because the manager did not receive the earlier answer.
        self.state.last_contact.insert(job, self.now());
        Some(prepared.payload)
    }

    pub(crate) fn earlier_assignment(&self, request: &JobRequest) -> Option<JobId> {
        let runner = self.state.registry.runner_of(&request.token, self.now())?;
        self.state.jobs_by_key.get(&(runner, request.idempotency_key.clone()?)).copied()
    }

    /// Returns a pipeline that must be read into memory because a job needs its artifacts.
    pub(crate) fn missing_upstream(&self, job: JobId) -> Option<PipelineId> {
        match self.upstream().outputs_for(self.state.jobs.get(&job)?) {
            Err(Obstacle::NotInMemory(pipeline)) => Some(pipeline),
            Ok(_) | Err(Obstacle::Undispatchable(_)) => None,
        }
    }

    /// Assigns jobs to held requests until no request matches a job. Assigns no jobs while the store cannot be written.
    pub(crate) async fn dispatch(&mut self) {
        while let Some(pipeline) = self.assign_ready_jobs() {
            if let Err(error) = self.admit(Member::Pipeline(pipeline)).await {
                tracing::error!(%error, %pipeline, "failed to read a pipeline whose artifacts a job needs");
                self.timers.add(self.now() + READ_RETRY_DELAY, Timer::Flush);
                return;
            }
        }
    }

    /// Assigns jobs to held requests.
    ///
    /// Returns a pipeline that must be read into memory before more jobs can be assigned.
    fn assign_ready_jobs(&mut self) -> Option<PipelineId> {
        if self.storage_problem.is_some() {
            return None;
        }
        loop {
            let (registry, queue) = (&self.state.registry, &self.queue);
            let (index, job) = self.long_polls.first_match(|runner| queue.best_for(&registry.get(runner)?.settings))?;
            let held = self.long_polls.get(index)?;
            let assignment = self.state.jobs.get(&job)?.detail.assignment + 1;
            let prepared = self.preparer().prepare(job, assignment, held.runner, &held.request.info);
            match prepared {
                Err(Obstacle::NotInMemory(pipeline)) => return Some(pipeline),
                Err(Obstacle::Undispatchable(failure)) => self.drop_job(job, failure.reason, failure.message),
                Ok(prepared) => self.assign(index, job, prepared),
            }
        }
    }

    fn assign(&mut self, index: usize, job: JobId, prepared: PreparedJob) {
        // Use the version from before this assignment, so that the next request sees all later changes.
        let last_update = self.queue.version();
        let Some(held) = self.long_polls.take(index) else { return };
        let supports_graceful_cancel = held.request.info.has("cancel_gracefully");
        if let Err(rejection) = self.apply_job_event(job, |job| Event::JobAssigned { job, supports_graceful_cancel }) {
            tracing::error!(%job, %rejection, "failed to assign a job from the queue");
            self.queue.remove(job);
            self.service_reply(held.reply, Ok(JobRequestAnswer { job: None, last_update }));
            return;
        }
        let now = self.now();
        let Some(row) = self.state.job_mut(job) else { return };
        let system_id = held.request.system_id.clone();
        row.runner = Some(held.runner);
        row.system_id = Some(system_id.clone());
        row.detail.assignment = prepared.assignment;
        row.detail.accepted = false;
        row.detail.timeout_s = prepared.timeout.as_secs();
        row.detail.environment_url = prepared.environment_url;
        row.detail.idempotency_key.clone_from(&held.request.idempotency_key);
        if let Some(key) = &held.request.idempotency_key {
            self.state.jobs_by_key.insert((held.runner, key.clone()), job);
        }
        let assignment = prepared.assignment;
        self.state.add_event(now, job, JobChange::Assigned { runner: held.runner, system_id, assignment });
        self.state.last_contact.insert(job, now);
        self.timers.add(now + self.options.accept_timeout, Timer::AcceptTimeout(job, assignment));
        self.arm_job_timer(job);
        let answer = JobRequestAnswer { job: Some(Box::new(prepared.payload)), last_update };
        self.staged.push(StagedReply::Assignment { job, assignment, answer, reply: held.reply });
    }

    /// Returns a job to the queue if `assignment` is its current assignment and the manager has not accepted it.
    pub(crate) fn requeue(&mut self, job: JobId, assignment: u32) {
        let current = self.state.jobs.get(&job);
        if !current.is_some_and(|row| row.detail.assignment == assignment && !row.detail.accepted) {
            return;
        }
        if let Err(rejection) = self.apply_job_event(job, |job| Event::JobRequeued { job }) {
            tracing::debug!(%job, %rejection, "job was not requeued because it has ended");
            return;
        }
        tracing::info!(%job, "runner manager did not receive or accept the job, job requeued");
        if let Some(row) = self.state.job_mut(job) {
            let key = row.runner.take().zip(row.detail.idempotency_key.take());
            row.system_id = None;
            if let Some(key) = key {
                self.state.jobs_by_key.remove(&key);
            }
        }
        self.state.last_contact.remove(&job);
    }

    fn preparer(&self) -> JobPreparer<'_> {
        let (upstream, queue_len) = (self.upstream(), self.queue.len());
        JobPreparer { upstream, options: &self.options, keys: &self.keys, signer: &self.signer, queue_len }
    }

    pub(crate) fn upstream(&self) -> UpstreamResolver<'_> {
        let is_loaded_or_absent =
            |pipeline| self.state.pipelines.contains_key(&pipeline) || self.residency.is_absent(pipeline);
        UpstreamResolver {
            state: &self.state,
            blobs: &*self.blobs,
            now: self.now(),
            skips_missing: false,
            is_loaded_or_absent: Box::new(is_loaded_or_absent),
        }
    }
}
