//! What can be asked of the actor. Every command carries the channel for its answer; an answer is sent only after what
//! it says is durable.

use muster_job::{FailureReason, JobId, JobStatus, PipelineId, RunnerId, Variable};
use muster_runner_api::service::{JobRequestAnswer, ServiceError};
use muster_runner_api::wire::{JobRequest, RegisterRequest, RunnerCredentials, TokenRequest};
use tokio::sync::oneshot;

use crate::artifacts::NewArtifact;
use crate::error::{CoordinatorError, StoreError};
use crate::facts::{NewPipeline, NewRunner, SharedSources};
use crate::keys::Keys;
use crate::store::{ArtifactRow, Member};
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
    /// The pipelines in memory, and whether there are no others.
    Pipelines {
        reply: Reply<(Vec<PipelineSummary>, bool)>,
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
        reply: ServiceReply<JobRequestAnswer>,
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
    /// An upload has ended, and no longer uses the files of its job.
    UploadOver,
    Shutdown,
}

impl Command {
    /// What has to be in memory for this command. A job is named only if its token is genuine.
    pub(crate) fn members(&self, keys: &Keys) -> Vec<Member> {
        let genuine = |job: &JobId, token: &str| keys.handout(*job, token).map(|_| Member::Job(*job));
        match self {
            Self::AttachSources { pipeline, .. } | Self::CancelPipeline { pipeline, .. } => {
                vec![Member::Pipeline(*pipeline)]
            }
            Self::CancelJob { job, .. }
            | Self::PlayJob { job, .. }
            | Self::RetryJob { job, .. }
            | Self::DropJob { job, .. } => vec![Member::Job(*job)],
            Self::Authorize { job, token, .. }
            | Self::Finish { job, token, .. }
            | Self::ReportRefused { job, token, .. }
            | Self::ArtifactStored { job, token, .. } => genuine(job, token).into_iter().collect(),
            Self::Download { producer, token, .. } => {
                let asking = keys.read(token).map(|(asking, _)| [Member::Job(asking), Member::Job(*producer)]);
                asking.into_iter().flatten().collect()
            }
            // A pipeline or job that is not in memory is read by the caller.
            Self::Pipelines { .. } | Self::Pipeline { .. } | Self::Job { .. } | Self::StuckJobs { .. } => Vec::new(),
            Self::CreatePipeline { .. }
            | Self::CreateRunner { .. }
            | Self::Register { .. }
            | Self::Verify { .. }
            | Self::ResetToken { .. }
            | Self::ResetTokenWithPat { .. }
            | Self::Unregister { .. }
            | Self::UnregisterManager { .. }
            | Self::RequestJob { .. }
            | Self::UploadOver
            | Self::Shutdown => Vec::new(),
        }
    }

    /// Answers that the store failed: what the command is about could not be read.
    pub(crate) fn refuse(self, error: &StoreError) {
        // The caller may have gone away.
        fn library<T>(reply: Reply<T>, error: &StoreError) {
            let _ = reply.send(Err(error.clone().into()));
        }
        fn service<T>(reply: ServiceReply<T>, error: &StoreError) {
            let _ = reply.send(Err(error.clone().into()));
        }
        match self {
            Self::AttachSources { reply, .. } | Self::CancelPipeline { reply, .. } | Self::CancelJob { reply, .. } => {
                library(reply, error);
            }
            Self::PlayJob { reply, .. } | Self::RetryJob { reply, .. } => library(reply, error),
            Self::DropJob { reply, .. } | Self::Finish { reply, .. } => service(reply, error),
            Self::Authorize { reply, .. } => service(reply, error),
            Self::ReportRefused { reply, .. } => service(reply, error),
            Self::ArtifactStored { reply, .. } => service(reply, error),
            Self::Download { reply, .. } => service(reply, error),
            Self::RequestJob { reply, .. } => service(reply, error),
            // Without an answer the caller learns that the coordinator is closed; these need nothing from the store.
            _ => {}
        }
    }
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
