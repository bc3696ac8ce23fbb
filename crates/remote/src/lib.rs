//! A session with a machine: run a command, or open a stream to an address there.
//!
//! [`Session`] is the port, with an adapter for each protocol: [`ssh`], `winrm` (feature of that name) for Windows machines
//! that have no SSH server, and [`local`] for this host. [`dial`] chooses the adapter by the protocol of a [`Target`].
//! `sys` has what differs between Unix and Windows.

mod hosts;
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

pub use hosts::KnownHosts;
pub use output::Tail;
pub use sys::ProcessGroup;
pub use target::Target;

/// How a remote command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// With a status; 0 is success.
    Code(u32),
    /// By a signal, without the `SIG`.
    Signal(String),
}

/// What a command that ran to its end left.
#[derive(Debug)]
pub struct Outcome {
    /// How it ended.
    pub exit: Exit,
    /// The end of its stderr, where nobody took it.
    pub stderr: Tail,
}

/// Bytes both ways.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A command to run.
pub struct Run<'a> {
    /// One line, as the remote shell takes it.
    pub command: &'a str,
    /// Its input; `None`: none.
    pub stdin: Option<&'a mut (dyn AsyncRead + Send + Unpin)>,
    /// Its output; `None`: thrown away.
    pub stdout: Option<&'a mut (dyn AsyncWrite + Send + Unpin)>,
    /// Its errors; `None`: the last of them are kept in [`Outcome::stderr`].
    pub stderr: Option<&'a mut (dyn AsyncWrite + Send + Unpin)>,
    /// The command gets SIGTERM when this is cancelled, SIGKILL ten seconds later, and then is waited for no more.
    pub stop: CancellationToken,
}

impl<'a> Run<'a> {
    /// A command with no input, whose output nobody wants.
    #[must_use]
    pub fn new(command: &'a str) -> Self {
        Self { command, stdin: None, stdout: None, stderr: None, stop: CancellationToken::new() }
    }
}

/// Reason why a connection was not made.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The machine refused the credentials. A further try would be refused too.
    #[error("{user}@{address} refused the {method}; check the credentials, and that the machine accepts them")]
    Auth {
        /// User name that was sent.
        user: String,
        /// Address that was dialed.
        address: String,
        /// `key`, `certificate` or `password`.
        method: &'static str,
    },
    /// The password would be sent in clear text.
    #[error(
        "protocol = \"winrm\" would send the password of {user} in clear text; use \"winrm+https\", or set \
         allow_unencrypted = true if only trusted people can read that network"
    )]
    Unencrypted {
        /// User name that would be sent.
        user: String,
    },
    /// The private key cannot be read.
    #[error("the private key cannot be used: {cause}; it must be unencrypted PEM or OpenSSH")]
    Key {
        /// What the parser of the key reported.
        cause: String,
    },
    /// Another machine answers than the pinned one, or than the one of the first connection.
    #[error(
        "the host key of {address} is {found}, and should be {known}: another machine answers there; nothing was sent to it"
    )]
    HostKey {
        /// Address that was dialed.
        address: String,
        /// Fingerprint of the key that the machine showed.
        found: String,
        /// Fingerprints that were expected.
        known: String,
    },
    /// The credentials have expired meanwhile.
    #[error("the credentials have expired; the machine needs new ones")]
    Expired,
    /// The machine did not answer in time.
    #[error("no connection to {address} within {} s ({tries} tries): {cause}", limit.as_secs())]
    Unreachable {
        /// Address that was dialed.
        address: String,
        /// Time that all tries had together.
        limit: Duration,
        /// Number of tries.
        tries: u32,
        /// Why the last try failed.
        cause: String,
    },
    /// This program does not know the protocol.
    #[error("protocol {protocol:?} is not known to this program; use ssh")]
    Protocol {
        /// Name of the protocol.
        protocol: String,
    },
}

/// Why a command or a stream has no end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The connection broke. How the command ended is not known: there is no exit status (C6).
    #[error("the connection was lost: {cause}; whether the command has ended, and how, is not known")]
    Lost {
        /// What is known.
        cause: String,
    },
    /// The other side did not want to.
    #[error("{what} was refused: {cause}")]
    Refused {
        /// What was asked.
        what: String,
        /// Why.
        cause: String,
    },
    /// This side's end of a stream broke.
    #[error("{what}")]
    Local {
        /// Which.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A connection to a machine.
#[async_trait]
pub trait Session: Send + Sync {
    /// Runs a command to its end.
    ///
    /// # Errors
    /// [`RunError`]. A command that fails is no error: see [`Outcome::exit`].
    async fn run(&self, run: Run<'_>) -> Result<Outcome, RunError>;

    /// A stream to an address as the machine sees it: `tcp` with `host:port`, or `unix` with a path.
    ///
    /// # Errors
    /// [`RunError::Refused`] where nobody answers.
    async fn dial(&self, network: &str, address: &str) -> Result<Box<dyn Stream>, RunError>;

    /// The stdin and stdout of a remote command as one stream.
    ///
    /// # Errors
    /// [`RunError::Refused`].
    async fn dial_run(&self, command: &str) -> Result<Box<dyn Stream>, RunError>;

    /// Ends the connection.
    async fn close(&self);
}

/// Connects to a machine within the target's timeout. A machine that does not answer yet is tried again with growing pauses;
/// one that refuses the credentials is not.
///
/// # Errors
/// [`DialError`].
pub async fn dial(target: &Target, hosts: &KnownHosts) -> Result<Box<dyn Session>, DialError> {
    match target.protocol.as_str() {
        "" | "ssh" => Ok(Box::new(ssh::connect(target, hosts).await?)),
        #[cfg(feature = "winrm")]
        "winrm" | "winrm+https" => Ok(Box::new(winrm::connect(target, hosts).await?)),
        other => Err(DialError::Protocol { protocol: other.to_owned() }),
    }
}

/// [`dial`] for a machine that has just been made, and that nobody was logged in to. Its SSH server may answer before the machine
/// knows the user's key, or before it has made its own: refused credentials, and another host key than the first one (not than
/// one that was pinned), are tried again for `grace`.
///
/// # Errors
/// [`DialError`]; [`DialError::Expired`] if the credentials have expired meanwhile.
pub async fn dial_new(target: &Target, hosts: &KnownHosts, grace: Duration) -> Result<Box<dyn Session>, DialError> {
    retry::retry_new(target, hosts, grace, || dial(target, hosts)).await
}

/// Connects, as [`dial`] does, to a machine that only the machine of another session can reach: each stream is one of that
/// session. By SSH only. Credentials that are refused are tried again for `grace`, as [`dial_new`] does.
///
/// # Errors
/// [`DialError`].
pub async fn dial_through(
    via: &dyn Session,
    target: &Target,
    hosts: &KnownHosts,
    grace: Duration,
) -> Result<Box<dyn Session>, DialError> {
    retry::retry_new(target, hosts, grace, || dial_through_once(via, target, hosts)).await
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
