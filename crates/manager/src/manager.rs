//! The manager's main loop: takes up the jobs of an earlier start, asks for new ones, and stops in order.

use std::collections::HashMap;
use std::sync::Arc;

use muster_environment::Provider;
use muster_job::JobId;
use muster_runner_api::client::{Client, ClientError};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;
use url::Url;

use crate::job::{self, Context, JobError};
use crate::requests::{Arrival, Requests};
use crate::settings::Settings;
use crate::store::{Store, StoreError, StoredJob};

/// What happens to jobs when the manager is asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// They are wound down and reported.
    Cancel,
    /// They go on, and the manager stays until they have ended.
    Drain,
}

/// Why the manager ended other than by being asked.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// Its state.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The client cannot be built.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No runner is configured.
    #[error("no runner is configured")]
    NoRunner,
    /// The coordinator refuses the token, again and again.
    #[error("the coordinator at {url} refuses the runner token; register the runner again and pass its new token")]
    TokenRefused {
        /// The coordinator.
        url: Url,
    },
}

/// A manager of one runner at one coordinator.
pub struct Manager {
    context: Arc<Context>,
    requests: Requests,
    jobs: JoinSet<Result<(), JobError>>,
    ids: HashMap<Id, JobId>,
}

impl Manager {
    /// A manager with its state in `store` and its environments from `provider`.
    ///
    /// # Errors
    /// [`ManagerError::Client`] where the URL is not usable.
    pub fn new(
        settings: Settings,
        on_stop: StopMode,
        store: Store,
        provider: Arc<dyn Provider>,
    ) -> Result<Self, ManagerError> {
        let runner = settings.runners.first().cloned().ok_or(ManagerError::NoRunner)?;
        let client = Client::new(&runner.url)?;
        let cancel = CancellationToken::new();
        let context = Arc::new(Context { client, store, provider, settings, runner, on_stop, cancel });
        Ok(Self { requests: Requests::new(Arc::clone(&context)), context, jobs: JoinSet::new(), ids: HashMap::new() })
    }

    /// Works until `stop`, and then until its jobs are reported. Dropped, it stops at once: a later start goes on.
    ///
    /// # Errors
    /// [`ManagerError`]; jobs that are under way are brought to their end before, unless the store has failed: then
    /// nothing about them could be kept, and the next start goes on.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), ManagerError> {
        for job in self.context.store.jobs().await? {
            self.spawn(job, true);
        }
        let ended = self.take_jobs(&stop).await;
        if let Err(ManagerError::Store(_)) = ended {
            return ended;
        }
        self.requests.stop().await;
        if stop.is_cancelled() && self.context.on_stop == StopMode::Cancel {
            self.context.cancel.cancel();
        }
        tracing::info!(jobs = self.jobs.len(), "no more jobs are taken");
        while let Some(ended) = self.jobs.join_next_with_id().await {
            self.job_ended(ended)?;
        }
        ended
    }

    /// Takes jobs until it is to stop. Each branch is cancel-safe: it only waits.
    async fn take_jobs(&mut self, stop: &CancellationToken) -> Result<(), ManagerError> {
        let mut capacity = self.context.provider.capacity();
        loop {
            // J4: what runs and what may be on its way is never more than `concurrent`; the provider guards its slots.
            let room = self.context.settings.concurrent.saturating_sub(self.jobs.len());
            self.requests.fill(room.min(*capacity.borrow_and_update()));
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                arrival = self.requests.next() => match arrival? {
                    Arrival::Job(payload) => {
                        self.spawn(StoredJob { payload: *payload, state: crate::state::JobState::Taken }, false);
                    }
                    Arrival::Nothing => {}
                },
                Some(ended) = self.jobs.join_next_with_id(), if !self.jobs.is_empty() => self.job_ended(ended)?,
                changed = capacity.changed() => {
                    if changed.is_err() {
                        // No provider, no capacity: what runs is brought to its end.
                        return Ok(());
                    }
                }
            }
        }
    }

    fn spawn(&mut self, job: StoredJob, recovered: bool) {
        let id = job.payload.id;
        let span = tracing::info_span!("job", job = %id);
        let handle = self.jobs.spawn(job::execute(Arc::clone(&self.context), job, recovered).instrument(span));
        self.ids.insert(handle.id(), id);
    }

    /// # Errors
    /// [`ManagerError::Store`]: the job would wait for the next start, and so would all that come after it. Better one
    /// that is tried at once, by whoever watches this process.
    fn job_ended(&mut self, ended: Result<(Id, Result<(), JobError>), JoinError>) -> Result<(), ManagerError> {
        let task = ended.as_ref().map_or_else(JoinError::id, |(task, _)| *task);
        let job = self.ids.remove(&task).map_or(0, |job| job.0);
        let error = match ended {
            Ok((_, Ok(()))) => {
                tracing::debug!(job, "job done");
                return Ok(());
            }
            Ok((_, Err(JobError::Store(error)))) => return Err(error.into()),
            Ok((_, Err(JobError::Move(error)))) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::error!(job, error, "the job stays in state.db for a later start of the manager");
        Ok(())
    }
}
