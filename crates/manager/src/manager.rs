//! The manager's main loop: restores jobs of an earlier process, requests new ones, and shuts down.

mod control;
mod notices;
mod run_limits;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use muster_cache_store::CacheStores;
use muster_config::settings::{RunnerKey, RunnerSettings, Settings};
use muster_executor::registry::Registry;
use muster_job::without_user_info;
use muster_runner_api::client::{Client, ClientError};
use muster_telemetry::{ProcessState, Telemetry};
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use url::Url;

use crate::admission::{Admission, Limits, Notice, PollTimings};
use crate::job::{self, JobError, ReachabilityTracker, RunnerContext, UnclosedJobs, UnreportedJobs};
use crate::observe::Observer;
use crate::requests::{CompletedPoll, PollResult, Requests};
use crate::running::ConcurrencyLimits;
use crate::state::JobState;
use crate::store::{JobRunId, Store, StoreError, StoredJob};

pub use control::{Control, ControlCommand, ManagerStats};
use run_limits::RunLimitTracker;
pub use run_limits::RunLimits;

/// Errors that end the manager.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The manager's state cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The coordinator keeps refusing the runner token, and the settings make that fatal.
    #[error(
        "the coordinator at {} refuses the runner token; register the runner again and pass its new token",
        without_user_info(.url.as_str())
    )]
    TokenRefused {
        /// URL of the coordinator.
        url: Url,
    },
}

/// State of the manager's run, which only advances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RunState {
    Working,
    /// No more jobs are requested. Running jobs continue until their end.
    Draining,
    /// Running jobs are left to the next start of the manager.
    Leaving,
    /// Running jobs are canceled and reported.
    Aborting,
}

/// Manager of the runners of one `config.toml`.
pub struct Manager {
    settings: Settings,
    store: Arc<Store>,
    executors: Registry,
    admission: Admission,
    requests: Requests,
    observer: Arc<Observer>,
    jobs: JoinSet<Result<(), JobError>>,
    /// Jobs, and the key with which the admission counts each of them.
    jobs_by_task: HashMap<Id, (JobRunId, RunnerKey)>,
    unreported: UnreportedJobs,
    reachability: ReachabilityTracker,
    unclosed: UnclosedJobs,
    unclosed_count: watch::Receiver<usize>,
    /// Jobs whose slot was released before they were reported.
    released_slots: mpsc::UnboundedReceiver<JobRunId>,
    /// Jobs without a slot, which no longer count for admission.
    without_slot: HashSet<JobRunId>,
    cache_stores: Arc<CacheStores>,
    /// Limits on the number of running jobs: `concurrent`, and `limit` of each runner.
    limits: Arc<ConcurrencyLimits>,
    /// Ends the jobs when it is canceled.
    cancel: CancellationToken,
    run_state: RunState,
    /// Time from which `shutdown_timeout` counts.
    aborting_since: Option<Instant>,
    run_tracker: RunLimitTracker,
    /// Settings of each runner, and the number of their generation. Changed settings get a new number.
    generations: HashMap<RunnerKey, (Arc<RunnerSettings>, u64)>,
    generation: u64,
}

impl Manager {
    /// Returns a manager that reports to `telemetry`.
    #[must_use]
    pub fn new(settings: Settings, store: Store, executors: Registry, telemetry: Arc<Telemetry>) -> Self {
        let store = Arc::new(store);
        let observer = Observer::new(telemetry);
        let (unreported, released_slots) = UnreportedJobs::new(settings.max_unreported_jobs);
        let unclosed = UnclosedJobs::default();
        Self {
            settings,
            unreported,
            reachability: ReachabilityTracker::default(),
            unclosed_count: unclosed.subscribe(),
            unclosed,
            released_slots,
            without_slot: HashSet::new(),
            requests: Requests::new(Arc::clone(&store), Arc::clone(&observer)),
            observer,
            store,
            executors,
            admission: Admission::new(rand::random()),
            jobs: JoinSet::new(),
            jobs_by_task: HashMap::new(),
            cache_stores: Arc::default(),
            limits: ConcurrencyLimits::new(),
            cancel: CancellationToken::new(),
            run_state: RunState::Working,
            aborting_since: None,
            run_tracker: RunLimitTracker::new(RunLimits::default()),
            generations: HashMap::new(),
            generation: 0,
        }
    }

