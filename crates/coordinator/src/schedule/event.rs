//! The words between the engine and its shell: what happened, what is to be done about it, and why not.

use std::collections::BTreeSet;

use muster_job::{FailureReason, InvalidTransition, JobStatus, PipelineId};
use serde::{Deserialize, Serialize};

use super::graph::Graph;

/// One record of a job: the shell maps it to a `JobId`, one to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobRef {
    /// Its pipeline.
    pub pipeline: PipelineId,
    /// Position in `muster_pipeline::model::Pipeline::jobs`, from 0; the same for all records of one job.
    pub place: usize,
    /// How many records of this job came before: 0 is the first try, each retry (automatic or by a person) adds 1.
    pub retry: u32,
}

impl std::fmt::Display for JobRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "job {} of pipeline {} (retry {})", self.place, self.pipeline, self.retry)
    }
}

/// What the shell has to keep of the newest record of each job, besides its id.
///
/// It changes only together with an [`Action::JobStatusChanged`] or [`Action::CreateRetry`] that names its job, so a
/// shell that stores the state of each job so named, in one transaction, can give [`super::Engine::restore`] all it needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobState {
    /// [`JobRef::retry`] of the newest record.
    pub retry: u32,
    /// Where it stands.
    pub status: JobStatus,
    /// A failure of it is a warning, and a manual one does not block (pipeline-yaml 5.4). From `allow_failure`, set
    /// also when the exit code of a failure is listed.
    pub allowed: bool,
    /// A person asked for it by name, played or retried it: it runs when its turn comes, without waiting for a person
    /// or a timer.
    pub asked: bool,
    /// This record or an earlier one of the job has run (for `auto_cancel`).
    pub started: bool,
    /// The runner that took it declared `cancel_gracefully`.
    pub winds_down: bool,
    /// When its delay is over, in the shell's milliseconds; only while it is scheduled.
    pub timer_at: Option<u64>,
    /// The pipeline that this bridge started.
    pub child: Option<Child>,
}

/// Where the pipeline that a bridge started lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Child {
    /// In the same engine, which follows it.
    Here(PipelineId),
    /// In another project; the shell reports its status.
    Elsewhere,
}

/// What the shell decides at the creation of a pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PipelineOptions {
    /// Full names of jobs that somebody asked for (C218): manual and delayed ones start when their turn comes, and
    /// `on_failure` ones run whatever came before. Only the first creation reads it, see [`JobState::asked`].
    pub play: BTreeSet<String>,
    /// The bridge that this pipeline is a child of.
    pub parent: Option<JobRef>,
}

/// How a job ended, as the runner or the coordinator itself says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Success,
    /// Badly.
    Failed {
        /// Why; decides on retries.
        reason: FailureReason,
        /// The script's, where it had one; `allow_failure:exit_codes` and `retry:exit_codes` look at it.
        exit_code: Option<i32>,
    },
}

/// One job or all of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// All jobs of it and of its descendants.
    Pipeline(PipelineId),
    /// One job; of a bridge, also the pipeline that it waits for.
    Job(JobRef),
}

/// How a resource group chooses among the jobs that want it (pipeline-yaml 5.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResourceMode {
    /// Any job that is ready.
    #[default]
    Unordered,
    /// The oldest pipeline first; newer ones wait for jobs of older ones that are not ready yet.
    OldestFirst,
    /// The newest pipeline first; older ones wait for jobs of newer ones that are not ready yet.
    NewestFirst,
    /// The newest pipeline among those whose job is ready.
    NewestReadyFirst,
}

/// What happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// The shell stored a new pipeline and all its jobs as `created`.
    PipelineCreated {
        /// Its id; greater than that of every older pipeline.
        pipeline: PipelineId,
        /// Its jobs.
        graph: Box<Graph>,
        /// The rest.
        options: PipelineOptions,
    },
    /// A runner takes a pending job.
    JobTaken {
        /// Which.
        job: JobRef,
        /// The runner declared `cancel_gracefully`: a cancel lets the script's end be reported.
        winds_down: bool,
    },
    /// The hand-out lease of a running job ran out with no sign of a start (rule R1).
    JobGivenBack {
        /// Which.
        job: JobRef,
    },
    /// The runner reports the end of a job; or the coordinator drops a job that is not done (missing dependency, stuck).
    JobFinished {
        /// Which.
        job: JobRef,
        /// How.
        outcome: Outcome,
    },
    /// A person cancels. What is done already stays as it is.
    Cancel {
        /// What.
        target: Target,
    },
    /// A person no longer waits for runners to wind down: canceling jobs, too, end at once.
    ForceCancel {
        /// What.
        target: Target,
    },
    /// A person starts a manual job, or a delayed one before its time. Their variables are the shell's business.
    Play {
        /// Which.
        job: JobRef,
    },
    /// A person takes the delay away: the job becomes manual.
    Unschedule {
        /// Which.
        job: JobRef,
    },
    /// A person wants a successful, failed or canceled job once more.
    RetryJob {
        /// Its newest record.
        job: JobRef,
    },
    /// The time asked for by [`Action::StartTimer`] has come.
    TimerFired {
        /// Which.
        job: JobRef,
    },
    /// The pipeline that a bridge started in another project, or mirrors, has this status now; the first such event
    /// says that it exists. Children of the engine's own are followed without it.
    ChildStatusChanged {
        /// Which.
        bridge: JobRef,
        /// The other pipeline's status.
        status: JobStatus,
    },
    /// The child pipeline could not be created.
    ChildFailed {
        /// Which.
        bridge: JobRef,
        /// Why.
        reason: FailureReason,
    },
    /// A newer commit on its ref has a pipeline now: `auto_cancel:on_new_commit` of this older one applies.
    NewerPipeline {
        /// The older pipeline.
        older: PipelineId,
    },
    /// Sets how a resource group chooses; groups are `unordered` until told otherwise.
    SetResourceMode {
        /// The group's expanded name.
        group: String,
        /// The mode.
        mode: ResourceMode,
    },
}

