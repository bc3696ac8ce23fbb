//! Failures of steps, with their failure reasons and exit codes (docs/spec/job-execution.md, section 11).

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use muster_agent_api::result::{JobResult, Outcome};
use muster_files::FileError;
use muster_job::{FailureReason, TerminationCause};

use crate::process::RunError;

/// Reason why a step was not fetched, or why a bundled step failed. The ports of the engine return it:
/// [`StepSource`](crate::remote::StepSource) and [`BundledSteps`](crate::bundled::BundledSteps).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The job was stopped.
    #[error("stopped")]
    Stopped(TerminationCause),
    /// An input is invalid, or a server refused the request or is unreachable. Contains the error and the remedy.
    #[error("{0}")]
    Failed(String),
    /// This machine failed.
    #[error("{0}")]
    System(String),
}

/// Failure of a step of a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A command of the job exited with this status.
    #[error("exit status {0}")]
    Exit(i32),
    /// A command of the job in a container exited with this status, which is 128 plus the signal's number if a signal
    /// ended the command.
    ///
    /// GitLab's text for containers differs, and tools search logs for it (docs/spec/job-execution.md, section 1.9).
    #[error("exit code {0}")]
    ContainerExit(i32),
    /// A command of the job was terminated by this signal, which Muster did not send.
    #[error("signal: {}", signal_name(*.0))]
    Signal(i32),
    /// The step was stopped.
    #[error("{}", cause_message(*.0))]
    Stopped(TerminationCause),
    /// The step exceeded its own timeout, which the text names.
    #[error("{0}")]
    StepTimeout(String),
    /// The job exceeded its timeout, which the text names.
    #[error("{0}")]
    JobTimeout(String),
    /// Something in the job failed, such as an invalid file. Counts as a failure of the script.
    #[error("{0}")]
    Step(String),
    /// A login shell ended before it read the script. Contains how it ended, and its exit status.
    #[error(
        "prepare environment: {0}. Check https://docs.gitlab.com/runner/shells/#shell-profile-loading for more information"
    )]
    Profile(String, Option<i32>),
    /// A step of a step file failed. Contains the message with the names of the steps, and the exit status if a process
    /// of the step exited.
    #[error("{0}")]
    StepFile(String, Option<i32>),
    /// Delegated steps failed at another agent. Contains the message, and the exit status if their script failed.
    #[error("{0}")]
    Delegated(String, Option<i32>),
    /// The job requires something that its runner is not configured for.
    #[error("{0}")]
    Configuration(String),
    /// The image of a container could not be pulled.
    #[error("{0}")]
    ImagePull(String),
    /// A service that the runner depends on, such as a registry, is unreachable.
    #[error("{0}")]
    ExternalDependency(String),
    /// The failure was caused by the machine, not by the job.
    #[error("{0}")]
    System(String),
}

fn cause_message(cause: TerminationCause) -> &'static str {
    match cause {
        TerminationCause::CanceledByUser => "canceled",
        TerminationCause::TimedOut => "timed out",
        TerminationCause::EnvironmentLost => "the environment was lost",
        TerminationCause::ResourceExhausted => "no space left for the job's log",
        TerminationCause::ManagerShutdown => "aborted: the runner is shutting down",
    }
}

/// Returns the description of a signal on Linux, as Go prints it, or `signal N` for a real-time signal.
pub(crate) fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        16 => "stack fault",
        17 => "child exited",
        18 => "continued",
        19 => "stopped (signal)",
        20 => "stopped",
        21 => "stopped (tty input)",
        22 => "stopped (tty output)",
        23 => "urgent I/O condition",
        24 => "CPU time limit exceeded",
        25 => "file size limit exceeded",
        26 => "virtual timer expired",
        27 => "profiling timer expired",
        28 => "window changed",
        29 => "I/O possible",
        30 => "power failure",
        31 => "bad system call",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

impl Failure {
    /// Converts an exit status to a failure. `None` means success.
    #[must_use]
    pub fn from_status(status: ExitStatus) -> Option<Self> {
        match (status.code(), status.signal()) {
            (Some(0), _) => None,
            (Some(code), _) => Some(Self::Exit(code)),
            (None, signal) => Some(Self::Signal(signal.unwrap_or_default())),
        }
    }

