//! Waits for a slot, and gives the job to an agent (R2, R3).
//!
//! Until start approval, a job whose instance is lost is rescheduled, unless it resumes a suspended environment.
//!
//! Without start approval, the user's script may start as soon as the first `Run` is sent. From then on, only the agent that got `Run` is
//! contacted (J2).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_agent_api::client::{AgentError, RunOptions, RunOutcome, Silence, run_until_accepted};
use muster_executor::{Directories, ExecutionEnvironment, ExecutorError, LeaseRecord, Sharing, SlotKey};
use muster_job::FailureReason;

use super::actor::{JobActor, Next};
use super::docker_files::{docker_files, helper_answers};
use super::environment::{NOT_SUSPENDABLE, unresponsive_timeout};
use super::interrupt::{Interruption, watch_for_interruption};
use super::preparation::certificates;
use super::progress::AgentProgress;
use super::{JobError, backoff, caches, secrets};
use crate::lower::{JobContext, LowerError, environment_request, job_timeout, suspension};
use crate::state::JobState;

/// Advice after a long wait, or if the job was lost with its environment.
const RETRY_HINT: &str =
    "retry the job, or set `retry: { max: 1, when: runner_system_failure }` on it to retry it automatically";
/// Advice if the environment exists but stopped responding.
const RETRY_HINT_UNRESPONSIVE: &str = "retry the job, or set `retry: { max: 1, when: runner_system_failure }` on it to retry \
     it automatically; if this happens again, the job may need more memory than its instance has";
/// Advice if a suspended environment was lost.
const RESUME_LOST_HINT: &str =
    "the suspended environment that this job resumes was also lost; retry the job that created it";
/// Maximum wait for the answer to `Run` when the job is interrupted.
const RUN_ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) enum DispatchOutcome {
    /// If `needs_approval` is true, the agent asks before the user's first command.
    Accepted { needs_approval: bool },
    /// The agent does not support start approval, and did not get the job.
    NoStartApproval,
    /// The agent refused, or the job could not be lowered, or its secrets could not be fetched.
    Refused { reason: FailureReason, exit_code: Option<i32>, message: String, trace_lines: Vec<String> },
    /// If `was_sent` is true, an agent may have the job anyway.
    NotReached { message: String, was_sent: bool },
    /// The environment is lost permanently.
    Lost { message: String },
}

impl DispatchOutcome {
    fn refused(message: String) -> Self {
        let reason = FailureReason::RunnerSystemFailure;
        Self::Refused { reason, exit_code: None, message, trace_lines: Vec::new() }
    }
}

impl From<LowerError> for DispatchOutcome {
    fn from(error: LowerError) -> Self {
        let LowerError { message, reason, exit_code, trace_lines, .. } = error;
        Self::Refused { reason, exit_code, message, trace_lines }
    }
}

impl JobActor {
    /// Waits until `concurrent` and `limit` allow the job (J4). `None` means that it may run.
    async fn wait_to_run(&mut self) -> Result<Option<Next>, JobError> {
        if self.permit.is_some() {
            return Ok(None);
        }
        let runner = Arc::clone(&self.runner);
        let watch = Arc::clone(&self.watch);
        let on_wait = || {
            tracing::info!("job waits because `concurrent` or `limit` is reached");
            watch.set_waiting_to_run(true);
        };
        let timeout = job_timeout(&self.payload);
        let permit = tokio::select! {
            permit = tokio::time::timeout(timeout, runner.limits.acquire(&runner.key, on_wait)) => permit,
            interruption = watch_for_interruption(&mut self.uploader, &runner.cancel, None) => {
                self.watch.set_waiting_to_run(false);
                return Ok(Some(self.end_interrupted(&interruption).await?));
            }
        };
        self.watch.set_waiting_to_run(false);
        match permit {
            Ok(permit) => self.permit = Some(permit),
            Err(_) => {
                let timeout = muster_job::go_duration(timeout);
                let message =
                    format!("the job waited {timeout} because `concurrent` or `limit` was reached; {RETRY_HINT}");
                return Ok(Some(self.system_failure(&message).await?));
            }
        }
        // The wait does not count against the deadline of the preparation.
        self.preparation.restart_deadline();
        Ok(None)
    }

