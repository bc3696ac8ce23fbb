//! One job's actor: from its row to its report. The same path after a start as after a crash.
//!
//! ```text
//! accept the job, whose payload is stored: nothing is started before the coordinator has heard it  (R1)
//! ask the coordinator where the trace stands (only after a restart: is the job still ours?)
//! taken   -> wait until one more may run, and for a slot       (R2)
//! leased  -> lower, connect, Run; on an instance copy the log, and wait for the user's first command (R3)
//! running -> copy the log, wait for the result                 (R4)
//! ended   -> append the manager's own words
//! finished  as running, without a slot: the coordinator did not take the end at once
//! then      final update until acknowledged, Close, row deleted (R5, R6)
//! ```
//!
//! Nothing is lost if the process dies between two lines: `Run` is idempotent, the agent's spool keeps log and result,
//! and the coordinator knows what it has.

mod beginning;
mod follow;
mod give_back;
mod interrupt;
mod outage;
mod park;
mod place;
mod progress;
mod report;
mod uploader;

use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_agent_api::client;
use muster_config::settings::{RunnerKey, RunnerSettings};
use muster_executor::{Executor, ExecutorError, Lease};
use muster_job::mask::Secrets;
use muster_job::{FailureReason, JobId};
use muster_runner_api::client::Client;
use muster_runner_api::payload::JobPayload;
use muster_runner_api::retry::{Backoff, Policy};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use crate::failure::last_words;
use crate::lower::LoweredJob;
use crate::observe::JobWatch;
use crate::running::{RunLimits, RunPermit};
use crate::state::{IllegalMove, JobState, OwnEnd};
use crate::store::{RunName, Store, StoreError, StoredJob};
use follow::Followed;
use give_back::Afterwards;
pub(crate) use give_back::Unreported;
use interrupt::{Interruption, heard};
pub(crate) use outage::Answering;
use progress::{AgentProgress, EnvironmentUse};
use uploader::{Uploader, Verdict};

/// Between two tries to go on with a job whose state could not be stored.
const STORE_AGAIN: Policy = Policy { first: Duration::from_millis(500), cap: Duration::from_secs(30), attempts: None };
/// How long closing a job at the agent is tried; after that the agent's retention removes it (R6).
const CLOSE_LIMIT: Duration = Duration::from_secs(90);

/// What the actors of one runner's jobs share.
pub(crate) struct Context {
    pub(crate) client: Client,
    /// As it was when the job was taken.
    pub(crate) runner: Arc<RunnerSettings>,
    /// Key of the runner in the settings that were in force when the job was taken up.
    pub(crate) key: RunnerKey,
    /// How many jobs may run.
    pub(crate) limits: Arc<RunLimits>,
    pub(crate) store: Arc<Store>,
    pub(crate) provider: Arc<dyn Executor>,
    /// How long a lost agent is hoped for.
    pub(crate) agent_grace: Duration,
    /// How long a state that cannot be stored is tried.
    pub(crate) state_patience: Duration,
    /// This machine's name, for the trace.
    pub(crate) host_name: String,
    /// The manager wants its jobs to wind down.
    pub(crate) cancel: CancellationToken,
    /// Jobs without a slot that wait for their report to be taken.
    pub(crate) unreported: Unreported,
    /// Which instances answer.
    pub(crate) answering: Answering,
}

/// Why an actor cannot go on. The row stays: a later start of the manager takes it up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    /// The manager's own store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A defect: the life of a job has no such move.
    #[error(transparent)]
    Move(#[from] IllegalMove),
}

/// What comes after a state.
enum Next {
    /// Another state, stored.
    State,
    /// The final update is acknowledged.
    Reported,
    /// The coordinator has no use for the job.
    Gone,
}

/// One job.
struct Actor {
    context: Arc<Context>,
    watch: Arc<JobWatch>,
    run: RunName,
    /// What the ids of its runs at agents begin with.
    at_agents: String,
    payload: Arc<JobPayload>,
    state: JobState,
    lease: Option<Lease>,
    /// `None` as long as the job waits until it may run, and after its slot was given back.
    permit: Option<RunPermit>,
    /// The lease of an earlier start, until it is there.
    restoring: Option<AbortOnDropHandle<Result<Lease, ExecutorError>>>,
    /// Where the job has ended, after its slot was given back.
    afterwards: Option<Afterwards>,
    progress: AgentProgress,
    environment_use: EnvironmentUse,
    /// Why the lease of an earlier start is not there.
    no_lease: Option<String>,
    /// What the trace is to tell of places that were lost before anything was started.
    moved: Vec<String>,
    lowered: Option<LoweredJob>,
    uploader: Uploader,
    places_tried: u32,
    /// An agent must have the job by then; none: that has no limit of its own.
    prepare_by: Option<tokio::time::Instant>,
}

