//! The agent's jobs: those that run, and those that have ended and whose results are in the spool.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::step_runner::RunRequest;
use muster_builtins::AgentResources;
use muster_job::TerminationCause;
use muster_steps::process::ProcessManager;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::job::{AgentContext, Job};
use crate::parsed_request::{ParseError, parse};
use crate::spool::{Entry, Spool};
use crate::{leftovers, run_job};

/// Maximum time that `Close` waits for the end of a stopped job.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("`{0}` is not a valid job ID; use up to 128 letters, digits, `-`, `_` and `.`")]
    InvalidId(String),
    #[error("no job with id {0:?}")]
    Unknown(String),
    #[error("the agent is shutting down and accepts no new jobs")]
    Draining,
    #[error("failed to store the job in the spool: {0}")]
    Spool(#[source] io::Error),
    #[error("loading step: {0}")]
    InvalidSteps(#[from] ParseError),
    #[error(
        "the agent was restarted, and failed to recover the job: {0}; its commands may have run, so the agent does not start it again: retry the job if that is safe"
    )]
    Unrecovered(String),
    #[error(
        "the job did not end within {} s after it was stopped; the agent deletes the job when it ends",
        CLOSE_TIMEOUT.as_secs()
    )]
    CloseTimeout,
}

#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) context: Arc<AgentContext>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    jobs: HashMap<String, Arc<Job>>,
    /// Jobs of an earlier agent that have an entry and could not be recovered, with the error.
    unrecovered: HashMap<String, String>,
    tasks: JoinSet<()>,
    is_draining: bool,
}

impl Agent {
    pub(crate) fn new(
        spool: Spool,
        resources: AgentResources,
        process_manager: Arc<ProcessManager>,
        boot_id: String,
    ) -> Self {
        let context = Arc::new(AgentContext { spool, boot_id, process_manager, resources: Arc::new(resources) });
        Self { context, state: Mutex::default() }
    }

    pub(crate) fn adopt(&self, job: Job) {
        self.state.lock().jobs.insert(job.id.clone(), Arc::new(job));
    }

    /// Adds a job of an earlier agent that could not be recovered. Until the job is closed, each `Run` of it fails.
    pub(crate) fn mark_unrecovered(&self, id: &str, error: String) {
        self.state.lock().unrecovered.insert(id.to_owned(), error);
    }

    /// Adds an unfinished job of an earlier agent. The task `ending` records its result.
    pub(crate) fn adopt_unfinished(&self, job: &Arc<Job>, ending: impl Future<Output = ()> + Send + 'static) {
        let mut state = self.state.lock();
        state.jobs.insert(job.id.clone(), Arc::clone(job));
        state.tasks.spawn(ending);
    }

    /// Starts a job, unless its ID exists (R3 in `docs/spec/life-of-a-job.md`). Rejects a job that could not be
    /// recovered, because its script may have started (J2).
    pub(crate) fn run(self: &Arc<Self>, request: RunRequest) -> Result<(), RequestError> {
        let entry = self.context.spool.entry(&request.id).ok_or_else(|| RequestError::InvalidId(request.id.clone()))?;
        // While the request is written, the lock prevents a second start of the same ID.
        let mut state = self.state.lock();
        while state.tasks.try_join_next().is_some() {}
        if state.jobs.contains_key(&entry.id) {
            return Ok(());
        }
        if let Some(error) = state.unrecovered.get(&entry.id) {
            return Err(RequestError::Unrecovered(error.clone()));
        }
        if state.is_draining {
            return Err(RequestError::Draining);
        }
        let parsed = parse(&request)?;
        let (journal, log) = entry.create(&request).map_err(RequestError::Spool)?;
        let debugger = run_job::debugger(&request, &parsed.plan);
        let job = Arc::new(Job::new(entry, journal, log, None).with_debugger(debugger));
        state.jobs.insert(job.id.clone(), Arc::clone(&job));
        state.tasks.spawn(run_job::execute(Arc::clone(&self.context), job, request, parsed));
        Ok(())
    }

    pub(crate) fn job(&self, id: &str) -> Result<Arc<Job>, RequestError> {
        self.state.lock().jobs.get(id).cloned().ok_or_else(|| RequestError::Unknown(id.to_owned()))
    }

    pub(crate) fn jobs(&self) -> Vec<Arc<Job>> {
        let mut jobs: Vec<_> = self.state.lock().jobs.values().cloned().collect();
        jobs.sort_by(|a, b| a.id.cmp(&b.id));
        jobs
    }

