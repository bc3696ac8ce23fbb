//! Errors from acquiring an execution environment, and from reaching the agent there.

use std::io;
use std::path::PathBuf;

use muster_agent_api::client::{AgentError, Unreachable};

/// Errors from acquiring or reaching an execution environment.
///
/// Every error except [`Self::Lost`] may be transient.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    /// No process answers, or the process that answers is not an agent.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// A process that is not an agent of this manager listens on the agent's socket.
    #[error(
        "process {pid} of user {user} listens on {} and is not an agent of this manager; end that process, or \
         remove the socket",
        socket.display()
    )]
    Untrusted {
        /// Path of the socket.
        socket: PathBuf,
        /// ID of that process.
        pid: i32,
        /// User ID of that process.
        user: u32,
    },
    /// The agent's process did not become ready, or no socket is free for it.
    #[error("failed to start the agent: {message}; see its log {}", log.display())]
    Start {
        /// Reason, with the end of the agent's log if it printed anything.
        message: String,
        /// File to which the agent logs.
        log: PathBuf,
    },
    /// A directory or file of the environment is not usable.
    #[error("failed to {action} {}: {source}", path.display())]
    File {
        /// Operation that failed, as a verb phrase that precedes the path.
        action: &'static str,
        /// The directory or file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Jobs cannot run as the configured user.
    #[error("jobs cannot run as user `{name}`: {message}")]
    User {
        /// Name of the user.
        name: String,
        /// Reason.
        message: String,
    },
    /// The environment was lost permanently.
    #[error("{environment} was lost: {message}")]
    Lost {
        /// Kind and ID of the environment.
        environment: String,
        /// Reason, as far as it is known.
        message: String,
    },
    /// The executor could not provide an environment.
    #[error("{0}")]
    NotAcquired(String),
    /// A lease of an earlier manager process cannot be restored.
    #[error(
        "failed to restore slot {slot} of environment `{environment}`: it is in use, or the environment does not exist"
    )]
    SlotTaken {
        /// ID of the environment. For instances, the name of their runner.
        environment: String,
        /// Number of the slot.
        slot: u32,
    },
}

impl ExecutorError {
    pub(crate) fn unreachable(location: impl Into<String>, message: impl ToString) -> Self {
        Unreachable { location: location.into(), message: message.to_string() }.into()
    }
}

impl From<ExecutorError> for AgentError {
    fn from(error: ExecutorError) -> Self {
        Self::NotReached(error.into())
    }
}