    /// Returns the same manager with limits on its run.
    #[must_use]
    pub fn with_run_limits(self, run_limits: RunLimits) -> Self {
        Self { run_tracker: RunLimitTracker::new(run_limits), ..self }
    }

    /// Runs until a command or a run limit stops the manager, and then until all its jobs are reported.
    ///
    /// After [`ControlCommand::Leave`], or if the future is dropped, the jobs continue at their agents, and a later start restores them.
    ///
    /// # Errors
    /// [`ManagerError`]. The jobs in progress are finished first, unless the manager's state cannot be written.
    pub async fn run(mut self, commands: mpsc::Receiver<ControlCommand>) -> Result<(), ManagerError> {
        let result = self.work(commands).await;
        self.finish_requests().await;
        result
    }

    /// Waits as long as the requests may bring a job.
    async fn finish_requests(&mut self) {
        self.admission.stop();
        while !self.requests.is_empty() {
            let wake = self.admit();
            tokio::select! {
                answered = self.requests.next() => {
                    self.admission.answered(answered.poll, answered.answer.outcome(), Instant::now());
                }
                () = until(wake), if wake.is_some() => {}
            }
        }
    }

    async fn work(&mut self, mut commands: mpsc::Receiver<ControlCommand>) -> Result<(), ManagerError> {
        self.executors.configure(&self.settings.runners, |_| true);
        self.restore_jobs();
        self.executors.leases_announced();
        self.configure(self.settings.clone());
        self.observer.telemetry().lifecycle.advance_to(ProcessState::Running);
        self.run_tracker.record_idle();
        let mut refusal = None;
        let mut has_control = true;
        while self.run_state == RunState::Working || self.must_wait_for_jobs() || !self.requests.is_empty() {
            for (runner, capacity) in self.executors.capacities(&self.settings.runners) {
                self.admission.set_capacity(&runner, capacity.jobs);
            }
            let wake = self.admit();
            let idle_until = self.idle_until();
            // Each branch only waits, so it is cancel-safe.
            tokio::select! {
                command = commands.recv(), if has_control => match command {
                    Some(command) => self.handle_command(command),
                    None => has_control = false,
                },
                answered = self.requests.next() => {
                    if let Some(error) = self.on_poll_result(answered)? {
                        refusal = Some(error);
                        self.stop_requests(RunState::Draining);
                    }
                }
                Some(ended) = self.jobs.join_next_with_id(), if !self.jobs.is_empty() => self.on_job_ended(ended)?,
                Some(run) = self.released_slots.recv() => self.on_slot_released(run),
                Ok(()) = self.unclosed_count.changed() => self.run_tracker.record_idle(),
                () = self.executors.changed(), if self.run_state == RunState::Working => {}
                () = until(idle_until), if idle_until.is_some() => {
                    tracing::info!("This runner has not received a job within its wait timeout, so now exiting");
                    self.stop_requests(RunState::Draining);
                }
                () = until(wake), if wake.is_some() => {}
            }
        }
        if self.run_state == RunState::Leaving {
            // As after a kill, the instances keep their jobs.
            return refusal.map_or(Ok(()), Err);
        }
        self.executors.stop(self.time_for_instances()).await;
        refusal.map_or(Ok(()), Err)
    }

    /// Returns the rest of `shutdown_timeout`.
    fn time_for_instances(&self) -> Duration {
        let passed = self.aborting_since.map(|since| since.elapsed()).unwrap_or_default();
        self.settings.shutdown_timeout.saturating_sub(passed)
    }

