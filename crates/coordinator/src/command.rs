//! What can be asked of the actor. Every command carries the channel for its answer; an answer is sent only after what
//! it says is durable.

use muster_job::{FailureReason, JobId, JobStatus, PipelineId, RunnerId, Variable};
use muster_runner_api::service::{Assignment, ServiceError};
use muster_runner_api::wire::{JobRequest, RegisterRequest, RunnerCredentials, TokenRequest};
use tokio::sync::oneshot;

use crate::artifacts::NewArtifact;
use crate::error::CoordinatorError;
use crate::facts::{NewPipeline, NewRunner, SharedSources};
use crate::store::ArtifactRow;
use crate::views::{JobView, PipelineSummary, PipelineView, StuckJob};

/// The channel for an answer to library calls.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, CoordinatorError>>;
/// The channel for an answer to managers.
pub(crate) type ServiceReply<T> = oneshot::Sender<Result<T, ServiceError>>;

/// One question or order.
pub(crate) enum Command {
    CreatePipeline {
        new: Box<NewPipeline>,
        reply: Reply<PipelineId>,
    },
    CreateRunner {
        new: NewRunner,
        reply: Reply<RunnerCredentials>,
    },
    AttachSources {
        pipeline: PipelineId,
        sources: SharedSources,
        reply: Reply<()>,
    },
    CancelPipeline {
        pipeline: PipelineId,
        force: bool,
        reply: Reply<()>,
    },
    CancelJob {
        job: JobId,
        force: bool,
        reply: Reply<()>,
    },
    PlayJob {
        job: JobId,
        variables: Vec<Variable>,
        reply: Reply<JobId>,
    },
    RetryJob {
        job: JobId,
        reply: Reply<JobId>,
    },
    Pipelines {
        reply: Reply<Vec<PipelineSummary>>,
    },
    Pipeline {
        pipeline: PipelineId,
        reply: Reply<PipelineView>,
    },
    Job {
        job: JobId,
        reply: Reply<JobView>,
    },
    StuckJobs {
        reply: Reply<Vec<StuckJob>>,
    },
    Verify {
        request: TokenRequest,
        reply: ServiceReply<RunnerCredentials>,
    },
    ResetToken {
        token: String,
        reply: ServiceReply<RunnerCredentials>,
    },
    ResetTokenWithPat {
        runner: RunnerId,
        pat: String,
        reply: ServiceReply<RunnerCredentials>,
    },
    Unregister {
        token: String,
        reply: ServiceReply<()>,
    },
    UnregisterManager {
        request: TokenRequest,
        reply: ServiceReply<()>,
    },
    RequestJob {
        request: Box<JobRequest>,
        reply: ServiceReply<Assignment>,
    },
    Authorize {
        job: JobId,
        token: String,
        purpose: Purpose,
        reply: ServiceReply<Grant>,
    },
    Finish {
        job: JobId,
        token: String,
        outcome: Box<Outcome>,
        reply: ServiceReply<JobStatus>,
    },
    /// A job's token asks for the archive of `producer`.
    Download {
        producer: JobId,
        token: String,
        reply: ServiceReply<ArtifactRow>,
    },
    /// Ends a job on a runner from this side.
    DropJob {
        job: JobId,
        reason: FailureReason,
        message: String,
        reply: ServiceReply<JobStatus>,
    },
    Register {
        request: Box<RegisterRequest>,
        reply: ServiceReply<RunnerCredentials>,
    },
    /// A report that cannot be used was uploaded: its job fails, whatever its runner makes of the answer (C163).
    ReportRefused {
        job: JobId,
        token: String,
        why: String,
        reply: ServiceReply<()>,
    },
    ArtifactStored {
        job: JobId,
        token: String,
        artifact: Box<NewArtifact>,
        reply: ServiceReply<Kept>,
    },
    Shutdown,
}

/// What a job token is shown for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The taker is preparing, and has not accepted the job yet (runner-api 2.6).
    Waiting,
    /// The work of a job that runs: its acceptance, its trace, a touch.
    Work,
    /// Its artifacts. They come from wherever the job runs, and are no contact of its manager (runner-api 9.2).
    Transfer,
    /// The repository, read by the job itself: says nothing about its manager, and accepts nothing.
    Read,
    /// A final report: also an ended job may repeat it.
    Report,
}

/// What the actor says of a job whose token fits.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    /// Its state.
    pub(crate) status: JobStatus,
    /// The expression of its coverage, if it has one.
    pub(crate) coverage: Option<String>,
}

/// A final report.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    /// It succeeded.
    pub(crate) success: bool,
    /// Why it failed.
    pub(crate) reason: Option<FailureReason>,
    /// What the script ended with.
    pub(crate) exit_code: Option<i64>,
    /// From the trace.
    pub(crate) coverage: Option<f64>,
    /// The runner's result tree.
    pub(crate) result_tree: Option<serde_json::Value>,
}

/// What became of a file in its place.
#[derive(Debug)]
pub(crate) struct Kept {
    /// Whether it has a row.
    pub(crate) result: Result<(), ServiceError>,
    /// The name of the file that has none: the one before it, or itself.
    pub(crate) leftover: Option<String>,
}
