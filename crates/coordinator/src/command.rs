//! Commands to the actor. An answer is sent after the changes that it reports are stored.

use muster_job::{FailureReason, JobId, JobStatus, PipelineId, RunnerId, Variable};
use muster_runner_api::service::{JobRequestAnswer, ServiceError};
use muster_runner_api::wire::{JobRequest, RegisterRequest, RunnerCredentials, TokenRequest};
use tokio::sync::oneshot;

use crate::artifacts::NewArtifact;
use crate::error::{CoordinatorError, StoreError};
use crate::facts::{NewPipeline, RunnerSpec, SharedSources};
use crate::keys::Keys;
use crate::store::{ArtifactRow, Member};
use crate::views::{JobView, PipelineSummary, PipelineView, StuckJob};

pub(crate) type Reply<T> = oneshot::Sender<Result<T, CoordinatorError>>;
pub(crate) type ServiceReply<T> = oneshot::Sender<Result<T, ServiceError>>;

pub(crate) enum Command {
    CreatePipeline {
        new: Box<NewPipeline>,
        reply: Reply<PipelineId>,
    },
    CreateRunner {
        new: RunnerSpec,
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
    RecordInvalidReport {
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
    /// An upload has ended and no longer uses the files of its job.
    UploadEnded,
    /// A trace was written after the disk had been full.
    TraceRecovered,
    Shutdown,
}

impl Command {
    /// Returns the pipelines and jobs that must be in memory for this command: none if its job token is invalid.
    ///
    /// Those of [`Self::RequestJob`] depend on the state, so the caller determines them.
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
            | Self::RecordInvalidReport { job, token, .. }
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
            Self::RecordInvalidReport { reply, .. } => reply_to_manager(reply, error),
            Self::ArtifactStored { reply, .. } => reply_to_manager(reply, error),
            Self::Download { reply, .. } => reply_to_manager(reply, error),
            Self::RequestJob { reply, .. } => reply_to_manager(reply, error),
            // The other commands need no rows from the store, so they do not get here.
            _ => {}
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenUse {
    /// Report that the job is still being prepared, from the manager that got the job (docs/spec/runner-api.md,
    /// section 2.6).
    Waiting,
    /// Work of a running job: its acceptance, its trace, or a sign of life (an update to the state `running`).
    Work,
    /// Upload or download of artifacts (docs/spec/runner-api.md, section 9.2).
    ///
    /// Postpones the timeout for missing contact, but is not recorded as contact of the manager: any machine can
    /// transfer files.
    Transfer,
    /// Reading the repository, by the job itself. Does not count as contact of the manager, and does not accept the job.
    Read,
    /// A final report, which may also be repeated after the job ended.
    Report,
}

#[derive(Debug, Clone)]
pub(crate) struct Authorization {
    pub(crate) status: JobStatus,
    /// Regular expression of the job's `coverage` keyword, if any.
    pub(crate) coverage: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FinalReport {
    pub(crate) success: bool,
    pub(crate) reason: Option<FailureReason>,
    pub(crate) exit_code: Option<i64>,
    /// Coverage in percent, from the trace.
    pub(crate) coverage: Option<f64>,
    pub(crate) result_tree: Option<serde_json::Value>,
}

#[derive(Debug)]
pub(crate) struct StoredUpload {
    /// `Ok` if the artifact has a row. Otherwise the error for the uploader.
    pub(crate) result: Result<(), ServiceError>,
    /// Name of a file without a row, to be deleted: the replaced file, or the new one if it was rejected.
    pub(crate) leftover: Option<String>,
}