/// Brings one job to its end, also where `state.log` cannot be written for a while: then it is taken up from its row, as
/// after a start. Without this the job would be reported by nobody as long as this manager lives (J1). Where nothing can
/// be written for [`Context::state_patience`] the manager is to end: its exit code tells whoever watches over it, and the
/// job goes on at its agent. `permit` is that of a job that has a slot already.
pub(crate) async fn execute(
    context: Arc<Context>,
    watch: Arc<JobWatch>,
    job: StoredJob,
    recovered: bool,
    permit: Option<RunPermit>,
) -> Result<(), JobError> {
    let run = job.run.clone();
    let mut backoff = Backoff::new(STORE_AGAIN);
    let mut began = tokio::time::Instant::now();
    let mut failing_since: Option<tokio::time::Instant> = None;
    // The slot stays the job's between two tries: nobody else may have it while its place is in use (J4, J5).
    let mut kept = Kept { lease: None, permit };
    let mut result = execute_once(Arc::clone(&context), &watch, job, recovered, &mut kept).await;
    while let Err(JobError::Store(error)) = result {
        let now = tokio::time::Instant::now();
        if now.duration_since(began) > STORE_AGAIN.cap {
            // It went on in between.
            failing_since = None;
            backoff.reset();
        }
        let since = *failing_since.get_or_insert(now);
        if now.duration_since(since) >= context.state_patience {
            return Err(error.into());
        }
        let wait = backoff.next_wait(None).unwrap_or(STORE_AGAIN.cap);
        tracing::error!(
            error = &error as &dyn std::error::Error,
            wait_ms = wait.as_millis(),
            "the job is taken up again"
        );
        tokio::time::sleep(wait).await;
        began = tokio::time::Instant::now();
        result = match context.store.job(&run, &context.runner) {
            Ok(Some(job)) => execute_once(Arc::clone(&context), &watch, job, true, &mut kept).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error.into()),
        };
    }
    result
}

/// What a job keeps while it is taken up again.
struct Kept {
    lease: Option<Lease>,
    permit: Option<RunPermit>,
}

/// Brings one job from where its row stands to its end, and deletes the row. What it keeps if that fails is left in `kept`.
async fn execute_once(
    context: Arc<Context>,
    watch: &Arc<JobWatch>,
    job: StoredJob,
    recovered: bool,
    kept: &mut Kept,
) -> Result<(), JobError> {
    let at_agents = job.at_agents();
    let StoredJob { run, payload, state, .. } = job;
    let payload = Arc::new(payload);
    let uploader = Uploader::new(context.client.clone(), Arc::clone(&payload), Arc::clone(watch), &context.runner);
    let own = kept.lease.take().filter(|lease| state.held() == Some(&lease.record));
    let restoring = state.held().filter(|_| own.is_none()).cloned().map(|record| {
        let provider = Arc::clone(&context.provider);
        AbortOnDropHandle::new(tokio::spawn(async move { provider.restore(&record).await }.in_current_span()))
    });
    let watch = Arc::clone(watch);
    let mut actor = Actor {
        context,
        watch,
        run,
        at_agents,
        payload,
        state,
        lease: own,
        permit: kept.permit.take(),
        restoring,
        afterwards: None,
        progress: AgentProgress::default(),
        environment_use: EnvironmentUse::default(),
        no_lease: None,
        moved: Vec::new(),
        lowered: None,
        uploader,
        places_tried: 0,
        prepare_by: None,
    };
    let result = actor.live(recovered).await;
    *kept = Kept { lease: actor.lease.take(), permit: actor.permit.take() };
    result
}

impl Actor {
    /// From where the row stands to the end.
    async fn live(&mut self, recovered: bool) -> Result<(), JobError> {
        self.find_again();
        self.prepare_by = self.prepare_limit().map(|limit| tokio::time::Instant::now() + limit);
        if recovered {
            tracing::info!(state = self.state.name(), "a job of an earlier start goes on");
            if matches!(self.state, JobState::Running { .. } | JobState::Finished { .. }) {
                self.watch.found_running();
            }
        }
        let mut refused = self.accept().await;
        if refused.is_none() && recovered && self.ask().await == Verdict::Gone {
            refused = Some(Interruption::Gone);
        }
        if refused.is_none() {
            self.watch.checked();
        }
        refused = self.take_back(refused).await;
        loop {
            let next = match refused.take() {
                Some(why) => self.interrupted(why).await?,
                None => self.advance().await?,
            };
            match next {
                Next::State => {}
                Next::Reported => {
                    tracing::info!("job reported");
                    return self.clean_up().await;
                }
                Next::Gone => return self.clean_up().await,
            }
        }
    }

