//! The types between the engine and its caller: events, actions and errors.

use std::collections::BTreeSet;

use muster_job::{FailureReason, InvalidTransition, JobStatus, PipelineId};
use serde::{Deserialize, Serialize};

use super::graph::Graph;

/// One record (attempt) of a job. The caller maps each record to a `JobId`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobRef {
    /// ID of the pipeline.
    pub pipeline: PipelineId,
    /// Index in `muster_pipeline::model::Pipeline::jobs`, from 0. All records of one job have the same index.
    pub job_index: usize,
    /// Number of earlier records of this job. 0 is the first attempt; each automatic or manual retry adds 1.
    pub retry: u32,
}

impl std::fmt::Display for JobRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "job {} of pipeline {} (retry {})", self.job_index, self.pipeline, self.retry)
    }
}

/// State of the newest record of a job, which the caller must store in addition to the job's ID.
///
/// The state changes only together with an [`Action::JobStatusChanged`] or [`Action::CreateRetry`] for its job. A caller that stores the
/// state of each such job, in one transaction, has all data for [`super::Engine::restore`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobState {
    /// [`JobRef::retry`] of the newest record.
    pub retry: u32,
    /// Status of the job.
    pub status: JobStatus,
    /// Whether a failure is only a warning, and later jobs do not wait for a manual start of this job
    /// (docs/spec/pipeline-yaml.md, section 5.4).
    ///
    /// Comes from `allow_failure`. Also set when a failure has one of the listed exit codes.
    pub failure_allowed: bool,
    /// Whether a user played the job or named it in [`PipelineOptions::play`], or this record is a retry.
    ///
    /// Such a job needs no manual start and no delay.
    pub requested_by_user: bool,
    /// Whether this record or an earlier one of the job has run (for `auto_cancel`).
    pub started: bool,
    /// Whether the runner manager that has the job declared `cancel_gracefully`.
    pub supports_graceful_cancel: bool,
    /// End of the delay in the caller's milliseconds. `None` if the job is not scheduled.
    pub timer_at: Option<u64>,
    /// Pipeline that this bridge started.
    pub child: Option<Child>,
}

/// Location of the pipeline that a bridge started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Child {
    /// In the same engine, which follows its status.
    SameProject(PipelineId),
    /// In another project. The caller reports its status.
    OtherProject,
}

/// Decisions of the caller at the creation of a pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PipelineOptions {
    /// Full names of jobs that the user requested (docs/spec/pipeline-yaml.md, case C218).
    ///
    /// Manual and delayed jobs among them start as soon as they are ready, and `on_failure` jobs among them run even if
    /// no earlier job failed.
    pub play: BTreeSet<String>,
    /// Bridge that starts this pipeline. `None` if it has no parent.
    pub parent: Option<JobRef>,
}

/// Outcome of a job, from its runner or from the coordinator itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The job succeeded.
    Success,
    /// The job failed.
    Failed {
        /// Failure reason, on which retries depend.
        reason: FailureReason,
        /// Exit code of the script, if it has one. Used by `allow_failure:exit_codes` and `retry:exit_codes`.
        exit_code: Option<i32>,
    },
}

/// Target of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// All jobs of a pipeline and of its descendants.
    Pipeline(PipelineId),
    /// One job. For a bridge, also the pipeline that it waits for.
    Job(JobRef),
}

/// Order in which a resource group serves jobs (docs/spec/pipeline-yaml.md, section 5.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResourceMode {
    /// Any job that is ready.
    #[default]
    Unordered,
    /// The oldest pipeline first. Newer pipelines wait for jobs of older ones even if these are not ready yet.
    OldestFirst,
    /// The newest pipeline first. Older pipelines wait for jobs of newer ones even if these are not ready yet.
    NewestFirst,
    /// The newest pipeline among those whose job is ready.
    NewestReadyFirst,
}

/// An event that the engine processes.
#[derive(Debug, Clone)]
pub enum Event {
    /// The caller stored a new pipeline with all its jobs in status `created`.
    PipelineCreated {
        /// ID of the pipeline, greater than the ID of every older pipeline.
        pipeline: PipelineId,
        /// Jobs of the pipeline with their dependencies.
        graph: Box<Graph>,
        /// Requested jobs and the parent.
        options: PipelineOptions,
    },
    /// A pending job was assigned to a runner manager.
    JobAssigned {
        /// The assigned job.
        job: JobRef,
        /// Whether the runner declared `cancel_gracefully`: after a cancel, it still reports the end of the script.
        supports_graceful_cancel: bool,
    },
    /// The runner manager did not receive the job, or did not accept it in time. The job returns to the queue (docs/spec/life-of-a-job.md,
    /// rule R1).
    JobRequeued {
        /// The requeued job.
        job: JobRef,
    },
    /// The runner reported the end of a job, or the coordinator dropped a job (missing dependency, stuck).
    JobFinished {
        /// The finished job.
        job: JobRef,
        /// Outcome of the job.
        outcome: Outcome,
    },
    /// A user canceled a job or a pipeline. Jobs that are complete keep their status.
    Cancel {
        /// The job or pipeline to cancel.
        target: Target,
    },
    /// A user canceled a job or a pipeline without waiting for graceful cancellation: canceling jobs also end immediately.
    ForceCancel {
        /// The job or pipeline to cancel.
        target: Target,
    },
    /// A user started a manual job, or a delayed job before its delay was over. The caller stores the variables that the user entered.
    Play {
        /// The job to start.
        job: JobRef,
    },
    /// A user removed the delay of a job: it becomes manual.
    Unschedule {
        /// The delayed job.
        job: JobRef,
    },
    /// A user retried a successful, failed or canceled job.
    RetryJob {
        /// Newest record of the job.
        job: JobRef,
    },
    /// The timer of [`Action::StartTimer`] fired.
    TimerFired {
        /// The delayed job.
        job: JobRef,
    },
    /// A pipeline in another project has a new status. The bridge started this pipeline, or mirrors it.
    ///
    /// The first such event means that the pipeline exists. Child pipelines in the same engine need no such event.
    ChildStatusChanged {
        /// The bridge.
        bridge: JobRef,
        /// Status of the other pipeline.
        status: JobStatus,
    },
    /// The child pipeline of a bridge could not be created.
    ChildFailed {
        /// The bridge.
        bridge: JobRef,
        /// Failure reason for the bridge.
        reason: FailureReason,
    },
    /// A newer commit on the same ref has a pipeline: `auto_cancel:on_new_commit` of the older pipeline applies.
    NewerPipeline {
        /// The older pipeline.
        older: PipelineId,
    },
    /// Sets the order in which a resource group serves jobs. The default is `unordered`.
    SetResourceMode {
        /// Name of the group, with variables expanded.
        group: String,
        /// The new order.
        mode: ResourceMode,
    },
}