    /// Waits for a slot (R2). An interruption of the job ends the wait.
    pub(super) async fn acquire_lease(&mut self) -> Result<Next, JobError> {
        if let Some(next) = self.wait_to_run().await? {
            return Ok(next);
        }
        let runner = Arc::clone(&self.runner);
        let token = muster_job::short_token(runner.runner.token.expose());
        let key = SlotKey { runner: token, project_id: self.payload.job_info.project_id };
        let request = match environment_request(&self.payload, &runner.runner) {
            Ok(request) => request,
            Err(error) => return self.system_failure(&error.to_string()).await,
        };
        let deadline = self.preparation.deadline();
        let lease = tokio::select! {
            lease = runner.executor.acquire(&key, &request) => lease,
            interruption = watch_for_interruption(&mut self.uploader, &runner.cancel, deadline) => {
                return self.end_interrupted(&interruption).await;
            }
        };
        match lease {
            Ok(lease) => {
                for note in &lease.reschedule_notes {
                    self.preparation.note_reschedule(note, lease.record.vm().is_some());
                }
                // The output of earlier attempts remains in the trace.
                let (record, trace_offset) = (lease.record.clone(), self.uploader.end());
                self.environment.assign(lease);
                self.transition(|state| state.assign_lease(record, trace_offset))
            }
            Err(error) => {
                self.watch.no_environment();
                let message = match error {
                    ExecutorError::NotAcquired(message) => message,
                    error => format!("failed to acquire an environment: {error}"),
                };
                self.system_failure(&message).await
            }
        }
    }

    /// Gives the job to the agent (R3).
    pub(super) async fn start(&mut self) -> Result<Next, JobError> {
        let outcome = match self.dispatch().await {
            Ok(outcome) => outcome,
            Err(interruption) => return self.end_interrupted(&interruption).await,
        };
        match outcome {
            DispatchOutcome::Accepted { needs_approval: true } => {
                self.watch.running();
                self.follow_and_report().await
            }
            DispatchOutcome::Accepted { needs_approval: false } => {
                self.watch.running();
                self.transition(JobState::start)
            }
            // The job now counts as started, and is dispatched again.
            DispatchOutcome::NoStartApproval => self.transition(JobState::start),
            DispatchOutcome::Refused { reason, exit_code, message, trace_lines } => {
                self.fail_with_lines(reason, exit_code, &message, &trace_lines).await
            }
            DispatchOutcome::NotReached { message, .. } if self.can_reschedule() => {
                self.environment.retire(&message, self.is_remote());
                self.reschedule(&message).await
            }
            DispatchOutcome::Lost { message } if self.can_reschedule() => self.reschedule(&message).await,
            DispatchOutcome::NotReached { message, was_sent } => {
                if !self.preparation.count_unreachable() {
                    return self.fail_as_lost(&message).await;
                }
                let slots = self.preparation.unreachable_attempts();
                if was_sent {
                    // The agent may have the job in this slot, so no other job must get the slot.
                    tracing::warn!(error = message, slots, "agent does not respond, retrying");
                    return Ok(Next::Continue);
                }
                tracing::warn!(error = message, slots, "failed to reach an agent, trying another slot");
                self.return_lease(JobState::on_lease_lost)
            }
            DispatchOutcome::Lost { message } => self.fail_as_lost(&message).await,
        }
    }

    /// Returns whether no user command can have run (J2). False for jobs on this host.
    pub(super) fn can_reschedule(&self) -> bool {
        matches!(self.row.state(), JobState::Leased { .. }) && self.is_remote()
    }

    /// Reschedules the job. A job that resumes a suspended environment fails instead.
    pub(super) async fn reschedule(&mut self, message: &str) -> Result<Next, JobError> {
        if !self.preparation.may_reschedule() || self.is_resumed() {
            return self.fail_as_lost(message).await;
        }
        tracing::warn!(error = message, "environment lost before a user command ran, rescheduling the job");
        let had_machine = self.row.state().held_lease().is_some_and(|record| record.vm().is_some());
        self.preparation.note_reschedule(message, had_machine);
        if self.progress.reschedule() {
            self.preparation.restart_deadline();
        }
        self.return_lease(JobState::reschedule)
    }