    fn must_wait_for_jobs(&self) -> bool {
        self.run_state != RunState::Leaving && self.has_unended_jobs()
    }

    /// Returns whether there is a job that does more than wait to be closed at its agent.
    fn has_unended_jobs(&self) -> bool {
        self.jobs.len() > *self.unclosed_count.borrow()
    }

    /// Restores the jobs of an earlier process.
    ///
    /// They count for admission, even beyond the current limits, unless only their report is left.
    fn restore_jobs(&mut self) {
        let mut contexts: Vec<Arc<RunnerContext>> = Vec::new();
        for job in self.store.jobs() {
            let Some(runner) = job.runner.clone().or_else(|| self.settings.runners.first().cloned()) else {
                tracing::error!(job = %job.run, "no runner is configured for a job of an earlier start, keeping the job in state.log");
                continue;
            };
            let known = contexts.iter().find(|context| Arc::ptr_eq(&context.runner, &runner)).cloned();
            let create = || self.client_for_jobs(&runner).map(|client| self.context(&runner, client));
            let context = match known.map_or_else(create, Ok) {
                Ok(context) => context,
                Err(error) => {
                    tracing::error!(
                        job = %job.run, runner = runner.name, %error,
                        "failed to create a client for a job of an earlier start, keeping the job in state.log"
                    );
                    continue;
                }
            };
            if let (Some(held), Some(executor)) = (job.state.held_lease(), context.executor.elastic()) {
                executor.announce_lease(held);
            }
            contexts.push(Arc::clone(&context));
            if matches!(job.state, JobState::AwaitingReport { .. }) {
                self.without_slot.insert(job.run.clone());
            } else {
                self.admission.count_job(self.settings.key_of(&runner));
            }
            self.spawn(context, job, true);
        }
    }

    /// Applies the settings. The requests in flight of runners with unchanged settings continue.
    fn configure(&mut self, settings: Settings) {
        self.settings = settings.carry_over(&self.settings);
        let admission = &self.admission;
        self.executors.configure(&self.settings.runners, |runner| admission.has_jobs(runner));
        let known = std::mem::take(&mut self.generations);
        let mut runner_limits = Vec::new();
        for runner in &self.settings.runners {
            let unchanged = known.get(&runner.key).filter(|(old, _)| Arc::ptr_eq(old, runner));
            let generation = unchanged.map_or_else(
                || {
                    self.generation += 1;
                    self.generation
                },
                |(_, generation)| *generation,
            );
            self.generations.insert(runner.key.clone(), (Arc::clone(runner), generation));
            runner_limits.push(Limits::new(runner, generation, self.executors.has(runner)));
        }
        let timings = PollTimings { check_interval: self.settings.check_interval, min_hold: self.settings.min_hold };
        let own_limits = runner_limits.iter().filter_map(|limits| Some((limits.key.clone(), limits.limit?)));
        self.limits.configure(self.settings.concurrent, own_limits.collect());
        self.admission.configure(self.settings.concurrent, timings, runner_limits);
        self.requests.configure(&self.settings);
        self.observer.configure(&self.settings);
    }

    fn handle_command(&mut self, command: ControlCommand) {
        match command {
            ControlCommand::Reload(settings) => self.configure(*settings),
            ControlCommand::DumpState(to) => {
                let (concurrent, jobs) = (self.settings.concurrent, self.admission.jobs());
                let (waiting, runners) = (self.limits.waiting(), self.admission.stats(Instant::now()));
                // The receiver may have been dropped.
                let _ = to.send(ManagerStats { concurrent, jobs, waiting, runners });
            }
            ControlCommand::Drain => self.stop_requests(RunState::Draining),
            ControlCommand::Abort => {
                self.stop_requests(RunState::Aborting);
                self.cancel.cancel();
            }
            ControlCommand::Leave => self.stop_requests(RunState::Leaving),
        }
    }