/// An action for the caller, to be carried out in the returned order.
///
/// Store all actions of one event in one transaction. Actions outside the store (queue, runners, timers) follow after the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Store the status of a job, and the rest of its state from [`super::Engine::job`].
    JobStatusChanged {
        /// The record that changed.
        job: JobRef,
        /// Status before the change.
        from: JobStatus,
        /// Status after the change.
        to: JobStatus,
        /// Failure reason. Set only if the new status is `failed`.
        reason: Option<FailureReason>,
        /// Value of [`JobState::failure_allowed`]: whether a failure is a warning.
        failure_allowed: bool,
    },
    /// Store a new record in status `created`, with its own ID, token and trace. It replaces an old record.
    CreateRetry {
        /// The record that is replaced.
        old: JobRef,
        /// The new record.
        new: JobRef,
    },
    /// Add a job to the queue. The job leaves the queue when it is no longer pending.
    Enqueue {
        /// The pending job.
        job: JobRef,
    },
    /// Send [`Event::TimerFired`] at a given time. If the job is no longer scheduled, the event is rejected, and may be omitted.
    StartTimer {
        /// The delayed job.
        job: JobRef,
        /// Time of the event in the caller's milliseconds.
        at: u64,
    },
    /// Create the pipeline of a bridge.
    ///
    /// Answer with [`Event::PipelineCreated`] (with this bridge as parent), [`Event::ChildStatusChanged`] (a pipeline in another
    /// project) or [`Event::ChildFailed`].
    CreateChild {
        /// The bridge.
        bridge: JobRef,
    },
    /// Cancel a job on its runner.
    CancelOnRunner {
        /// The canceled job.
        job: JobRef,
        /// Whether the runner may finish and report (`Job-Status: canceling`). If not, the job has already ended for the coordinator.
        gracefully: bool,
    },
    /// Store and publish the status of a pipeline.
    PipelineStatusChanged {
        /// The pipeline.
        pipeline: PipelineId,
        /// Status before the change.
        from: JobStatus,
        /// Status after the change.
        to: JobStatus,
        /// Whether a job that is allowed to fail has failed.
        warnings: bool,
    },
}

/// Reason why an event was rejected. The event changed nothing. Repeated and late events are normal, so a rejection is not a defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RejectedEvent {
    /// The pipeline does not exist.
    #[error("pipeline {0} does not exist")]
    UnknownPipeline(PipelineId),
    /// The job does not exist.
    #[error("{0} does not exist")]
    UnknownJob(JobRef),
    /// The pipeline exists already.
    #[error("pipeline {0} already exists")]
    PipelineExists(PipelineId),
    /// A newer record has replaced the record.
    #[error("{job} was retried; its newest record is retry {newest}")]
    Replaced {
        /// The record that the event names.
        job: JobRef,
        /// [`JobRef::retry`] of the newest record.
        newest: u32,
    },
    /// The status of the job does not allow the event.
    #[error(transparent)]
    InvalidTransition(#[from] InvalidTransition),
    /// Only a complete job that was not skipped can be retried.
    #[error("{job} is {status}; only a job that succeeded, failed or was canceled can be retried")]
    NotRetryable {
        /// The job.
        job: JobRef,
        /// Status of the job.
        status: JobStatus,
    },
    /// The timer fired too early.
    #[error("the timer of {job} is not due before {at} ms")]
    NotDue {
        /// The delayed job.
        job: JobRef,
        /// Time of the timer in the caller's milliseconds.
        at: u64,
    },
    /// The event is for jobs on runners, and the job is a bridge.
    #[error("{0} is a bridge, which does not run on a runner")]
    IsBridge(JobRef),
    /// The event is for bridges, and the job is not a bridge.
    #[error("{0} is not a bridge")]
    NotABridge(JobRef),
    /// The bridge does not wait for a pipeline, for example because it was canceled or already has one.
    #[error("{job} is {status} and does not wait for its pipeline to be created")]
    BridgeNotWaiting {
        /// The bridge.
        job: JobRef,
        /// Status of the bridge.
        status: JobStatus,
    },
    /// The bridge has started a pipeline, so neither its start nor its delay can be changed.
    #[error("{0} has started a pipeline; act on the jobs of that pipeline instead")]
    FollowsChild(JobRef),
}
