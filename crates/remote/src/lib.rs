//! Sessions with machines, to run commands and to open streams to addresses that the machine can reach.
//!
//! [`dial`] selects SSH or WinRM by the protocol of a [`Target`].

mod backoff;
mod hosts;
pub mod known_hosts_file;
#[cfg(unix)]
pub mod local;
mod output;
mod retry;
pub mod ssh;
mod sys;
mod target;
#[cfg(feature = "winrm")]
pub mod winrm;

use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

pub use backoff::Backoff;
pub use hosts::KnownHosts;
pub use known_hosts_file::{HostKey, KnownHostsFileError};
pub use output::Tail;
pub use sys::ProcessGroup;
pub use target::Target;

/// Time for a canceled command to end.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// How a remote command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// The command exited with this status. 0 means success.
    Code(u32),
    /// A signal ended the command. Its name has no prefix `SIG`.
    Signal(String),
}

/// Result of a command.
#[derive(Debug)]
pub struct CommandResult {
    /// How the command ended.
    pub exit: Exit,
    /// Last bytes of stderr, unless [`RemoteCommand::stderr`] was set.
    pub stderr: Tail,
}

/// A bidirectional stream of bytes.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A command to run on a machine.
pub struct RemoteCommand<'a> {
    /// Command line for the remote shell.
    pub command: &'a str,
    /// Standard input. `None` means empty.
    pub stdin: Option<&'a mut (dyn AsyncRead + Send + Unpin)>,
    /// Destination of stdout. `None` discards the data.
    pub stdout: Option<&'a mut (dyn AsyncWrite + Send + Unpin)>,
    /// Destination of stderr. `None` stores the last bytes in [`CommandResult::stderr`].
    pub stderr: Option<&'a mut (dyn AsyncWrite + Send + Unpin)>,
    /// Cancels the command with SIGTERM, and SIGKILL 10 seconds later.
    ///
    /// Over SSH, [`Session::run`] then returns even if the command still runs. Over WinRM, the server terminates the
    /// command, and the shell is deleted if the command still runs 10 seconds later.
    pub stop: CancellationToken,
}

impl<'a> RemoteCommand<'a> {
    /// Creates a command without input. Its stdout is discarded. [`CommandResult::stderr`] gets the end of its stderr.
    #[must_use]
    pub fn new(command: &'a str) -> Self {
        Self { command, stdin: None, stdout: None, stderr: None, stop: CancellationToken::new() }
    }
}

/// Reason why no connection was established.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The machine rejected the credentials.
    #[error("{user}@{address} rejected the {method}; check the credentials, and that the machine accepts them")]
    Auth {
        /// User name.
        user: String,
        /// Address of the machine.
        address: String,
        /// Kind of the credentials: `key`, `certificate` or `password`. For WinRM, this text also contains a
        /// hint about the machine's configuration.
        method: &'static str,
    },
    /// The protocol would send the password in clear text.
    #[error(
        "protocol = \"winrm\" would send the password of {user} in clear text; use \"winrm+https\", or set \
         allow_unencrypted = true if only trusted users can read the network traffic"
    )]
    Unencrypted {
        /// User name.
        user: String,
    },
    /// The private key is invalid.
    #[error("invalid private key: {cause}; use an unencrypted key in PEM or OpenSSH format")]
    Key {
        /// Error of the parser.
        cause: String,
    },
    /// The client for WinRM cannot be set up.
    #[error("failed to set up TLS for WinRM: {cause}")]
    Setup {
        /// Error of the library.
        cause: String,
    },
    /// The host key differs from the pinned or first key.
    #[error(
        "the host key of {address} is {found}, expected {known}; possibly another machine has this address now; no credentials were sent"
    )]
    HostKey {
        /// Address of the machine.
        address: String,
        /// Fingerprint of the machine's key.
        found: String,
        /// Expected fingerprints.
        known: String,
    },
    /// The credentials expired before the connection was established.
    #[error("the credentials have expired")]
    Expired,
    /// The machine did not respond in time.
    #[error("no connection to {address} within {} s (attempts: {tries}): {cause}", timeout.as_secs())]
    Unreachable {
        /// Address of the machine.
        address: String,
        /// Timeout of all attempts together.
        timeout: Duration,
        /// Number of attempts.
        tries: u32,
        /// Cause of the last failure.
        cause: String,
    },
    /// The protocol is not supported.
    #[error("unsupported protocol {protocol:?}; use ssh")]
    Protocol {
        /// Name of the protocol.
        protocol: String,
    },
}