    /// Stops sending requests. The main loop still waits for requests that may have been answered.
    fn stop_requests(&mut self, run_state: RunState) {
        if self.run_state == RunState::Working {
            let (jobs, requests) = (self.jobs.len(), self.admission.requests());
            tracing::info!(jobs, requests, "stopped requesting jobs, waiting for requests in flight");
            // Instances that are left to the next start keep their reservations.
            if run_state != RunState::Leaving {
                self.executors.drain();
            }
        }
        if run_state == RunState::Aborting && self.run_state != run_state {
            self.aborting_since = Some(Instant::now());
        }
        self.run_state = self.run_state.max(run_state);
        self.observer.telemetry().lifecycle.advance_to(match self.run_state {
            RunState::Working => ProcessState::Running,
            RunState::Draining | RunState::Leaving => ProcessState::GracefulShutdown,
            RunState::Aborting => ProcessState::ForcefulShutdown,
        });
        self.admission.stop();
    }

    /// Starts and cancels requests as the admission decides. Returns when this must be called again.
    fn admit(&mut self) -> Option<Instant> {
        let left = if self.requests.is_store_blocked() { 0 } else { self.run_tracker.remaining_jobs() };
        self.admission.set_remaining_jobs(left);
        for (poll, at) in self.requests.cancelable_from() {
            self.admission.set_cancelable_from(poll, at);
        }
        for (runner, needed) in self.requests.needed_requests() {
            self.admission.set_needed_requests(runner, needed);
        }
        let decisions = self.admission.decide(Instant::now());
        for poll in decisions.cancel {
            self.requests.cancel(poll);
        }
        for (poll, runner) in decisions.start {
            self.requests.start(poll, &runner);
        }
        decisions.wake
    }

    /// Returns when the manager ends for lack of jobs. `None` means never, or that jobs are in progress.
    fn idle_until(&self) -> Option<Instant> {
        self.run_tracker.idle_until().filter(|_| self.run_state == RunState::Working && !self.has_unended_jobs())
    }

    /// Starts the actor of the job that a request brought, if any. Fails if the job could not be stored.
    ///
    /// If the manager must end because the coordinator refused the runner, returns the error with which it ends once
    /// its jobs have ended.
    fn on_poll_result(&mut self, answered: CompletedPoll) -> Result<Option<ManagerError>, ManagerError> {
        let CompletedPoll { poll, runner, answer, is_repeatable } = answered;
        let now = Instant::now();
        if let PollResult::Job { .. } | PollResult::Empty { .. } = answer {
            let at_once = matches!(answer, PollResult::Job { .. }) && !self.admission.is_held(poll, now);
            self.executors.request_answered(&runner.key, at_once);
        }
        let notice = self.admission.answered(poll, answer.outcome(), now);
        if is_repeatable {
            self.admission.set_repeatable(&runner.key);
        }
        if let Some(stats) = self.admission.stats_of(&runner.key, now) {
            let has_capacity = self.settings.concurrent > self.admission.jobs() + self.admission.requests();
            self.observer.answered(&runner, notice, &stats, has_capacity);
        }
        let error = match answer {
            PollResult::Job { job, client } => {
                // The runner may have been removed and added with a new token, and thus a new key, during the request.
                self.admission.job_ended(&runner.key);
                self.admission.count_job(self.settings.key_of(&runner));
                self.spawn(self.context(&runner, client), *job, false);
                None
            }
            PollResult::Store(error) => return Err(error.into()),
            PollResult::Failed(error) => Some(error),
            PollResult::Empty { .. } | PollResult::Duplicate | PollResult::Superseding | PollResult::Canceled => None,
        };
        self.executors.remove_unused(|runner| self.admission.has_jobs(runner));
        if let Some(notice) = notice {
            notices::log_poll_result(&runner, notice, error.as_ref());
            if matches!(notice, Notice::Refused { unhealthy: true, .. }) && self.settings.exit_on_refusal {
                return Ok(Some(ManagerError::TokenRefused { url: runner.url.clone() }));
            }
        }
        Ok(None)
    }