    /// The lease of an earlier start. What makes environments may take long to start, and costs the job nothing: its agent
    /// goes on. A job that is to end has its place closed, where that is there in time.
    async fn take_back(&mut self, refused: Option<Interruption>) -> Option<Interruption> {
        let Some(mut restoring) = self.restoring.take() else { return refused };
        let is_over = refused.is_some() || matches!(self.state, JobState::Ended { .. } | JobState::Parked { .. });
        let limit =
            if is_over { CLOSE_LIMIT } else { crate::lower::job_timeout(&self.payload) + follow::WATCHDOG_SLACK };
        let restored = tokio::select! {
            biased;
            restored = tokio::time::timeout(limit, &mut restoring) => restored,
            why = heard(&mut self.uploader, &self.context.cancel, None), if refused.is_none() => return Some(why),
        };
        let error = match restored {
            Ok(Ok(Ok(lease))) => {
                self.lease = Some(lease);
                return refused;
            }
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the environment of the job was not there within {} s", limit.as_secs()),
        };
        tracing::warn!(error, "the job goes on without its slot being counted");
        self.no_lease = Some(error);
        refused
    }

    fn id(&self) -> JobId {
        self.payload.id
    }

    /// Stores the state that follows. Durable before anything is done in it.
    async fn move_to(&mut self, next: JobState) -> Result<Next, JobError> {
        let began = Instant::now();
        self.context.store.set_state(&self.run, &next)?;
        self.watch.stored("move", began.elapsed());
        tracing::debug!(from = self.state.name(), to = next.name(), "job moved");
        self.state = next;
        Ok(Next::State)
    }

    /// Does what comes next in the job's life.
    async fn advance(&mut self) -> Result<Next, JobError> {
        match &self.state {
            JobState::Taken { .. } => match self.payload.decode_error().map(str::to_owned) {
                Some(why) => self.system_failure(&why).await,
                None => self.lease().await,
            },
            JobState::Leased { .. } => self.start().await,
            JobState::Running { .. } | JobState::Finished { .. } => self.watch().await,
            JobState::Parked { place, update, owner, at, .. } => {
                let (task_key, update, owner, at) =
                    (place.task_key().map(str::to_owned), update.clone(), owner.clone(), *at);
                Ok(self.leave_environment(task_key.as_deref(), *update, &owner, at).await)
            }
            JobState::Ended { end, .. } => {
                let end = end.clone();
                Ok(self.say_own_end(&end).await)
            }
        }
    }

    /// R1: accepts the job, which is stored by now (runner-api 2.6). gitlab-runner says this once and goes on whatever the
    /// answer; here it is said until it is heard, so that a coordinator that has taken the job back meanwhile can say so
    /// before anything is started (J2). A coordinator without a two-phase commit takes it as a sign of life.
    async fn accept(&mut self) -> Option<Interruption> {
        // An agent may have the job already: what is to be said then is the trace.
        if !matches!(self.state, JobState::Taken { .. } | JobState::Leased { .. }) {
            return None;
        }
        loop {
            let verdict = tokio::select! {
                verdict = self.uploader.send() => verdict,
                () = self.context.cancel.cancelled() => return Some(Interruption::Stopping),
            };
            match verdict {
                Verdict::Cancel => return Some(Interruption::Canceled),
                Verdict::Gone => return Some(Interruption::Gone),
                Verdict::GoOn | Verdict::FollowAgain if !self.uploader.must_repeat() => return None,
                // It has heard it, and has no such call: the job runs all the same (runner-api 2.6).
                Verdict::GoOn | Verdict::FollowAgain if self.uploader.was_rejected() => return None,
                Verdict::GoOn | Verdict::FollowAgain => {}
            }
            tokio::select! {
                () = self.uploader.pause() => {}
                () = self.context.cancel.cancelled() => return Some(Interruption::Stopping),
            }
        }
    }

