//! From a slot to an agent that has the job (life-of-a-job R2, R3).
//!
//! On an instance an agent asks before the user's first command, so a place that is lost before costs the job nothing but time:
//! it gets another one, and the trace says so. Only a job that goes on in what another one left there has no other place.
//! On this host, and with an agent that does not ask, the user's script may have been started from the first `Run` on, whatever
//! was heard of it: then only that agent is asked again, and never another one (J2).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_agent_api::client::{AgentError, RunOptions, RunOutcome, Silence, run_until_accepted};
use muster_config::settings::TlsFiles;
use muster_executor::{Directories, ExecutionEnvironment, ExecutorError, LeaseRecord, Replaceable, Sharing, SlotKey};
use muster_job::{FailureReason, Secret};

use super::interrupt::{Interruption, heard};
use super::progress::{AgentProgress, EnvironmentUse};
use super::{Actor, JobError, Next};
use crate::lower::{Certificates, LowerError, Placement, asking, lower, suspension};
use crate::state::JobState;

/// Reason why an environment without the capability is not suspended.
pub(super) const NOT_SUSPENDABLE: &str = "jobs do not run on instances of their own";

/// Times that a place is tried in which no agent can be reached, before the job fails.
const PLACES_MAX: u32 = 3;
/// Places that may be lost under a job before it fails.
const MOVES_MAX: usize = 10;
/// What the author of a job can do whose place was lost.
const AGAIN: &str = "run the job again, or let `retry: { max: 1, when: runner_system_failure }` in it do so";
/// The same where the place was there, and answered nothing.
const AGAIN_IN_SILENCE: &str = "run the job again, or let `retry: { max: 1, when: runner_system_failure }` in it do so; if it \
    comes to that again, the job may need more memory than an instance has";
/// What the author of a job can do that was to go on in what another one left, where that is lost.
const LEFT_BEHIND: &str =
    "the job environment that this job resumes was there and is lost with it: run the job again that left it";
/// How long a job that is to end waits for the answer to its `Run`.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);
/// Between two tries to reach a place, at first and at most.
const REACH_AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// What came of handing a job to an agent.
pub(super) enum Handed {
    /// An agent has it. `asks`: it waits before the user's first command until it is told that it may go on.
    Taken { asks: bool },
    /// The instance's agent would start the user's script without asking, and has not heard of the job.
    StartApprovalUnsupported,
    /// It does not take it, or no plan can be made of the job.
    Refused { reason: FailureReason, exit_code: Option<i32>, message: String },
    /// No agent was reached. `asked`: one may have heard of the job all the same.
    NotReached { message: String, asked: bool },
    /// The place is gone for good.
    Lost { message: String },
}

impl Handed {
    fn refused(message: String) -> Self {
        Self::Refused { reason: FailureReason::RunnerSystemFailure, exit_code: None, message }
    }
}

impl From<LowerError> for Handed {
    fn from(error: LowerError) -> Self {
        Self::Refused { reason: error.reason, exit_code: error.exit_code, message: error.message }
    }
}

impl Actor {
    /// Waits until one more job may run (J4). A cancel, or a coordinator that has no use for the job any more, ends the wait.
    async fn wait_to_run(&mut self) -> Result<Option<Next>, JobError> {
        if self.permit.is_some() {
            return Ok(None);
        }
        let context = Arc::clone(&self.context);
        let watch = Arc::clone(&self.watch);
        let waits = || {
            tracing::info!("job waits: `concurrent` or `limit` is reached");
            watch.set_waiting_to_run(true);
        };
        let limit = crate::lower::job_timeout(&self.payload);
        let permit = tokio::select! {
            permit = tokio::time::timeout(limit, context.limits.acquire(&context.key, waits)) => permit,
            why = heard(&mut self.uploader, &context.cancel, None) => {
                self.watch.set_waiting_to_run(false);
                return Ok(Some(self.interrupted(why).await?));
            }
        };
        self.watch.set_waiting_to_run(false);
        match permit {
            Ok(permit) => self.permit = Some(permit),
            Err(_) => {
                let limit = muster_job::go_duration(limit);
                let message = format!("the job waited {limit} because `concurrent` or `limit` was reached; {AGAIN}");
                return Ok(Some(self.system_failure(&message).await?));
            }
        }
        // Nothing was prepared until now.
        self.prepare_by = self.prepare_limit().map(|limit| tokio::time::Instant::now() + limit);
        Ok(None)
    }

