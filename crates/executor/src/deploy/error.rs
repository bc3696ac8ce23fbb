//! Errors from opening a session with a machine, deploying the agent, or running a command.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use muster_fleeting::model::Platform;
use muster_remote::RunError;

/// Error from opening a session with a machine, deploying the agent, or running a command. A retry may succeed.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// There is no session with an instance or its virtual machine. Contains the reason.
    #[error("{0}")]
    NoSession(String),
    /// The machine cannot be dialed.
    #[error("instance {machine}")]
    Dial {
        /// Name of the machine.
        machine: String,
        /// Cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The SSH executor cannot open a session. Contains its error.
    #[error(transparent)]
    Session(Box<dyn std::error::Error + Send + Sync>),
    /// The stated platform of an instance has no agent.
    #[error(
        "no agent for instance {machine}, whose platform is {platform}; correct os and arch in connector_config, or install the agent for this platform"
    )]
    UnsupportedInstance {
        /// Name of the instance.
        machine: String,
        /// Platform according to the configuration or the plugin.
        platform: Platform,
        /// Reason why there is no agent.
        source: NoAgentError,
    },
    /// The machine reports a platform that has no agent.
    #[error("no agent for the machine's platform {platform}")]
    UnsupportedPlatform {
        /// Platform that the machine reports.
        platform: Platform,
        /// Reason why there is no agent.
        source: NoAgentError,
    },
    /// The platform has no agent.
    #[error(transparent)]
    NoAgent(#[from] NoAgentError),
    /// The agent's executable cannot be read.
    #[error("failed to read the agent's executable {}", path.display())]
    Executable {
        /// Path of the executable.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A command cannot be run on the machine.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The shell did not answer in time.
    #[error("no answer from the machine's shell within {} s", .0.as_secs())]
    NoAnswer(Duration),
    /// The shell exited without an answer. Contains its last line, or its requirements if it printed nothing.
    #[error("the machine's shell exited without an answer{}", suffix(.0))]
    ShellExited(String),
    /// The shell printed too much output instead of an answer. Contains the last line unless it is too long.
    #[error("the machine's shell printed too much output instead of an answer{}", suffix(.0))]
    TooMuchOutput(String),
    /// The agent cannot be reached on the machine. Contains the message of the relay, or its unexpected answer.
    #[error("{0}")]
    Relay(String),
    /// The executable was not sent in time.
    #[error("the agent's executable was not sent within {} s", .0.as_secs())]
    TransferTimeout(Duration),
    /// The executable was not installed. Contains the reason, with the output of the machine.
    #[error("failed to send the agent's executable: {0}")]
    Transfer(String),
    /// The executable was installed, but cannot be run.
    #[error(
        "the agent's executable was sent, but cannot be found or executed there; check that the home directory on the \
         machine is persistent and not mounted noexec"
    )]
    NotExecutable,
    /// The versions of the agent on the machine and the manager differ.
    #[error(
        "the agent for {platform} has version {agent}, but the manager has version {manager}; install the agent with the manager's version"
    )]
    Version {
        /// Platform of the machine.
        platform: Platform,
        /// Version of the agent.
        agent: String,
        /// Version of the manager.
        manager: &'static str,
    },
    /// A command on the machine failed.
    #[error("the command exited with {status}{}", suffix(stderr))]
    Command {
        /// Exit status or signal.
        status: String,
        /// End of the standard error output, in one line.
        stderr: String,
    },
}

impl DeployError {
    pub(crate) fn dial(machine: &str, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Dial { machine: machine.to_owned(), source: Box::new(source) }
    }
}

/// Reason why there is no agent for a platform.
#[derive(Debug, thiserror::Error)]
pub enum NoAgentError {
    /// The agent runs on Linux only.
    #[error("the agent is for Linux only; use Linux machines")]
    NotLinux,
    /// The agent's file cannot be read.
    #[error("failed to read the agent's executable {}; install version {version} there", path.display())]
    Missing {
        /// Expected path of the agent.
        path: PathBuf,
        /// Expected version of the agent.
        version: &'static str,
        /// Cause.
        source: io::Error,
    },
}

/// Returns the line after a colon, or an empty text if the line is empty.
fn suffix(line: &str) -> String {
    if line.trim().is_empty() { String::new() } else { format!(": {}", line.trim()) }
}
