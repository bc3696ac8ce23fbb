//! The handle of a coordinator. Calls become commands to the actor.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use muster_job::{JobId, PipelineId, Variable};
use muster_runner_api::service::ServiceError;
use muster_runner_api::wire::RunnerCredentials;
use muster_source::TokenCheck;
use parking_lot::Mutex;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::actor::Actor;
use crate::artifacts::{self, ArtifactLocks};
use crate::blobs::directory::DirectoryBlobs;
use crate::blobs::memory::MemoryBlobs;
use crate::blobs::{ArtifactName, Blobs};
use crate::clock::engine_time;
use crate::command::{Command, TokenUse};
use crate::error::{BlobError, CoordinatorError, OpenError, StoreError, unwritable};
use crate::facts::{NewPipeline, RunnerSpec, SharedSources};
use crate::jwt::Signer;
use crate::keys::{self, Keys};
use crate::options::Options;
use crate::outbox::JobEvent;
use crate::state::{CoordinatorState, RestoredActions};
use crate::store::Store;
use crate::store::memory::MemoryStore;
use crate::store::sqlite::{self, SqliteStore};
use crate::stored_pipelines::StoredPipelines;
use crate::trace_viewers::TraceViewers;
use crate::views::{ArtifactView, Event, JobView, PipelineSummary, PipelineView, StuckJob};

const MAX_COMMANDS: usize = 1024;
/// Number of events that are kept for a slow receiver. A receiver that falls further behind must read the pipelines
/// again.
const MAX_EVENTS: usize = 4096;

/// Holds pipelines and jobs, assigns jobs to runner managers, and stores traces and artifacts.
///
/// Implements [`muster_runner_api::service::RunnerService`] for the server routes.
///
/// Besides the errors that a method lists, a call can fail with [`CoordinatorError::Store`], and after the shutdown with
/// [`CoordinatorError::Closed`].
#[derive(Debug)]
pub struct Coordinator {
    pub(crate) options: Options,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) events: broadcast::Sender<Event>,
    pub(crate) blobs: Arc<dyn Blobs>,
    pub(crate) locks: ArtifactLocks,
    pub(crate) trace_viewers: TraceViewers,
    /// Whether the disk was full at the last write of a trace.
    pub(crate) was_disk_full: AtomicBool,
    stored_pipelines: StoredPipelines,
    store: Arc<dyn Store>,
    keys: Keys,
    /// The task of the event loop. `None` after the shutdown.
    actor: Mutex<Option<JoinHandle<()>>>,
}

impl Coordinator {
    /// Opens the coordinator of a state directory, which is created if necessary. Running jobs continue.
    ///
    /// # Errors
    /// [`OpenError`] if the directory cannot be written, is on a full disk, or has a database that is damaged or of a newer version.
    pub async fn open(options: Options) -> Result<Arc<Self>, OpenError> {
        let dir = options.dir.clone();
        let (keys, blobs) = prepare_dir(&dir).map_err(|source| unwritable(&dir, source))?;
        let store = Arc::new(SqliteStore::open(&dir).await?);
        let started = Self::start(options, keys, store, Arc::new(blobs)).await;
        started.map_err(|error| sqlite::unreadable(&dir, error))
    }

    /// Starts a coordinator that stores everything in memory. [`Options::dir`] is not used.
    ///
    /// # Errors
    /// [`OpenError::InMemory`] if the system returns no random bytes.
    pub async fn in_memory(options: Options) -> Result<Arc<Self>, OpenError> {
        let signer = keys::random_signer().map_err(|error| OpenError::InMemory(StoreError::Failed(Arc::new(error))))?;
        let (store, blobs) = (Arc::new(MemoryStore::new()), Arc::new(MemoryBlobs::default()));
        Self::start(options, (Keys::random(), signer), store, blobs).await.map_err(OpenError::InMemory)
    }

    async fn start(
        options: Options,
        (keys, signer): (Keys, Signer),
        store: Arc<dyn Store>,
        blobs: Arc<dyn Blobs>,
    ) -> Result<Arc<Self>, StoreError> {
        let state = restore(&*store, &options).await?;
        delete_unreferenced_content(&state.0, &*blobs).await;
        let (commands, inbox) = mpsc::channel(MAX_COMMANDS);
        let (events, _) = broadcast::channel(MAX_EVENTS);
        let locks = ArtifactLocks::default();
        let files = (Arc::clone(&blobs), locks.clone());
        let stored_pipelines = StoredPipelines::new(Arc::clone(&store), Arc::clone(&blobs));
        let actor =
            Actor::new(options.clone(), Arc::clone(&store), state, (keys.clone(), signer), files, events.clone());
        let actor = Mutex::new(Some(tokio::spawn(actor.run(inbox))));
        let trace_viewers = TraceViewers::new(Arc::clone(&options.clock));
        Ok(Arc::new(Self {
            options,
            commands,
            events,
            blobs,
            locks,
            trace_viewers,
            was_disk_full: AtomicBool::new(false),
            stored_pipelines,
            store,
            keys,
            actor,
        }))
    }