    /// Stops a job, and deletes its entry. Succeeds if the job does not exist.
    ///
    /// If the job does not end in time, or the caller does not wait, the agent deletes the entry when the job ends.
    pub(crate) async fn close(self: &Arc<Self>, id: &str) -> Result<(), RequestError> {
        let Ok(job) = self.job(id) else {
            // The job may have an entry nevertheless, for example if an earlier agent was killed before the job's
            // first command.
            return match self.context.spool.entry(id) {
                Some(entry) => self.remove_entry(&entry).await.map_err(RequestError::Spool),
                None => Ok(()),
            };
        };
        if job.finished().is_none() {
            job.cancellation.stop.stop(TerminationCause::CanceledByUser);
            if job.start_closing() {
                self.state.lock().tasks.spawn(Arc::clone(self).remove_ended_job(Arc::clone(&job)));
            }
            tokio::time::timeout(CLOSE_TIMEOUT, job.wait()).await.map_err(|_| RequestError::CloseTimeout)?;
        }
        self.remove_job(&job).await
    }

    /// Waits until a closed job has ended, and deletes its entry.
    async fn remove_ended_job(self: Arc<Self>, job: Arc<Job>) {
        job.wait().await;
        if let Err(error) = self.remove_job(&job).await {
            tracing::warn!(job = job.id, %error, "failed to delete a job from the spool");
        }
    }

    /// Deletes the entry and the leftovers of an earlier agent's job that this agent does not have. Either its recovery
    /// failed, or it can run again and its containers could not be removed when this agent started.
    async fn remove_entry(&self, entry: &Entry) -> io::Result<()> {
        leftovers::remove_unfinished(entry, &self.context.boot_id).await;
        entry.remove_on_blocking_thread().await?;
        self.state.lock().unrecovered.remove(&entry.id);
        Ok(())
    }

    async fn remove_job(&self, job: &Arc<Job>) -> Result<(), RequestError> {
        let blocking_job = Arc::clone(job);
        let removed = tokio::task::spawn_blocking(move || blocking_job.remove()).await;
        let is_removed_now = removed.unwrap_or_else(|error| Err(error.into())).map_err(RequestError::Spool)?;
        let mut state = self.state.lock();
        // After a concurrent `Close`, a new job may have the same ID.
        if state.jobs.get(&job.id).is_some_and(|known| Arc::ptr_eq(known, job)) {
            state.jobs.remove(&job.id);
        }
        drop(state);
        if is_removed_now {
            self.context.spool.make_reserve();
        }
        Ok(())
    }

    /// Deletes jobs that ended longer ago than `retention` (R6 in `docs/spec/life-of-a-job.md`), and entries of this
    /// age without a job.
    pub(crate) async fn prune(&self, retention: Duration) {
        for job in self.jobs().into_iter().filter(|job| job.finished().is_some() && job.entry.age() > retention) {
            tracing::info!(
                job = job.id,
                "finished job deleted, because no manager closed it within the retention time"
            );
            if let Err(error) = self.remove_job(&job).await {
                tracing::warn!(job = job.id, %error, "failed to delete a job from the spool");
            }
        }
        for entry in self.context.spool.entries().unwrap_or_default() {
            if self.job(&entry.id).is_err() && entry.age() > retention {
                tracing::info!(job = entry.id, "unstarted or unrecovered job deleted");
                let _ = self.remove_entry(&entry).await;
            }
        }
    }

    /// Returns whether the agent can exit: no job runs, and if managers can still connect (`is_reachable`), all jobs
    /// were closed.
    pub(crate) fn is_idle(&self, is_reachable: bool) -> bool {
        let state = self.state.lock();
        let has_running_job = state.jobs.values().any(|job| job.finished().is_none());
        !has_running_job && (!is_reachable || state.jobs.is_empty() && self.context.spool.is_empty())
    }

    /// Accepts no new jobs, stops running jobs, and waits for their end.
    pub(crate) async fn drain(&self, cause: TerminationCause) {
        let mut tasks = {
            let mut state = self.state.lock();
            state.is_draining = true;
            for job in state.jobs.values() {
                job.cancellation.stop.stop(cause);
            }
            std::mem::take(&mut state.tasks)
        };
        while tasks.join_next().await.is_some() {}
    }
}
