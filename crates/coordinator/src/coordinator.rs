//! The handle: what the rest of the program holds of a coordinator. Calls become commands to the actor.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use muster_job::{JobId, PipelineId, Variable};
use muster_runner_api::wire::RunnerCredentials;
use tokio::sync::{broadcast, mpsc, oneshot};

use crate::command::Command;
use crate::error::{CoordinatorError, OpenError};
use crate::facts::{NewPipeline, NewRunner, SharedSources};
use crate::options::Options;
use crate::views::{ArtifactView, Event, JobView, PipelineSummary, PipelineView, StuckJob};

/// How many commands may wait for the actor.
const COMMANDS_MAX: usize = 1024;
/// How many events a slow receiver may be behind before it has to read anew.
const EVENTS_MAX: usize = 4096;

/// Holds pipelines and jobs, gives jobs to managers, keeps traces and artifacts.
///
/// Cheap to share; implements [`muster_runner_api::service::RunnerService`] for the server routes.
#[derive(Debug)]
pub struct Coordinator {
    pub(crate) options: Options,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) events: broadcast::Sender<Event>,
}

impl Coordinator {
    /// Opens the coordinator of a folder, new or as it was left: running jobs go on running.
    ///
    /// # Errors
    /// [`OpenError`] where the folder cannot be written, is full, or was written by a newer version.
    pub async fn open(options: Options) -> Result<Arc<Self>, OpenError> {
        let (commands, _) = mpsc::channel(COMMANDS_MAX);
        let (events, _) = broadcast::channel(EVENTS_MAX);
        Ok(Arc::new(Self { options, commands, events }))
    }

    /// Creates a pipeline and starts it.
    ///
    /// # Errors
    /// [`CoordinatorError::Store`] where it could not be stored: then there is no pipeline.
    pub async fn create_pipeline(&self, new: NewPipeline) -> Result<PipelineId, CoordinatorError> {
        self.ask(|reply| Command::CreatePipeline { new: Box::new(new), reply }).await
    }

    /// Creates a runner; its token is in the answer and nowhere else.
    ///
    /// # Errors
    /// [`CoordinatorError::Store`].
    pub async fn create_runner(&self, new: NewRunner) -> Result<RunnerCredentials, CoordinatorError> {
        self.ask(|reply| Command::CreateRunner { new, reply }).await
    }

    /// Gives a pipeline of an earlier process its files back, so that its children can be compiled.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub async fn attach_sources(&self, pipeline: PipelineId, sources: SharedSources) -> Result<(), CoordinatorError> {
        self.ask(|reply| Command::AttachSources { pipeline, sources, reply }).await
    }

    /// Cancels all jobs of a pipeline and of its children; managers wind running ones down.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub async fn cancel_pipeline(&self, pipeline: PipelineId) -> Result<(), CoordinatorError> {
        self.ask(|reply| Command::CancelPipeline { pipeline, force: false, reply }).await
    }

    /// Cancels a pipeline, and gives up the jobs that are being wound down.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub async fn force_cancel(&self, pipeline: PipelineId) -> Result<(), CoordinatorError> {
        self.ask(|reply| Command::CancelPipeline { pipeline, force: true, reply }).await
    }

    /// Cancels one job; `force` gives up one that is being wound down.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub async fn cancel_job(&self, job: JobId, force: bool) -> Result<(), CoordinatorError> {
        self.ask(|reply| Command::CancelJob { job, force, reply }).await
    }

    /// Starts a manual job, or a delayed one early. `variables` beat all others; a bridge takes none.
    ///
    /// # Errors
    /// [`CoordinatorError::Refused`] where the job does not wait for a person.
    pub async fn play_job(&self, job: JobId, variables: Vec<Variable>) -> Result<JobId, CoordinatorError> {
        self.ask(|reply| Command::PlayJob { job, variables, reply }).await
    }

    /// Runs an ended job again: a new job of the same name takes its place. The answer is its id.
    ///
    /// # Errors
    /// [`CoordinatorError::Refused`] where the job has not ended.
    pub async fn retry_job(&self, job: JobId) -> Result<JobId, CoordinatorError> {
        self.ask(|reply| Command::RetryJob { job, reply }).await
    }

    /// What happens from now on. Who lags reads the pipelines anew.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// All pipelines, oldest first.
    ///
    /// # Errors
    /// [`CoordinatorError::Closed`].
    pub async fn pipelines(&self) -> Result<Vec<PipelineSummary>, CoordinatorError> {
        self.ask(|reply| Command::Pipelines { reply }).await
    }

    /// One pipeline with its jobs.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub async fn pipeline(&self, pipeline: PipelineId) -> Result<PipelineView, CoordinatorError> {
        self.ask(|reply| Command::Pipeline { pipeline, reply }).await
    }

    /// One job.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub async fn job(&self, job: JobId) -> Result<JobView, CoordinatorError> {
        self.ask(|reply| Command::Job { job, reply }).await
    }

    /// Pending jobs that no runner can take, and why (C198).
    ///
    /// # Errors
    /// [`CoordinatorError::Closed`].
    pub async fn stuck_jobs(&self) -> Result<Vec<StuckJob>, CoordinatorError> {
        self.ask(|reply| Command::StuckJobs { reply }).await
    }

    /// The trace of a job from `offset` on, at most 1 MiB; empty where there is no more.
    ///
    /// # Errors
    /// [`CoordinatorError::Read`].
    pub async fn read_trace(&self, job: JobId, offset: u64) -> Result<Bytes, CoordinatorError> {
        let _ = (job, offset);
        Err(CoordinatorError::Closed)
    }

    /// Where the trace of a job lies; the file is missing while nothing was written.
    #[must_use]
    pub fn trace_path(&self, job: JobId) -> PathBuf {
        self.options.dir.join("traces").join(format!("{job}.log"))
    }

    /// What a job uploaded.
    ///
    /// # Errors
    /// [`CoordinatorError::NotFound`].
    pub async fn artifact_files(&self, job: JobId) -> Result<Vec<ArtifactView>, CoordinatorError> {
        Ok(self.job(job).await?.artifacts)
    }

    /// Stops: no new command is taken, what was accepted is stored. Jobs stay as they are.
    pub async fn shutdown(&self) {
        // An error means that it is down already.
        let _ = self.ask(|reply| Command::Shutdown { reply }).await;
    }

    /// Sends a command and waits for its answer.
    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T, CoordinatorError>>) -> Command,
    ) -> Result<T, CoordinatorError> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.map_err(|_| CoordinatorError::Closed)?;
        answer.await.map_err(|_| CoordinatorError::Closed)?
    }
}