    pub(super) async fn fail_as_lost(&mut self, message: &str) -> Result<Next, JobError> {
        let hint = match (self.is_resumed(), self.environment.must_close()) {
            (true, _) => RESUME_LOST_HINT,
            (false, true) => RETRY_HINT,
            (false, false) => RETRY_HINT_UNRESPONSIVE,
        };
        self.system_failure(&format!("{message}; {hint}")).await
    }

    fn is_resumed(&self) -> bool {
        suspension::resumes_environment(&self.payload, &self.runner.runner)
    }

    /// Stores the state that `change` computes, and then returns the slot.
    fn return_lease(
        &mut self,
        change: impl FnOnce(JobState) -> Result<JobState, crate::state::InvalidTransition>,
    ) -> Result<Next, JobError> {
        self.preparation.reset_plan();
        let stored = self.transition(change);
        self.environment.unassign();
        stored
    }

    /// Sends `Run` until an agent accepts or refuses the job.
    ///
    /// Waits for the answer for twice the environment's own timeout. If the environment has no own timeout, waits for
    /// `agent_reconnect_timeout`.
    pub(super) async fn dispatch(&mut self) -> Result<DispatchOutcome, Interruption> {
        let (Some(lease), Some(id)) = (self.environment.lease(), self.row.agent_run_id()) else {
            return Ok(DispatchOutcome::Lost { message: self.environment.missing_reason() });
        };
        let environment = Arc::clone(&lease.environment);
        // The deadline no longer applies once an agent has accepted the job.
        let deadline = self
            .preparation
            .deadline()
            .filter(|_| matches!(self.row.state(), JobState::Leased { .. }) && !self.progress.is_dispatched());
        let timeout = self.runner.agent_reconnect_timeout;
        if self.preparation.lowered().is_none() {
            let directories = tokio::select! {
                directories = tokio::time::timeout(timeout, connect(environment.as_ref())) => directories,
                message = environment.lost() => return Ok(DispatchOutcome::Lost { message }),
                interruption = watch_for_interruption(&mut self.uploader, &self.runner.cancel, deadline) => {
                    return Err(interruption);
                }
            };
            let Ok(directories) = directories else {
                let message = format!("no agent was reached within {} s", timeout.as_secs());
                return Ok(DispatchOutcome::NotReached { message, was_sent: self.progress.may_be_at_agent() });
            };
            let Some(mut job) = self.context(environment.as_ref(), directories).await else {
                return Ok(DispatchOutcome::Lost { message: self.environment.missing_reason() });
            };
            let payload = Arc::clone(&self.payload);
            let fetched = tokio::select! {
                fetched = async { tokio::join!(secrets::fetch(&payload, &job), helper_answers(&payload, &job)) } => fetched,
                message = environment.lost() => return Ok(DispatchOutcome::Lost { message }),
                interruption = watch_for_interruption(&mut self.uploader, &self.runner.cancel, deadline) => {
                    return Err(interruption);
                }
            };
            match fetched {
                (Ok(secrets), helpers) => (job.secrets, job.docker.helpers) = (secrets, helpers),
                (Err(error), _) => return Ok(error.into()),
            }
            let is_remote = self.is_remote();
            if let Err(error) = self.preparation.lower(&payload, &job, &self.watch, is_remote) {
                return Ok(error.into());
            }
        }
        let Some(lowered) = self.preparation.lowered() else {
            return Ok(DispatchOutcome::refused("the job has no plan".to_owned()));
        };
        let sent = AtomicBool::new(false);
        let options = RunOptions {
            is_remote: self.is_remote(),
            require_start_approval: lowered.plan.require_start_approval,
            only_with_start_approval: self.can_reschedule(),
            was_sent: &sent,
        };
        let request = || lowered.request(&id).map_err(|error| AgentError::Refused(error.to_string()));
        // Twice the timeout, because a broken connection must be noticed first.
        let mut silence = Silence::new(unresponsive_timeout(environment.as_ref()).map_or(timeout, |limit| limit * 2));
        let run = async {
            tokio::select! {
                answer = run_until_accepted(environment.as_ref(), request, options) => Some(answer),
                () = silence.exceeded() => None,
            }
        };
        let mut run = std::pin::pin!(run);
        let answer = tokio::select! {
            answer = &mut run => Ok(answer),
            message = environment.lost() => return Ok(DispatchOutcome::Lost { message }),
            // Waits a moment for the answer, because an agent that has the job can end it properly.
            interruption = watch_for_interruption(&mut self.uploader, &self.runner.cancel, deadline) => {
                tokio::time::timeout(RUN_ANSWER_TIMEOUT, run).await.map_err(|_| interruption)
            }
        };
        if sent.load(Ordering::Relaxed) {
            self.progress.reach(AgentProgress::Sent);
        }
        let was_sent = self.progress.may_be_at_agent();
        Ok(match answer? {
            Some(Ok(RunOutcome::Accepted { awaits_approval })) => {
                self.progress.reach(AgentProgress::Dispatched);
                DispatchOutcome::Accepted { needs_approval: awaits_approval }
            }
            Some(Ok(RunOutcome::StartApprovalUnsupported)) => DispatchOutcome::NoStartApproval,
            Some(Err(AgentError::Refused(message))) => DispatchOutcome::refused(message),
            Some(Err(error)) => DispatchOutcome::NotReached { message: error.to_string(), was_sent },
            None => DispatchOutcome::NotReached { message: self.unresponsive_message(None), was_sent },
        })
    }

