//! Why a step did not succeed, and what that means for the job (job-execution 11).

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use muster_agent_api::result::{JobResult, Outcome};
use muster_files::FileError;
use muster_job::{FailureReason, TerminationCause};

use crate::process::RunError;

/// Why a step of a job did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A command of the job ended with this status.
    #[error("exit status {0}")]
    Exit(i32),
    /// A command of the job was ended by a signal that we did not send.
    #[error("signal: {}", signal_name(*.0))]
    Signal(i32),
    /// The step was asked to end.
    #[error("{}", stopped(*.0))]
    Stopped(TerminationCause),
    /// A step ran into its own limit; the text says which.
    #[error("{0}")]
    StepTimeout(String),
    /// The job ran into its limit; the text says which.
    #[error("{0}")]
    JobTimeout(String),
    /// A built-in step could not do its work for a reason that lies in the job: counts as the script's failure.
    #[error("{0}")]
    Step(String),
    /// A login shell ended before it read the script: how, and with what status.
    #[error(
        "prepare environment: {0}. Check https://docs.gitlab.com/runner/shells/#shell-profile-loading for more information"
    )]
    Profile(String, Option<i32>),
    /// Steps at another agent failed; the exit status of the script, if that is what failed.
    #[error("{0}")]
    Elsewhere(String, Option<i32>),
    /// The job asks for what its runner is not set up for.
    #[error("{0}")]
    Configuration(String),
    /// The machine, not the job, is at fault.
    #[error("{0}")]
    System(String),
}

fn stopped(cause: TerminationCause) -> &'static str {
    match cause {
        TerminationCause::CanceledByUser => "canceled",
        TerminationCause::TimedOut => "timed out",
        TerminationCause::EnvironmentLost => "the environment was lost",
        TerminationCause::ResourceExhausted => "no space left for the job's log",
        TerminationCause::ManagerShutdown => "aborted: the runner is shutting down",
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        6 => "aborted",
        8 => "floating point exception",
        9 => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        15 => "terminated",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

impl Failure {
    /// The failure in a status, if it is one.
    #[must_use]
    pub fn of_status(status: ExitStatus) -> Option<Self> {
        match (status.code(), status.signal()) {
            (Some(0), _) => None,
            (Some(code), _) => Some(Self::Exit(code)),
            (None, signal) => Some(Self::Signal(signal.unwrap_or_default())),
        }
    }

    /// Returns the failure in the result of another agent, if it is one.
    #[must_use]
    pub fn of_result(result: &JobResult) -> Option<Self> {
        let Outcome::Failed { reason, exit_code, cause } = &result.outcome else { return None };
        let message = result.message.clone();
        Some(match (cause, reason) {
            (Some(TerminationCause::TimedOut), _) => Self::StepTimeout(message),
            (Some(cause), _) => Self::Stopped(*cause),
            (None, FailureReason::RunnerConfigurationError) => Self::Configuration(message),
            (None, FailureReason::RunnerSystemFailure) => Self::System(message),
            (None, _) => Self::Elsewhere(message, *exit_code),
        })
    }

    /// A failure of the machine, with what was being done.
    pub fn io(doing: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::System(format!("{doing}: {error}"))
    }

    /// GitLab's reason.
    #[must_use]
    pub fn reason(&self) -> FailureReason {
        match self {
            Self::Exit(_) | Self::Signal(_) | Self::Step(_) | Self::Profile(..) | Self::Elsewhere(..) => {
                FailureReason::ScriptFailure
            }
            Self::Stopped(cause) => FailureReason::from(*cause),
            Self::StepTimeout(_) | Self::JobTimeout(_) => FailureReason::JobExecutionTimeout,
            Self::Configuration(_) => FailureReason::RunnerConfigurationError,
            Self::System(_) => FailureReason::RunnerSystemFailure,
        }
    }

    /// The exit code for the coordinator.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        match self {
            Self::Exit(code) => Some(*code),
            Self::Step(_) => Some(1),
            Self::Profile(_, code) | Self::Elsewhere(_, code) => *code,
            _ => None,
        }
    }

    /// What ended the job early.
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
    /// The job can write the file, so that it is the job's failure.
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