    /// R2: waits for a slot. A cancel, or a coordinator that has no use for the job any more, ends the wait.
    pub(super) async fn lease(&mut self) -> Result<Next, JobError> {
        if let Some(next) = self.wait_to_run().await? {
            return Ok(next);
        }
        let runner = muster_job::short_token(self.context.runner.token.expose());
        let key = SlotKey { runner, project_id: self.payload.job_info.project_id };
        let context = Arc::clone(&self.context);
        let asking = match asking(&self.payload, &context.runner) {
            Ok(asking) => asking,
            Err(message) => return self.system_failure(&message).await,
        };
        let lease = tokio::select! {
            lease = context.provider.acquire(&key, &asking) => lease,
            why = heard(&mut self.uploader, &context.cancel, self.prepare_by) => return self.interrupted(why).await,
        };
        match lease {
            Ok(lease) => {
                self.moved.extend(lease.reschedule_notes.iter().map(|why| moved(why, lease.record.vm().is_some())));
                // What an earlier place wrote stays in the trace.
                let next = self.state.clone().lease(lease.record.clone(), self.uploader.end())?;
                self.lease = Some(lease);
                self.no_lease = None;
                self.move_to(next).await
            }
            Err(error) => {
                self.watch.no_environment();
                let message = match error {
                    ExecutorError::NotAcquired(message) => message,
                    error => format!("no environment can be had: {error}"),
                };
                self.end(FailureReason::RunnerSystemFailure, None, &message).await
            }
        }
    }

    /// R3: hands the job to the agent.
    pub(super) async fn start(&mut self) -> Result<Next, JobError> {
        let handed = match self.hand_over().await {
            Ok(handed) => handed,
            Err(why) => return self.interrupted(why).await,
        };
        match handed {
            Handed::Taken { asks: true } => {
                self.watch.running();
                self.watch().await
            }
            Handed::Taken { asks: false } => {
                let next = self.state.clone().start()?;
                self.watch.running();
                self.move_to(next).await
            }
            // From now on it counts as started, and it is handed over then.
            Handed::StartApprovalUnsupported => {
                let next = self.state.clone().start()?;
                self.move_to(next).await
            }
            Handed::Refused { reason, exit_code, message } => self.end(reason, exit_code, &message).await,
            Handed::NotReached { message, .. } if self.is_movable() => {
                self.give_up_place(&message);
                self.move_on(&message).await
            }
            Handed::Lost { message } if self.is_movable() => self.move_on(&message).await,
            Handed::NotReached { message, asked } => {
                self.places_tried += 1;
                if self.places_tried >= PLACES_MAX {
                    return self.lost(&message).await;
                }
                if asked {
                    // The agent may have the job by now, in the directory of this slot: no other job must get it.
                    tracing::warn!(%message, tried = self.places_tried, "the agent does not answer, it is asked again");
                    return Ok(Next::State);
                }
                tracing::warn!(%message, tried = self.places_tried, "no agent reached, nothing started: another slot is tried");
                let next = self.state.clone().lose_lease()?;
                self.leave(next).await
            }
            Handed::Lost { message } => self.lost(&message).await,
        }
    }

    /// Whether nothing of the user's can have run, so that another instance can have the job (J2).
    pub(super) fn is_movable(&self) -> bool {
        matches!(self.state, JobState::Leased { .. }) && self.is_elsewhere()
    }

    /// The place is lost, and another one gets the job, unless it goes on in what another job left there.
    pub(super) async fn move_on(&mut self, message: &str) -> Result<Next, JobError> {
        if self.moved.len() >= MOVES_MAX || self.is_resumed() {
            return self.lost(message).await;
        }
        tracing::warn!(message, "the place is lost, nothing of the user's has run: the job gets another one");
        let had_machine = self.state.held().is_some_and(|record| record.vm().is_some());
        self.moved.push(moved(message, had_machine));
        if self.progress.reschedule() {
            self.prepare_by = self.prepare_limit().map(|limit| tokio::time::Instant::now() + limit);
        }
        self.environment_use = EnvironmentUse::InUse;
        self.no_lease = None;
        let next = self.state.clone().try_elsewhere()?;
        self.leave(next).await
    }

