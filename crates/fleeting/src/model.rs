//! The types that host and SDK share.

use std::fmt;
use std::time::Duration;

pub use crate::platform::Platform;

/// An instance's ID at its provider: opaque text, unique in its group. Real IDs contain `/` and `:`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(String);

impl InstanceId {
    /// Creates an ID from the provider's text.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// Returns the ID as text.
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

/// State of an instance at its provider (docs/spec/fleeting.md, section 2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InstanceState {
    /// The instance exists, but cannot be used yet.
    Creating,
    /// The instance accepts connections, as far as the provider knows.
    Running,
    /// The instance is being deleted.
    Deleting,
    /// The instance was deleted.
    Deleted,
    /// The instance never started, or was lost.
    Timeout,
    /// The instance is being suspended.
    Suspending,
    /// The instance is suspended.
    Suspended,
    /// The instance is being resumed.
    Resuming,
    /// A number that this version does not know. The instance still exists.
    Unknown(i32),
}

impl InstanceState {
    /// Converts from the protocol's number.
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

    /// Returns the protocol's number.
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

    /// Returns whether the instance no longer exists.
    #[must_use]
    pub fn is_deleted(self) -> bool {
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

/// How to connect to an instance. The user's values take precedence; the plugin fills in empty values.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectorConfig {
    /// Operating system, named as in Go, such as `linux`, `windows` or `darwin`.
    pub os: String,
    /// Architecture, named as in Go, such as `amd64` or `arm64`.
    pub arch: String,
    /// `ssh`, `winrm` or `winrm+https`. Empty lets the plugin choose.
    pub protocol: String,
    /// Port. 0 uses the protocol's default.
    pub protocol_port: u16,
    /// Name of the user who logs in.
    pub username: String,
    /// Password. Empty means no password.
    pub password: String,
    /// Content of a private key file. Empty means no key.
    pub key: Vec<u8>,
    /// Whether the plugin must not create credentials.
    pub use_static_credentials: bool,
    /// Time between keep-alive messages on a connection. Defaults to 30 seconds.
    pub keepalive: Duration,
    /// Maximum time to establish a connection. Defaults to 10 minutes.
    pub timeout: Duration,
}

impl Default for ConnectorConfig {
    /// Returns the protocol's defaults (docs/spec/fleeting.md, section 3.2).
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
    /// Omits the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = |is_set: bool| if is_set { "[set]" } else { "[none]" };
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

/// Reason why `connector_config` is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectorConfigError {
    /// The protocol is unknown.
    #[error("connector_config: unknown protocol {found:?}; use ssh, winrm or winrm+https, or omit it")]
    Protocol {
        /// The configured value.
        found: String,
    },
    /// The port is not between 0 and 65535.
    #[error(
        "connector_config: invalid protocol_port {found}; use a port from 1 to 65535, or 0 for the protocol's default"
    )]
    Port {
        /// The configured value.
        found: i64,
    },
    /// `use_static_credentials` is set without a username.
    #[error("connector_config: use_static_credentials requires a username")]
    NoUsername,
}

impl ConnectorConfig {
    /// Checks the settings before they are sent to a plugin (docs/spec/fleeting.md, section 3.2).
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

/// How to connect to one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectInfo {
    /// Protocol and credentials.
    pub connector: ConnectorConfig,
    /// Address outside of the instance's network. May be empty.
    pub external_addr: String,
    /// Address in the instance's network. May be empty.
    pub internal_addr: String,
    /// Unix time in seconds when the credentials expire. `None` means never.
    pub expires: Option<i64>,
}

/// Properties of a group that its plugin reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupInfo {
    /// Human-readable ID of the group: `<provider>/<location>/<name>`.
    pub id: String,
    /// Maximum number of instances in the group. 0 means that the plugin does not report it.
    pub max_size: u32,
    /// Version of the plugin.
    pub version: String,
    /// Source revision and build date of the plugin.
    pub build_info: String,
    /// Whether the plugin can suspend and resume instances.
    pub can_suspend: bool,
    /// Parts of the protocol extension that the plugin has.
    pub features: Features,
}

/// Parts of the protocol extension that a plugin has. Defaults to none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Features {
    /// Offers with prices and availability.
    pub offers: bool,
    /// Notices of interruptions and stock changes.
    pub notices: bool,
    /// Resource usage of each instance.
    pub resource_usage: bool,
    /// Host keys of the instances' SSH servers.
    pub host_keys: bool,
    /// Hooks before and after jobs.
    pub hooks: bool,
}