    /// Creates a pipeline and starts it.
    ///
    /// # Errors
    /// [`CoordinatorError::Unschedulable`], or [`CoordinatorError::Store`] if the pipeline could not be stored. The
    /// pipeline then appears as canceled once the store can be written.
    pub async fn create_pipeline(&self, new: NewPipeline) -> Result<PipelineId, CoordinatorError> {
        self.execute(|reply| Command::CreatePipeline { new: Box::new(new), reply }).await
    }

    /// Creates a runner. Its token is only in the answer and cannot be read later.
    ///
    /// # Errors
    /// [`CoordinatorError::Store`].
    pub async fn create_runner(&self, new: RunnerSpec) -> Result<RunnerCredentials, CoordinatorError> {
        self.execute(|reply| Command::CreateRunner { new, reply }).await
    }

    /// Checks whether a job's token may read the repository. Only the token of the current assignment of a running job may.
    pub async fn check_job_token(&self, token: &str) -> TokenCheck {
        let Some((job, _)) = self.keys.read(token) else { return TokenCheck::Unknown };
        let (reply, answer) = oneshot::channel();
        let command = Command::Authorize { job, token: token.to_owned(), token_use: TokenUse::Read, reply };
        if self.commands.send(command).await.is_err() {
            return TokenCheck::Unavailable;
        }
        match answer.await {
            Ok(Ok(_)) => TokenCheck::Current,
            Ok(Err(ServiceError::Forbidden { .. })) => TokenCheck::Expired,
            Ok(Err(_)) | Err(_) => TokenCheck::Unavailable,
        }
    }

    /// Provides the files of a pipeline, so that its child pipelines can be compiled: of a pipeline that an earlier process
    /// created, or of a finished pipeline after the retry of a bridge.
    ///
    /// Has no lasting effect on a finished pipeline, whose files may be removed from memory at any time.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub async fn attach_sources(&self, pipeline: PipelineId, sources: SharedSources) -> Result<(), CoordinatorError> {
        self.execute(|reply| Command::AttachSources { pipeline, sources, reply }).await
    }

    /// Cancels all jobs of a pipeline and of its descendants. Running jobs are canceled gracefully.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub async fn cancel_pipeline(&self, pipeline: PipelineId) -> Result<(), CoordinatorError> {
        self.execute(|reply| Command::CancelPipeline { pipeline, force: false, reply }).await
    }

    /// Cancels a pipeline without waiting for graceful cancellations.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub async fn force_cancel(&self, pipeline: PipelineId) -> Result<(), CoordinatorError> {
        self.execute(|reply| Command::CancelPipeline { pipeline, force: true, reply }).await
    }

    /// Cancels one job. `force` does not wait for a graceful cancellation.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`], or [`CoordinatorError::Rejected`] if a retry has replaced the job.
    pub async fn cancel_job(&self, job: JobId, force: bool) -> Result<(), CoordinatorError> {
        self.execute(|reply| Command::CancelJob { job, force, reply }).await
    }

    /// Starts a manual job, or a delayed job before its delay is over.
    ///
    /// `variables` take precedence over all other variables. They must be empty for a bridge.
    ///
    /// # Errors
    /// [`CoordinatorError::Rejected`] if the job is neither manual nor delayed, [`CoordinatorError::BridgeVariables`],
    /// [`CoordinatorError::NotFound`].
    pub async fn play_job(&self, job: JobId, variables: Vec<Variable>) -> Result<JobId, CoordinatorError> {
        self.execute(|reply| Command::PlayJob { job, variables, reply }).await
    }

    /// Runs a finished job again: a new job of the same name replaces it. Returns the ID of the new job.
    ///
    /// # Errors
    /// [`CoordinatorError::Rejected`] if the job has not ended, was skipped, or was already retried; [`CoordinatorError::NotFound`].
    pub async fn retry_job(&self, job: JobId) -> Result<JobId, CoordinatorError> {
        self.execute(|reply| Command::RetryJob { job, reply }).await
    }

    /// Subscribes to future events. A receiver that lags must read the pipelines again.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Returns at most `limit` pipelines after `after`, oldest first. `None` starts with the first pipeline.
    ///
    /// # Errors
    /// [`CoordinatorError::Store`], [`CoordinatorError::Closed`].
    pub async fn pipelines(
        &self,
        after: Option<PipelineId>,
        limit: usize,
    ) -> Result<Vec<PipelineSummary>, CoordinatorError> {
        let after = after.unwrap_or(PipelineId(i64::MIN));
        let (in_memory, all_in_memory) = self.execute(|reply| Command::Pipelines { reply }).await?;
        let stored = if all_in_memory { Vec::new() } else { self.stored_pipelines.summaries(after, limit).await? };
        // Rows in memory replace the rows of the store, because they may be newer.
        let mut summaries: BTreeMap<PipelineId, PipelineSummary> =
            stored.into_iter().map(|summary| (summary.id, summary)).collect();
        summaries.extend(in_memory.into_iter().filter(|row| row.id > after).map(|summary| (summary.id, summary)));
        // Memory may also hold pipelines beyond this page. The page is then full, and `take` drops them.
        Ok(summaries.into_values().take(limit).collect())
    }

    /// Returns at most `limit` job events in order, starting after the event `sequence`. 0 starts with the first event.
    ///
    /// Events are only written if [`Options::write_job_events`] is set.
    ///
    /// # Errors
    /// [`CoordinatorError::Store`].
    pub async fn events_after(&self, sequence: u64, limit: usize) -> Result<Vec<JobEvent>, CoordinatorError> {
        Ok(self.store.events_after(sequence, limit).await?)
    }

    /// Deletes the events up to and including `sequence`.
    ///
    /// # Errors
    /// [`CoordinatorError::Store`].
    pub async fn acknowledge_events(&self, sequence: u64) -> Result<(), CoordinatorError> {
        Ok(self.store.prune_events(sequence).await?)
    }

    /// Returns a pipeline with its jobs.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub async fn pipeline(&self, pipeline: PipelineId) -> Result<PipelineView, CoordinatorError> {
        match self.execute(|reply| Command::Pipeline { pipeline, reply }).await {
            // A finished pipeline may be in the store only.
            Err(CoordinatorError::NotFound(_)) => self.stored_pipelines.pipeline(pipeline).await,
            answer => answer,
        }
    }

    /// Returns a job.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub async fn job(&self, job: JobId) -> Result<JobView, CoordinatorError> {
        match self.execute(|reply| Command::Job { job, reply }).await {
            Err(CoordinatorError::NotFound(_)) => self.stored_pipelines.job(job).await,
            answer => answer,
        }
    }

    /// Returns the pending jobs that no runner can run, with the reasons (docs/spec/pipeline-yaml.md, case C198).
    ///
    /// # Errors
    /// [`CoordinatorError::Closed`].
    pub async fn stuck_jobs(&self) -> Result<Vec<StuckJob>, CoordinatorError> {
        self.execute(|reply| Command::StuckJobs { reply }).await
    }

    /// Returns at most 1 MiB of a job's trace, starting at `offset`. Empty at the end.
    ///
    /// For a short time after the call, the runner of the job sends its trace more often.
    ///
    /// # Errors
    /// [`CoordinatorError::Blob`].
    pub async fn read_trace(&self, job: JobId, offset: u64) -> Result<Bytes, CoordinatorError> {
        self.trace_viewers.record(job);
        Ok(self.blobs.read_trace(job, offset).await?)
    }

    /// Returns the files that a job uploaded.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub async fn artifact_files(&self, job: JobId) -> Result<Vec<ArtifactView>, CoordinatorError> {
        Ok(self.job(job).await?.artifacts)
    }

    /// Stops the coordinator: stores all accepted changes, and closes the database. Jobs keep their state.
    pub async fn shutdown(&self) {
        // An error means that the coordinator is already shut down.
        let _ = self.commands.send(Command::Shutdown).await;
        let actor = self.actor.lock().take();
        if let Some(actor) = actor
            && let Err(error) = actor.await
        {
            tracing::error!(%error, "event loop of the coordinator panicked");
        }
    }

    async fn execute<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, CoordinatorError>>) -> Command,
    ) -> Result<T, CoordinatorError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| CoordinatorError::Closed)?;
        answer.await.map_err(|_| CoordinatorError::Closed)?
    }
}