/// Reason why a command or a stream did not end normally.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It is unknown whether and how the command ended (docs/spec/fleeting.md, case C6).
    #[error("the connection was lost: {cause}; it is unknown whether and how the command ended")]
    Lost {
        /// Cause of the loss.
        cause: String,
    },
    /// The machine refused the request.
    #[error("{request} was refused: {cause}")]
    Refused {
        /// The refused request, as a noun phrase.
        request: String,
        /// Reason for the refusal.
        cause: String,
    },
    /// A local stream or command failed.
    #[error("{operation}")]
    Local {
        /// The failed operation, such as `failed to write stdout`.
        operation: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

impl RunError {
    /// Returns the error for a command that still runs after [`STOP_GRACE`].
    fn not_ended_after_cancel() -> Self {
        let seconds = STOP_GRACE.as_secs();
        Self::Lost { cause: format!("the command did not end within {seconds} s after it was canceled") }
    }
}

/// A connection to a machine.
#[async_trait]
pub trait Session: Send + Sync {
    /// Runs a command and waits until it ends.
    ///
    /// # Errors
    /// [`RunError`]. A non-zero status is not an error: see [`CommandResult::exit`].
    async fn run(&self, command: RemoteCommand<'_>) -> Result<CommandResult, RunError>;

    /// Opens a stream to an address that the machine can reach: `tcp` with `host:port`, or `unix` with a path.
    ///
    /// # Errors
    /// [`RunError`]. [`RunError::Refused`] also means that the session does not support such streams.
    async fn dial(&self, network: &str, address: &str) -> Result<Box<dyn Stream>, RunError>;

    /// Starts a remote command, and returns its stdin and stdout as one stream.
    ///
    /// # Errors
    /// [`RunError`] if the command cannot be started. If this is found only after this call has returned, the stream
    /// ends instead.
    async fn dial_command(&self, command: &str) -> Result<Box<dyn Stream>, RunError>;

    /// Closes the connection.
    async fn close(&self);
}

/// Connects to a machine. Retries within the target's timeout.
///
/// # Errors
/// [`DialError`]. Permanent errors, such as rejected credentials, are not retried.
pub async fn dial(target: &Target, hosts: &KnownHosts) -> Result<Box<dyn Session>, DialError> {
    match target.protocol.as_str() {
        "" | "ssh" => Ok(Box::new(ssh::connect(target, hosts).await?)),
        #[cfg(feature = "winrm")]
        "winrm" | "winrm+https" => Ok(Box::new(winrm::connect(target, hosts).await?)),
        other => Err(DialError::Protocol { protocol: other.to_owned() }),
    }
}

/// Like [`dial`], for a machine that was just created.
///
/// The SSH server may start before the user's key is installed, or before the final host key is generated. So rejected
/// credentials are retried for `grace`, and so is a host key that differs from the first key, unless keys are pinned.
///
/// # Errors
/// [`DialError`]. [`DialError::Expired`] means that the credentials expired before a connection was established.
pub async fn dial_new(target: &Target, hosts: &KnownHosts, grace: Duration) -> Result<Box<dyn Session>, DialError> {
    retry::retry_new_machine(target, hosts, grace, || dial(target, hosts)).await
}

/// Like [`dial_new`], through the session of another machine. Supports SSH only.
///
/// # Errors
/// [`DialError`].
pub async fn dial_through(
    via: &dyn Session,
    target: &Target,
    hosts: &KnownHosts,
    grace: Duration,
) -> Result<Box<dyn Session>, DialError> {
    retry::retry_new_machine(target, hosts, grace, || dial_through_once(via, target, hosts)).await
}

async fn dial_through_once(
    via: &dyn Session,
    target: &Target,
    hosts: &KnownHosts,
) -> Result<Box<dyn Session>, DialError> {
    match target.protocol.as_str() {
        "" | "ssh" => Ok(Box::new(ssh::connect_through(via, target, hosts).await?)),
        other => Err(DialError::Protocol { protocol: other.to_owned() }),
    }
}