/// What the shell has to do, in this order. All actions of one event belong into one transaction of the store; what
/// goes to the outside (queue, runners, timers) follows after its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Store a job's status, with [`super::Engine::job`] for the rest of its state.
    JobStatusChanged {
        /// Which record.
        job: JobRef,
        /// What it was.
        from: JobStatus,
        /// What it is.
        to: JobStatus,
        /// Only with `failed`.
        reason: Option<FailureReason>,
        /// [`JobState::allowed`]: a failure is a warning.
        allowed: bool,
    },
    /// Store a new record, `created`, in the place of an old one, with an id, a token and a trace of its own.
    CreateRetry {
        /// The record that is replaced.
        old: JobRef,
        /// The new one.
        new: JobRef,
    },
    /// Offer a job to runners. It is in the queue as long as it is pending.
    Enqueue {
        /// Which.
        job: JobRef,
    },
    /// Send [`Event::TimerFired`] at a time. Needless once the job is not scheduled any more; a late shot is refused.
    StartTimer {
        /// Which.
        job: JobRef,
        /// In the shell's milliseconds.
        at: u64,
    },
    /// Create the bridge's pipeline, then answer with [`Event::PipelineCreated`] (with this bridge as parent),
    /// [`Event::ChildStatusChanged`] (a pipeline elsewhere) or [`Event::ChildFailed`].
    CreateChild {
        /// Which.
        bridge: JobRef,
    },
    /// Tell the runner that has the job to end it.
    CancelOnRunner {
        /// Which.
        job: JobRef,
        /// Let it wind down and report (`Job-Status: canceling`), else it is dead to us already.
        gracefully: bool,
    },
    /// Store and publish a pipeline's status.
    PipelineStatusChanged {
        /// Which.
        pipeline: PipelineId,
        /// What it was.
        from: JobStatus,
        /// What it is.
        to: JobStatus,
        /// A job failed and was allowed to.
        warnings: bool,
    },
}

/// Why an event changed nothing. Repeated and late events end here; none of these is a defect of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such pipeline.
    #[error("there is no pipeline {0}")]
    UnknownPipeline(PipelineId),
    /// No such job.
    #[error("there is no {0}")]
    UnknownJob(JobRef),
    /// The pipeline is there already.
    #[error("pipeline {0} exists already")]
    PipelineExists(PipelineId),
    /// A newer record has taken the place of this one.
    #[error("{job} was retried; its newest record is retry {newest}")]
    Replaced {
        /// The record of the event.
        job: JobRef,
        /// [`JobRef::retry`] of the newest.
        newest: u32,
    },
    /// Its state does not allow it.
    #[error(transparent)]
    InvalidTransition(#[from] InvalidTransition),
    /// Only a complete job that was not skipped can be retried.
    #[error("{job} is {status}; only a job that succeeded, failed or was canceled can be retried")]
    NotRetryable {
        /// Which.
        job: JobRef,
        /// Where it stands.
        status: JobStatus,
    },
    /// The timer fired before its time.
    #[error("{job} is due only at {at} ms")]
    NotDue {
        /// Which.
        job: JobRef,
        /// When it is.
        at: u64,
    },
    /// Runners have no part in bridges.
    #[error("{0} is a bridge, which no runner takes or ends")]
    IsBridge(JobRef),
    /// Only bridges have children.
    #[error("{0} is not a bridge")]
    NotABridge(JobRef),
    /// The bridge does not wait for a pipeline (any more): it was canceled, or has one.
    #[error("{job} is {status} and does not wait for its pipeline to be created")]
    BridgeNotWaiting {
        /// Which.
        job: JobRef,
        /// Where it stands.
        status: JobStatus,
    },
    /// The bridge shows the state of its child; act on the child.
    #[error("{0} mirrors its child pipeline; act on the child's jobs instead")]
    FollowsChild(JobRef),
}
