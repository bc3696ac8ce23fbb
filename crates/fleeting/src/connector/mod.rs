//! Connectors: how commands and streams reach an instance.
//!
//! One port, [`Session`], and an adapter for each protocol: [`ssh`] for machines, `winrm` (feature of that name) for Windows
//! machines without an SSH server, [`local`] for this host.

mod address;
mod hosts;
#[cfg(unix)]
pub mod local;
mod output;
mod retry;
pub mod ssh;
#[cfg(feature = "winrm")]
pub mod winrm;

use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use crate::model::{ConnectInfo, InstanceId};

pub use address::{AddressError, address};
pub use hosts::KnownHosts;
pub use output::Tail;

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

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// There is no address to go to.
    #[error("instance {instance}: {source}")]
    Address {
        /// The instance.
        instance: InstanceId,
        /// Why.
        source: AddressError,
    },
    /// The credentials were refused. No use in trying again.
    #[error(
        "instance {instance}: {user}@{address} refused the {method}; check connector_config, and what the plugin put on the machine"
    )]
    Auth {
        /// The instance.
        instance: InstanceId,
        /// Who.
        user: String,
        /// Where.
        address: String,
        /// `key` or `password`.
        method: &'static str,
    },
    /// The password would be sent in clear text.
    #[error(
        "instance {instance}: protocol = \"winrm\" would send the password of {user} in clear text; use \"winrm+https\", or set \
         allow_unencrypted = true in connector_config if nobody else can read that network"
    )]
    Unencrypted {
        /// The instance.
        instance: InstanceId,
        /// Who would log in.
        user: String,
    },
    /// The private key cannot be read.
    #[error("instance {instance}: the private key cannot be used: {cause}; it must be unencrypted PEM or OpenSSH")]
    Key {
        /// The instance.
        instance: InstanceId,
        /// Why.
        cause: String,
    },
    /// Another machine answers than was pinned, or than at the first time.
    #[error(
        "instance {instance}: the host key of {address} is {found}, and should be {known}: another machine answers there; \
         nothing was sent to it"
    )]
    HostKey {
        /// The instance.
        instance: InstanceId,
        /// Where.
        address: String,
        /// Its key's fingerprint.
        found: String,
        /// Those that were pinned, or the one of the first time.
        known: String,
    },
    /// The credentials have expired meanwhile.
    #[error("instance {instance}: connect info expired; the plugin must be asked again")]
    Expired {
        /// The instance.
        instance: InstanceId,
    },
    /// It did not answer in time.
    #[error("instance {instance}: no connection to {address} within {} s ({tries} tries): {cause}", limit.as_secs())]
    Unreachable {
        /// The instance.
        instance: InstanceId,
        /// Where.
        address: String,
        /// The whole budget.
        limit: Duration,
        /// How often.
        tries: u32,
        /// Why the last one failed.
        cause: String,
    },
    /// A protocol that this host cannot speak.
    #[error("instance {instance}: protocol {protocol:?} is not known to this program; use ssh")]
    Protocol {
        /// The instance.
        instance: InstanceId,
        /// Which.
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

/// A connection to an instance.
#[async_trait]
pub trait Session: Send + Sync {
    /// Runs a command to its end.
    ///
    /// # Errors
    /// [`RunError`]. A command that fails is no error: see [`Outcome::exit`].
    async fn run(&self, run: Run<'_>) -> Result<Outcome, RunError>;

    /// A stream to an address as the instance sees it: `tcp` with `host:port`, or `unix` with a path.
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

/// Whom to reach.
#[derive(Debug, Clone)]
pub struct Target {
    /// The instance, for messages and for its host key.
    pub instance: InstanceId,
    /// What the plugin said.
    pub info: ConnectInfo,
    /// What the user says of the way there.
    pub options: DialOptions,
}

/// Settings of `connector_config` that the host uses itself, and that no plugin gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DialOptions {
    /// Uses the external address rather than the internal one.
    pub use_external_addr: bool,
    /// Sends credentials over plain HTTP, with the protocol `winrm`: whoever reads the network has them then.
    pub allow_unencrypted: bool,
}

/// Connects to an instance, within `connector.timeout` of its connect info. A machine that does not answer yet is tried
/// again with growing pauses; one that refuses the credentials is not.
///
/// # Errors
/// [`DialError`].
pub async fn dial(target: &Target, hosts: &KnownHosts) -> Result<Box<dyn Session>, DialError> {
    match target.info.connector.protocol.as_str() {
        "" | "ssh" => Ok(Box::new(ssh::connect(target, hosts).await?)),
        #[cfg(feature = "winrm")]
        "winrm" | "winrm+https" => Ok(Box::new(winrm::connect(target, hosts).await?)),
        other => Err(DialError::Protocol { instance: target.instance.clone(), protocol: other.to_owned() }),
    }
}

/// [`dial`] for a machine that has just been made, and that nobody was logged in to. Its SSH server may answer before the machine
/// knows the user's key, or before it has made its own: refused credentials, and another host key than the first one (not than
/// one that was pinned), are tried again for `grace`.
///
/// # Errors
/// [`DialError`]; [`DialError::Expired`] where the credentials have ended meanwhile: the plugin has others.
pub async fn dial_new(target: &Target, hosts: &KnownHosts, grace: Duration) -> Result<Box<dyn Session>, DialError> {
    retry::retry_new(target, hosts, grace, || dial(target, hosts)).await
}

/// Connects, as [`dial`] does, to a machine that only the instance of another session can reach: each stream is one of that
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
    match target.info.connector.protocol.as_str() {
        "" | "ssh" => Ok(Box::new(ssh::connect_through(via, target, hosts).await?)),
        other => Err(DialError::Protocol { instance: target.instance.clone(), protocol: other.to_owned() }),
    }
}
