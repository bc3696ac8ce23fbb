//! The words that host and plugin share.

use std::fmt;
use std::time::Duration;

pub use crate::platform::Platform;

/// An instance's name at its provider: opaque text, unique in its group. Real ones hold `/` and `:`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(String);

impl InstanceId {
    /// An id, as the provider has it.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for InstanceId {
    fn from(id: String) -> Self {
        Self(id)
    }
}

/// What the provider says of an instance (fleeting.md 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InstanceState {
    /// It exists and is not usable yet.
    Creating,
    /// It can be connected to, as far as the provider knows.
    Running,
    /// It is going away.
    Deleting,
    /// It is gone.
    Deleted,
    /// It never came up, or was lost.
    Timeout,
    /// It is being put to sleep.
    Suspending,
    /// It sleeps.
    Suspended,
    /// It is being woken.
    Resuming,
    /// A number that a newer protocol may know. It ends nothing.
    Unknown(i32),
}

impl InstanceState {
    /// From the protocol's number.
    #[must_use]
    pub fn from_number(number: i32) -> Self {
        match number {
            0 => Self::Creating,
            1 => Self::Running,
            2 => Self::Deleting,
            3 => Self::Deleted,
            4 => Self::Timeout,
            5 => Self::Suspending,
            6 => Self::Suspended,
            7 => Self::Resuming,
            other => Self::Unknown(other),
        }
    }

    /// The protocol's number.
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            Self::Creating => 0,
            Self::Running => 1,
            Self::Deleting => 2,
            Self::Deleted => 3,
            Self::Timeout => 4,
            Self::Suspending => 5,
            Self::Suspended => 6,
            Self::Resuming => 7,
            Self::Unknown(number) => number,
        }
    }

    /// Whether the instance is no more.
    #[must_use]
    pub fn is_gone(self) -> bool {
        matches!(self, Self::Deleted | Self::Timeout)
    }
}

impl fmt::Display for InstanceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Deleting => "deleting",
            Self::Deleted => "deleted",
            Self::Timeout => "timeout",
            Self::Suspending => "suspending",
            Self::Suspended => "suspended",
            Self::Resuming => "resuming",
            Self::Unknown(number) => return write!(f, "{number}"),
        })
    }
}

/// How to reach an instance. What the user sets wins; a plugin fills the rest.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectorConfig {
    /// Operating system, Go's word: `linux`, `windows`, `darwin`.
    pub os: String,
    /// Architecture, Go's word: `amd64`, `arm64`.
    pub arch: String,
    /// `ssh`, `winrm`, `winrm+https`; empty is the plugin's choice.
    pub protocol: String,
    /// Port; 0 is the protocol's own.
    pub protocol_port: u16,
    /// Who logs in.
    pub username: String,
    /// Password; empty: none.
    pub password: String,
    /// Bytes of a private key file; empty: none.
    pub key: Vec<u8>,
    /// The plugin must not make credentials of its own.
    pub use_static_credentials: bool,
    /// Between two signs of life on a connection.
    pub keepalive: Duration,
    /// For a connection to come up.
    pub timeout: Duration,
}

impl Default for ConnectorConfig {
    /// The protocol's defaults (fleeting.md 3.2).
    fn default() -> Self {
        Self {
            os: String::new(),
            arch: String::new(),
            protocol: String::new(),
            protocol_port: 0,
            username: String::new(),
            password: String::new(),
            key: Vec::new(),
            use_static_credentials: false,
            keepalive: Duration::from_secs(30),
            timeout: Duration::from_secs(600),
        }
    }
}

impl fmt::Debug for ConnectorConfig {
    /// Without the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = |set: bool| if set { "[set]" } else { "[none]" };
        f.debug_struct("ConnectorConfig")
            .field("os", &self.os)
            .field("arch", &self.arch)
            .field("protocol", &self.protocol)
            .field("protocol_port", &self.protocol_port)
            .field("username", &self.username)
            .field("password", &hidden(!self.password.is_empty()))
            .field("key", &hidden(!self.key.is_empty()))
            .field("use_static_credentials", &self.use_static_credentials)
            .field("keepalive", &self.keepalive)
            .field("timeout", &self.timeout)
            .finish()
    }
}

/// Why a connector's settings cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectorConfigError {
    /// An unknown protocol.
    #[error("connector_config: protocol {found:?} is not known; use ssh, winrm or winrm+https, or leave it out")]
    Protocol {
        /// What stands there.
        found: String,
    },
    /// A port beyond 65535, or below 0.
    #[error("connector_config: protocol_port {found} is no port; use 1 to 65535, or 0 for the protocol's own")]
    Port {
        /// What stands there.
        found: i64,
    },
    /// Static credentials of nobody.
    #[error("connector_config: use_static_credentials needs a username")]
    NoUsername,
}

impl ConnectorConfig {
    /// Whether it can be given to a plugin (fleeting.md 3.2).
    ///
    /// # Errors
    /// [`ConnectorConfigError`].
    pub fn check(&self) -> Result<(), ConnectorConfigError> {
        if !matches!(self.protocol.as_str(), "" | "ssh" | "winrm" | "winrm+https") {
            return Err(ConnectorConfigError::Protocol { found: self.protocol.clone() });
        }
        if self.use_static_credentials && self.username.is_empty() {
            return Err(ConnectorConfigError::NoUsername);
        }
        Ok(())
    }
}

/// How to reach one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectInfo {
    /// Protocol and credentials.
    pub connector: ConnectorConfig,
    /// Address from the outside; may be empty.
    pub external_addr: String,
    /// Address from the instance's own network; may be empty.
    pub internal_addr: String,
    /// Seconds since 1970 after which the credentials no longer hold.
    pub expires: Option<i64>,
}

/// What a plugin says of its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupInfo {
    /// The group's name for people: `<provider>/<place>/<name>`.
    pub id: String,
    /// The most instances that the group can have; 0: the plugin does not say.
    pub max_size: u32,
    /// The plugin's version.
    pub version: String,
    /// What it was built from.
    pub build_info: String,
    /// It can put instances to sleep.
    pub can_suspend: bool,
    /// What it offers beside the protocol.
    pub features: Features,
}

/// Which parts of the extension a plugin has. None is the default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Features {
    /// Prices and stock.
    pub offers: bool,
    /// Interruptions and stock-outs, as they arise.
    pub notices: bool,
    /// Resource use of each instance.
    pub resources: bool,
    /// Host keys of SSH servers.
    pub host_keys: bool,
    /// Hooks around jobs.
    pub hooks: bool,
}