    /// Converts the failure of a command to the failure of a command in a container.
    #[must_use]
    pub fn in_container(self) -> Self {
        match self {
            Self::Exit(code) => Self::ContainerExit(code),
            Self::Signal(signal) => Self::ContainerExit(128 + signal),
            other => other,
        }
    }

    /// Converts the result of another agent to a failure. `None` means success.
    #[must_use]
    pub fn from_result(result: &JobResult) -> Option<Self> {
        let Outcome::Failed { reason, exit_code, cause } = &result.outcome else { return None };
        let message = result.message.clone();
        Some(match (cause, reason) {
            (Some(TerminationCause::TimedOut), _) => Self::StepTimeout(message),
            (Some(cause), _) => Self::Stopped(*cause),
            (None, FailureReason::RunnerConfigurationError) => Self::Configuration(message),
            (None, FailureReason::ImagePullFailure) => Self::ImagePull(message),
            (None, FailureReason::RunnerExternalDependencyFailure) => Self::ExternalDependency(message),
            (None, FailureReason::RunnerSystemFailure) => Self::System(message),
            (None, _) => Self::Delegated(message, *exit_code),
        })
    }

    /// Converts the failure of an operator's step to a failure of the runner, unless the job was stopped.
    #[must_use]
    pub fn in_operator_step(self, step: &str) -> Self {
        match self {
            Self::Stopped(_) | Self::JobTimeout(_) => self,
            failure => Self::System(format!(
                "the step `{step}` that the operator added to each job of this runner failed: {failure}"
            )),
        }
    }

    /// Like [`Self::in_operator_step`], for an operator's step in place of a built-in step.
    #[must_use]
    pub fn in_replacement(self, builtin: &str, step: &str) -> Self {
        match self {
            Self::Stopped(_) | Self::JobTimeout(_) => self,
            failure => Self::System(format!(
                "the step `{step}` that the operator of this runner put in place of `builtin://{builtin}` failed: {failure}"
            )),
        }
    }

    /// Returns a function that converts an I/O error to a failure of the machine. `operation` precedes the error.
    pub fn io(operation: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::System(format!("{operation}: {error}"))
    }

    /// Returns GitLab's failure reason.
    #[must_use]
    pub fn reason(&self) -> FailureReason {
        match self {
            Self::Exit(_)
            | Self::ContainerExit(_)
            | Self::Signal(_)
            | Self::Step(_)
            | Self::StepFile(..)
            | Self::Profile(..)
            | Self::Delegated(..) => FailureReason::ScriptFailure,
            Self::Stopped(cause) => FailureReason::from(*cause),
            Self::StepTimeout(_) | Self::JobTimeout(_) => FailureReason::JobExecutionTimeout,
            Self::Configuration(_) => FailureReason::RunnerConfigurationError,
            Self::ImagePull(_) => FailureReason::ImagePullFailure,
            Self::ExternalDependency(_) => FailureReason::RunnerExternalDependencyFailure,
            Self::System(_) => FailureReason::RunnerSystemFailure,
        }
    }

    /// Returns the exit code for the coordinator.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        match self {
            Self::Exit(code) | Self::ContainerExit(code) => Some(*code),
            Self::Step(_) => Some(1),
            Self::StepFile(_, code) | Self::Profile(_, code) | Self::Delegated(_, code) => *code,
            _ => None,
        }
    }

    /// Returns the cause that ended the job or step early.
    #[must_use]
    pub fn cause(&self) -> Option<TerminationCause> {
        match self {
            Self::Stopped(cause) => Some(*cause),
            Self::StepTimeout(_) | Self::JobTimeout(_) => Some(TerminationCause::TimedOut),
            _ => None,
        }
    }
}

impl From<FileError> for Failure {
    /// Returns a failure of the job, because jobs can write these files.
    fn from(error: FileError) -> Self {
        Self::Step(error.to_string())
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        use std::error::Error;
        let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        Self::System(format!("{error}{cause}"))
    }
}
