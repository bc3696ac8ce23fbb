//! Commands to the actor. Most have a channel for the answer. An answer is sent after the changes that it reports have been stored.

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

/// Channel for the answer to a library call.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, CoordinatorError>>;
/// Channel for the answer to a runner manager.
pub(crate) type ServiceReply<T> = oneshot::Sender<Result<T, ServiceError>>;

/// A command to the actor.
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
    /// Returns the pipelines in memory, and whether these are all pipelines.
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
        token_use: TokenUse,
        reply: ServiceReply<Authorization>,
    },
    Finish {
        job: JobId,
        token: String,
        report: Box<FinalReport>,
        reply: ServiceReply<JobStatus>,
    },
    /// Returns the archive of `producer`, for the token of another job.
    Download {
        producer: JobId,
        token: String,
        reply: ServiceReply<ArtifactRow>,
    },
    /// Fails a job that is on a runner.
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
    /// Records that an invalid report was uploaded. The job fails even if its runner ignores the answer (docs/spec/pipeline-yaml.md, case C163).
    ReportRejected {
        job: JobId,
        token: String,
        reason: String,
        reply: ServiceReply<()>,
    },
    ArtifactStored {
        job: JobId,
        token: String,
        artifact: Box<NewArtifact>,
        reply: ServiceReply<StoredUpload>,
    },
    /// Notifies the actor that an upload has ended and no longer uses the files of its job.
    UploadEnded,
    /// Notifies the actor that a trace was written, although the disk was full before.
    TraceRecovered,
    Shutdown,
}

impl Command {
    /// Returns the pipelines and jobs that must be in memory for this command. Returns none if the command's job token is invalid.
    pub(crate) fn members(&self, keys: &Keys) -> Vec<Member> {
        let if_valid = |job: &JobId, token: &str| keys.assignment_of(*job, token).map(|_| Member::Job(*job));
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
            | Self::ReportRejected { job, token, .. }
            | Self::ArtifactStored { job, token, .. } => if_valid(job, token).into_iter().collect(),
            Self::Download { producer, token, .. } => {
                let consumer = keys.read(token).map(|(consumer, _)| [Member::Job(consumer), Member::Job(*producer)]);
                consumer.into_iter().flatten().collect()
            }
            // If the pipeline or job is not in memory, the caller reads it from the store.
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
            | Self::UploadEnded
            | Self::TraceRecovered
            | Self::Shutdown => Vec::new(),
        }
    }

    /// Answers with an error because the store failed to read the rows that the command needs.
    pub(crate) fn answer_store_error(self, error: &StoreError) {
        // The caller may have stopped waiting.
        fn reply_to_caller<T>(reply: Reply<T>, error: &StoreError) {
            let _ = reply.send(Err(error.clone().into()));
        }
        fn reply_to_manager<T>(reply: ServiceReply<T>, error: &StoreError) {
            let _ = reply.send(Err(error.clone().into()));
        }
        match self {
            Self::AttachSources { reply, .. } | Self::CancelPipeline { reply, .. } | Self::CancelJob { reply, .. } => {
                reply_to_caller(reply, error);
            }
            Self::PlayJob { reply, .. } | Self::RetryJob { reply, .. } => reply_to_caller(reply, error),
            Self::DropJob { reply, .. } | Self::Finish { reply, .. } => reply_to_manager(reply, error),
            Self::Authorize { reply, .. } => reply_to_manager(reply, error),
            Self::ReportRejected { reply, .. } => reply_to_manager(reply, error),
            Self::ArtifactStored { reply, .. } => reply_to_manager(reply, error),
            Self::Download { reply, .. } => reply_to_manager(reply, error),
            Self::RequestJob { reply, .. } => reply_to_manager(reply, error),
            // The other commands need no rows from the store, so they do not get here.
            _ => {}
        }
    }
}

/// Use of a job token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenUse {
    /// Report of an assignee that still prepares the job and has not accepted it (docs/spec/runner-api.md, section 2.6).
    Waiting,
    /// Work of a running job: acceptance, trace, touch.
    Work,
    /// Upload or download of artifacts (docs/spec/runner-api.md, section 9.2).
    ///
    /// A transfer postpones the job's timeout for missing contact. It is not recorded as contact of the manager, because any machine can
    /// transfer files.
    Transfer,
    /// Reading the repository, by the job itself. Does not count as contact of the manager, and does not accept the job.
    Read,
    /// A final report, which may also be repeated after the job ended.
    Report,
}

/// Information about a job, for a valid token.
#[derive(Debug, Clone)]
pub(crate) struct Authorization {
    /// Status of the job.
    pub(crate) status: JobStatus,
    /// Regular expression of the job's `coverage` keyword, if any.
    pub(crate) coverage: Option<String>,
}

/// A final report of a runner.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FinalReport {
    /// Whether the job succeeded.
    pub(crate) success: bool,
    /// Failure reason.
    pub(crate) reason: Option<FailureReason>,
    /// Exit code of the script.
    pub(crate) exit_code: Option<i64>,
    /// Coverage in percent, from the trace.
    pub(crate) coverage: Option<f64>,
    /// Result tree of the runner.
    pub(crate) result_tree: Option<serde_json::Value>,
}

/// Result of storing an uploaded artifact.
#[derive(Debug)]
pub(crate) struct StoredUpload {
    /// `Ok` if the artifact has a row. Otherwise the error for the uploader.
    pub(crate) result: Result<(), ServiceError>,
    /// Name of a file without a row, to be deleted: the replaced file, or the new one if it was rejected.
    pub(crate) leftover: Option<String>,
}
