//! What can go wrong on the way to an agent.

use std::io;
use std::path::PathBuf;

use muster_agent_api::client::{AgentError, Unreachable};

/// Why an environment could not be had or reached. All of these may heal; the caller decides how long to hope.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// No process answers, or the process that answers is not an agent.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// A process that is not an agent of this manager listens at the agent's socket. It got nothing.
    #[error(
        "process {pid} of user {user} listens on {} and is not an agent that this manager started; end that process, or \
         remove the socket",
        socket.display()
    )]
    Untrusted {
        /// The socket.
        socket: PathBuf,
        /// The process.
        pid: i32,
        /// ID of its user.
        user: u32,
    },
    /// The agent's process did not come up.
    #[error("the agent could not be started: {message}; its log is {}", log.display())]
    Start {
        /// What happened.
        message: String,
        /// Where the agent writes what it has to say.
        log: PathBuf,
    },
    /// A directory or file of the environment is not usable.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was to be done.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Jobs are to run as a user that they cannot run as.
    #[error("jobs cannot run as user `{name}`: {message}")]
    User {
        /// The user's name.
        name: String,
        /// Why not.
        message: String,
    },
    /// The environment is gone for good.
    #[error("{environment} is gone: {message}")]
    Lost {
        /// The environment.
        environment: String,
        /// How that is known.
        message: String,
    },
    /// There was no environment in time.
    #[error("{0}")]
    NotAcquired(String),
    /// A lease from an earlier start does not fit: its slot is taken or beyond the capacity.
    #[error("slot {slot} of environment `{environment}` cannot be taken again")]
    SlotTaken {
        /// The environment.
        environment: String,
        /// The slot.
        slot: u32,
    },
}

impl ExecutorError {
    /// Returns the error of an agent that should be at `place` and does not answer, for this reason.
    pub(crate) fn unreachable(place: impl Into<String>, message: impl ToString) -> Self {
        Unreachable { place: place.into(), message: message.to_string() }.into()
    }
}

impl From<ExecutorError> for AgentError {
    fn from(error: ExecutorError) -> Self {
        Self::NotReached(error.into())
    }
}