    /// Asks until the coordinator says where the trace stands, or that the job is gone.
    async fn ask(&mut self) -> Verdict {
        loop {
            let verdict = self.uploader.ask().await;
            if verdict == Verdict::Gone || !self.uploader.must_repeat() || self.uploader.is_trace_refused() {
                return verdict;
            }
            self.uploader.pause().await;
        }
    }

    /// R4, R5: copies the log, and reports the result.
    pub(super) async fn watch(&mut self) -> Result<Next, JobError> {
        loop {
            match self.follow().await {
                Followed::Result(result) => {
                    let update = self.ended(&result);
                    if let Some(next) = self.park(&result, &update).await? {
                        return Ok(next);
                    }
                    match self.report(&update).await {
                        // The coordinator lost the trace: it is sent again from the start.
                        report::Reported::ResendTrace => self.uploader.rewind(0),
                        report::Reported::Done => return Ok(Next::Reported),
                        report::Reported::Gone => return Ok(Next::Gone),
                    }
                }
                Followed::Gone => return Ok(Next::Gone),
                Followed::Interrupted(why) => return self.interrupted(why).await,
                Followed::Lost(message) if self.is_movable() => return self.move_on(&message).await,
                Followed::Lost(message) => return self.lost(&message).await,
                Followed::Unfit(message) => return self.system_failure(&message).await,
                Followed::Failed(error) => return Err(error),
            }
        }
    }

    async fn system_failure(&mut self, message: &str) -> Result<Next, JobError> {
        self.end(FailureReason::RunnerSystemFailure, None, message).await
    }

    /// The job ends by what the manager knows. Where the words go is stored first, so that they stand there once.
    async fn end(&mut self, reason: FailureReason, exit_code: Option<i32>, message: &str) -> Result<Next, JobError> {
        // J6: it may quote what the job's author wrote, with a masked value in it.
        let message = &*crate::failure::masked(message, &self.secrets());
        tracing::warn!(%reason, message, "the job ends without a result of an agent");
        self.uploader.ending();
        if self.drain().await == Verdict::Gone || self.ask().await == Verdict::Gone {
            return Ok(Next::Gone);
        }
        let at = self.uploader.end();
        let gap = if at > 0 { "\n" } else { "" };
        let words = format!("{gap}{}", last_words(reason, message));
        self.watch.ended_by_manager(reason, exit_code);
        let next = self.state.clone().end(OwnEnd { reason, exit_code, words, at })?;
        self.move_to(next).await
    }

    /// What the manager's own words must not show.
    fn secrets(&self) -> Secrets {
        let lowered = self.lowered.as_ref().map(|lowered| lowered.variables.as_slice()).unwrap_or_default();
        crate::lower::secrets(&self.payload, lowered)
    }

    /// The run id at the agent.
    fn run_id(&self) -> Option<String> {
        let attempt = match &self.state {
            JobState::Taken { .. } => return None,
            JobState::Leased { attempt, .. }
            | JobState::Running { attempt, .. }
            | JobState::Finished { attempt, .. }
            | JobState::Parked { attempt, .. } => attempt,
            JobState::Ended { place, .. } => &place.as_ref()?.1,
        };
        Some(format!("{}-{attempt}", self.at_agents))
    }

    /// R6: the agent may forget the job, the slot is free, the row is deleted.
    async fn clean_up(&mut self) -> Result<(), JobError> {
        self.watch.cleaning();
        // Also where the slot is another one's by now: an agent closes a job by its id.
        let place = || self.state.held().and_then(|record| self.context.provider.environment_without_lease(record));
        let environment = self.environment().or_else(place).filter(|_| self.environment_use == EnvironmentUse::InUse);
        if let (Some(environment), Some(id)) = (environment, self.run_id()) {
            let closed = client::close(environment.as_ref(), &id, self.context.agent_grace);
            tokio::select! {
                closed = tokio::time::timeout(CLOSE_LIMIT, closed) => match closed {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!(%error, "the agent did not close the job; its retention will"),
                    Err(_) => tracing::warn!("the agent did not close the job in time; its retention will"),
                },
                why = environment.lost() => tracing::debug!(why, "nothing is left to close"),
            }
        }
        // That of an environment that was left for a later job is over already.
        if let Some(lease) = self.lease.take().filter(|_| self.environment_use != EnvironmentUse::Suspended) {
            lease.release();
        }
        let began = Instant::now();
        self.context.store.delete(&self.run)?;
        self.watch.stored("delete", began.elapsed());
        self.watch.cleaned();
        Ok(())
    }
}