    /// The job is lost with its place: what its author can do stands behind the reason.
    pub(super) async fn lost(&mut self, message: &str) -> Result<Next, JobError> {
        let again = match (self.is_resumed(), self.environment_use) {
            (true, _) => LEFT_BEHIND,
            (false, EnvironmentUse::InUse) => AGAIN,
            (false, EnvironmentUse::Retired | EnvironmentUse::Suspended) => AGAIN_IN_SILENCE,
        };
        self.system_failure(&format!("{message}; {again}")).await
    }

    /// It goes on in what another job left, which is there once.
    fn is_resumed(&self) -> bool {
        suspension::is_resumed(&self.payload, &self.context.runner)
    }

    /// Gives the slot back; stored before.
    async fn leave(&mut self, next: JobState) -> Result<Next, JobError> {
        self.lowered = None;
        let moved = self.move_to(next).await;
        if let Some(lease) = self.lease.take() {
            lease.release();
        }
        moved
    }

    /// The place answers nothing: no other job is to get it, and nothing more is asked of it.
    pub(super) fn give_up_place(&mut self, why: &str) {
        if let Some(lease) = &self.lease {
            if let Some(environment) = lease.environment.replaceable() {
                environment.retire(why);
            }
            // An agent of this host that is only slow is still to end the job.
            if self.is_elsewhere() {
                self.environment_use = EnvironmentUse::Retired;
            }
        }
    }

    /// Reaches the place and says `Run`, each for the time of grace, until an agent takes or refuses the job, unless the
    /// job is to end, or the place is lost, meanwhile.
    pub(super) async fn hand_over(&mut self) -> Result<Handed, Interruption> {
        let (Some(lease), Some(id)) = (&self.lease, self.run_id()) else {
            let message = self.no_lease.clone().unwrap_or_else(|| "the slot of the job is lost".to_owned());
            return Ok(Handed::Lost { message });
        };
        let environment = Arc::clone(&lease.environment);
        // An agent that had the job once has prepared it.
        let by =
            self.prepare_by.filter(|_| matches!(self.state, JobState::Leased { .. }) && !self.progress.is_dispatched());
        let grace = self.context.agent_grace;
        if self.lowered.is_none() {
            let directories = tokio::select! {
                directories = tokio::time::timeout(grace, reach(environment.as_ref())) => directories,
                message = environment.lost() => return Ok(Handed::Lost { message }),
                why = heard(&mut self.uploader, &self.context.cancel, by) => return Err(why),
            };
            let Ok(directories) = directories else {
                let message = format!("no agent was reached within {} s", grace.as_secs());
                return Ok(Handed::NotReached { message, asked: false });
            };
            let suspends = match environment.suspendable() {
                Some(environment) => environment.can_suspend().await,
                None => Err(NOT_SUSPENDABLE.to_owned()),
            };
            if let Err(error) = self.lower(directories, environment.trace_lines(), suspends) {
                return Ok(error.into());
            }
        }
        let Some(lowered) = &self.lowered else { return Ok(Handed::refused("the job has no plan".to_owned())) };
        let sent = AtomicBool::new(false);
        let options = RunOptions {
            is_remote: self.is_elsewhere(),
            require_start_approval: lowered.plan.require_start_approval,
            only_with_start_approval: self.is_movable(),
            was_sent: &sent,
        };
        let request = || lowered.request(&id).map_err(|error| AgentError::Refused(error.to_string()));
        // That a connection is broken has to be noticed first.
        let mut silence = Silence::new(unresponsive_timeout(environment.as_ref()).map_or(grace, |timeout| timeout * 2));
        let run = async {
            tokio::select! {
                answer = run_until_accepted(environment.as_ref(), request, options) => Some(answer),
                () = silence.exceeded() => None,
            }
        };
        let mut run = std::pin::pin!(run);
        let answer = tokio::select! {
            answer = &mut run => answer,
            message = environment.lost() => return Ok(Handed::Lost { message }),
            // An agent that is answering just now winds the job down better than anyone else.
            why = heard(&mut self.uploader, &self.context.cancel, by) => {
                tokio::time::timeout(ANSWER_LIMIT, run).await.map_err(|_| why)?
            }
        };
        let asked = sent.load(Ordering::Relaxed);
        Ok(match answer {
            Some(Ok(RunOutcome::Accepted { awaits_approval: asks })) => {
                self.progress.reach(AgentProgress::Dispatched);
                Handed::Taken { asks }
            }
            Some(Ok(RunOutcome::StartApprovalUnsupported)) => Handed::StartApprovalUnsupported,
            Some(Err(AgentError::Refused(message))) => Handed::refused(message),
            Some(Err(error)) => Handed::NotReached { message: error.to_string(), asked },
            None => Handed::NotReached { message: self.silent(None), asked },
        })
    }