/// Creates the state directory if necessary, accessible to this user only, and opens its keys and blobs.
fn prepare_dir(dir: &Path) -> io::Result<((Keys, Signer), DirectoryBlobs)> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    Ok(((Keys::open(dir)?, keys::open_signer(dir)?), DirectoryBlobs::open(dir)?))
}

async fn restore(store: &dyn Store, options: &Options) -> Result<(CoordinatorState, RestoredActions), StoreError> {
    let (contents, last) = (store.unfinished_work().await?, store.last_ids().await?);
    let now = engine_time(options.clock.now());
    let first_ids = (options.first_pipeline_id, options.first_job_id);
    CoordinatorState::restore(contents, last, first_ids, options.write_job_events, now)
}

/// Deletes artifact content without a row. Searches only the content of jobs of open pipelines.
///
/// Finished pipelines have no content without a row, because a pipeline stays open while one of its jobs uploads.
async fn delete_unreferenced_content(state: &CoordinatorState, blobs: &dyn Blobs) {
    for job in state.jobs.keys() {
        let rows = state.artifacts.get(job).into_iter().flatten().filter(|row| !row.deleted);
        let known: BTreeSet<ArtifactName> = rows.map(artifacts::name_of).collect();
        let deleted = async {
            for name in blobs.list(*job).await?.iter().filter(|name| !known.contains(name)) {
                tracing::debug!(%job, filename = name.filename, "deleting artifact content without a row");
                blobs.delete(name).await?;
            }
            Ok::<(), BlobError>(())
        };
        if let Err(error) = deleted.await {
            tracing::warn!(%job, %error, "failed to delete artifact content without a row");
        }
    }
}