    /// `error` is the last error of the connection.
    pub(super) fn unresponsive_message(&self, error: Option<&AgentError>) -> String {
        let cause = error.map(|error| format!(": {error}")).unwrap_or_default();
        match self.environment.lease() {
            Some(lease) if self.is_remote() => {
                let (instance, machine) = (&lease.record.environment, lease.record.vm());
                let machine = machine.map(|machine| format!("virtual machine {} on ", machine.id)).unwrap_or_default();
                format!("{machine}instance {instance} was lost: it does not respond{cause}")
            }
            _ => format!("the job's environment was lost: its agent does not respond{cause}"),
        }
    }

    pub(super) fn is_remote(&self) -> bool {
        self.row.state().held_lease().is_some_and(LeaseRecord::is_remote)
    }

    /// Returns the context without secrets. `None` means that the job has no slot.
    async fn context(&self, environment: &dyn ExecutionEnvironment, directories: Directories) -> Option<JobContext> {
        let slot = self.environment.lease()?.record.slot.clone();
        let suspend_support = match environment.suspendable() {
            Some(environment) => environment.can_suspend().await,
            None => Err(NOT_SUSPENDABLE.to_owned()),
        };
        let settings = &self.runner.runner;
        let mut job = JobContext {
            // If there is an inner environment, such as a container, the configured directories are paths inside it.
            directories: match settings.has_inner_environment() {
                true => directories,
                false => directories.with(settings.builds_dir.as_deref(), settings.cache_dir.as_deref()),
            },
            slot,
            runner: Arc::clone(settings),
            host_name: self.runner.host_name.clone(),
            reschedule_notes: self.preparation.reschedule_notes().to_vec(),
            connection_lines: environment.trace_lines(),
            suspend_support,
            certificates: certificates(&settings.tls),
            docker: docker_files(settings).await,
            share: environment.sharing().and_then(Sharing::slot_share),
            cache_objects: BTreeMap::new(),
            cache_chunks: BTreeMap::new(),
            secrets: Vec::new(),
        };
        (job.cache_objects, job.cache_chunks) = caches::sign(&self.runner.cache_stores, &self.payload, &job).await;
        Some(job)
    }
}

/// Retries until the environment is connected, and returns the directories of its jobs.
async fn connect(environment: &dyn ExecutionEnvironment) -> Directories {
    let (mut wait, cap) = backoff::RETRY_BACKOFF;
    loop {
        match environment.directories().await {
            Ok(directories) => return directories,
            Err(error) => tracing::warn!(%error, "failed to connect to the job's environment, retrying"),
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(cap);
    }
}