    /// What is said of a place that answers nothing; `last`: how that was seen.
    pub(super) fn silent(&self, last: Option<&AgentError>) -> String {
        let how = last.map(|error| format!(": {error}")).unwrap_or_default();
        match &self.lease {
            Some(lease) if self.is_elsewhere() => {
                let (environment, machine) = (&lease.record.environment, lease.record.vm());
                let place = machine.map(|machine| format!("virtual machine {} on ", machine.id));
                format!("{}instance {environment} was lost: nothing there answers{how}", place.unwrap_or_default())
            }
            _ => format!("the job's environment was lost: the agent does not answer{how}"),
        }
    }

    /// Whether the job's place is one of several, each with an agent of its own.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.state.held().is_some_and(LeaseRecord::is_remote)
    }

    /// How long preparing the job may take: `prepare_timeout`, where it is not longer than the job's own limit.
    pub(super) fn prepare_limit(&self) -> Option<Duration> {
        let job = crate::lower::job_timeout(&self.payload);
        self.context.runner.prepare_timeout.filter(|limit| *limit <= job)
    }

    /// Lowers the payload; always to the same plan for the same slot.
    fn lower(&mut self, own: Directories, words: Vec<String>, suspends: Result<(), String>) -> Result<(), LowerError> {
        let Some(lease) = &self.lease else { return Ok(()) };
        let runner = &self.context.runner;
        let placement = Placement {
            directories: own.with(runner.builds_dir.as_deref(), runner.cache_dir.as_deref()),
            slot: lease.record.slot.clone(),
            runner: Arc::clone(runner),
            host_name: self.context.host_name.clone(),
            moved: self.moved.clone(),
            way: words,
            suspends,
            certificates: certificates(&runner.tls),
            share: lease.environment.sharing().and_then(Sharing::slot_share),
        };
        let lowered = lower(&self.payload, &placement);
        self.watch.lowered(&lowered);
        let mut lowered = lowered?;
        // A job's own word for the trace that it belongs to stands.
        let own = self.watch.traceparent().filter(|own| lowered.variables.iter().all(|known| known.key != own.key));
        lowered.variables.extend(own);
        lowered.plan.require_start_approval = self.is_elsewhere();
        self.lowered = Some(lowered);
        Ok(())
    }
}

/// Returns how long the environment may answer nothing. `None` means as long as the manager's configuration says.
pub(super) fn unresponsive_timeout(environment: &dyn ExecutionEnvironment) -> Option<Duration> {
    environment.replaceable().map(Replaceable::unresponsive_timeout)
}

/// The one line of a job that is moved.
fn moved(message: &str, had_machine: bool) -> String {
    let to = if had_machine { "another virtual machine" } else { "another instance" };
    format!("{message}; none of the job's commands had begun, so it was moved to {to}")
}

/// Where jobs find their files in the place, once it is reached; the caller bounds the time.
async fn reach(environment: &dyn ExecutionEnvironment) -> Directories {
    let (mut wait, cap) = REACH_AGAIN;
    loop {
        match environment.directories().await {
            Ok(directories) => return directories,
            Err(error) => tracing::warn!(%error, "the place of the job is not reached, trying again"),
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(cap);
    }
}

/// What the runner's keys lead to, read anew for each job, because certificates are replaced while a manager runs. A file
/// that cannot be read leaves the job without it: the calls that need it say more than this could.
fn certificates(files: &TlsFiles) -> Certificates {
    let read = |path: &Option<std::path::PathBuf>| {
        let path = path.as_ref()?;
        std::fs::read_to_string(path)
            .inspect_err(|error| tracing::warn!(path = %path.display(), %error, "a certificate cannot be read"))
            .ok()
            .map(Secret::new)
    };
    Certificates { ca: read(&files.ca), certificate: read(&files.certificate), key: read(&files.key) }
}