    /// Returns a client for jobs of an earlier process.
    fn client_for_jobs(&self, runner: &Arc<RunnerSettings>) -> Result<Client, ClientError> {
        let client = crate::client::with_deferred_tls(runner, self.settings.connection_max_age)?;
        Ok(self.observer.counting_client(client, runner))
    }

    fn context(&self, runner: &Arc<RunnerSettings>, client: Client) -> Arc<RunnerContext> {
        let key = self.settings.key_of(runner);
        Arc::new(RunnerContext {
            client,
            runner: Arc::clone(runner),
            key: key.clone(),
            limits: Arc::clone(&self.limits),
            store: Arc::clone(&self.store),
            cache_stores: Arc::clone(&self.cache_stores),
            executor: self.executors.executor(runner, key),
            agent_reconnect_timeout: self.settings.agent_reconnect_timeout,
            state_write_timeout: self.settings.state_write_timeout,
            host_name: self.settings.host_name.clone(),
            cancel: self.cancel.clone(),
            unreported: self.unreported.clone(),
            reachability: self.reachability.clone(),
            unclosed: self.unclosed.clone(),
        })
    }

    fn spawn(&mut self, context: Arc<RunnerContext>, job: StoredJob, recovered: bool) {
        // A job that an earlier process ended takes no place from the jobs of this one.
        if !matches!(job.state, JobState::FailedByManager { .. }) {
            self.run_tracker.record_job();
        }
        if self.run_tracker.remaining_jobs() == 0 {
            tracing::info!("This runner has received its last job, and exits when its jobs have ended");
            self.stop_requests(RunState::Draining);
        }
        let (run, key) = (job.run.clone(), context.key.clone());
        let span = tracing::info_span!("job", job = job.payload.id.0);
        let watch = span.in_scope(|| self.observer.watch_job(&context.runner, &job, recovered));
        let permit = job.state.held_lease().map(|_| self.limits.resume(&key));
        let handle = self.jobs.spawn(job::execute(context, watch, job, recovered, permit).instrument(span));
        self.jobs_by_task.insert(handle.id(), (run, key));
    }

    fn on_slot_released(&mut self, run: JobRunId) {
        let known = self.jobs_by_task.values().find(|(known, _)| *known == run);
        if let Some((_, runner)) = known.filter(|_| !self.without_slot.contains(&run)) {
            self.admission.job_ended(runner);
            self.without_slot.insert(run);
        }
    }

    /// Frees what the job used. Fails if the job's state could not be stored: the manager then ends, and the service
    /// manager must restart it.
    fn on_job_ended(&mut self, ended: Result<(Id, Result<(), JobError>), JoinError>) -> Result<(), ManagerError> {
        let task = ended.as_ref().map_or_else(JoinError::id, |(task, _)| *task);
        let Some((run, runner)) = self.jobs_by_task.remove(&task) else { return Ok(()) };
        if !self.without_slot.remove(&run) {
            self.admission.job_ended(&runner);
        }
        self.executors.remove_unused(|runner| self.admission.has_jobs(runner));
        self.run_tracker.record_idle();
        let error = match ended {
            Ok((_, Ok(()))) => {
                tracing::debug!(job = %run, "job finished");
                return Ok(());
            }
            Ok((_, Err(JobError::Store(error)))) => return Err(error.into()),
            Ok((_, Err(JobError::Transition(error)))) => error.to_string(),
            Err(error) => error.to_string(),
        };
        self.observer.job_lost(&runner);
        tracing::error!(job = %run, error, "job failed in the manager, leaving it in state.log for the next start");
        Ok(())
    }
}

/// Returns at once for `None`.
async fn until(time: Option<Instant>) {
    sleep_until(time.unwrap_or_else(Instant::now)).await;
}
