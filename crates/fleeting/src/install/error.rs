//! Errors of installing and removing plugins.

use std::path::PathBuf;

use muster_oci::{CredentialsError, LockFileError, Reference, RegistryError, UnpackError};

/// Reason why a plugin was not installed or not removed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A request to the registry failed.
    #[error("plugin {reference}: the request to the registry failed")]
    Registry {
        /// Reference of the plugin.
        reference: String,
        /// Error of the registry client.
        source: RegistryError,
    },
    /// The registry denies access.
    #[error("plugin {reference}: access denied; log in with: muster plugin login {}", reference.split('/').next().unwrap_or_default())]
    Refused {
        /// Reference of the plugin. It starts with the name of the registry.
        reference: String,
        /// Error of the registry client.
        source: RegistryError,
    },
    /// The credentials for the registry cannot be read.
    #[error("failed to get the credentials for {registry}")]
    Credentials {
        /// Name of the registry.
        registry: String,
        /// Reason why the credentials cannot be read.
        source: CredentialsError,
    },
    /// No version matches the constraint.
    #[error("plugin {reference}: no version matches; {available}")]
    NoVersion {
        /// Reference of the plugin.
        reference: String,
        /// Clause that lists the available versions, or that explains why none can be selected.
        available: String,
    },
    /// The plugin is not published for this platform.
    #[error("plugin {reference}: not available for {platform}, {available}")]
    NoPlatform {
        /// Reference of the plugin.
        reference: String,
        /// This platform.
        platform: String,
        /// Clause that lists platforms for which the plugin is published, or states that its index names none.
        available: String,
    },
    /// The image does not contain a plugin.
    #[error("plugin {reference}: {problem}; check that it is the image of a fleeting plugin")]
    NotAPlugin {
        /// Reference of the plugin.
        reference: String,
        /// Problem with the image.
        problem: String,
    },
    /// The version was installed before with another digest.
    #[error(
        "plugin {reference}: version {version} has the digest {found}, but had {locked} when it was first installed \
         ({}): other content was published under the same version. Nothing was changed; to accept the new content, \
         use --accept-new-digest", lock_file.display()
    )]
    Changed {
        /// Reference of the plugin.
        reference: String,
        /// The version.
        version: String,
        /// Digest in the lock file.
        locked: String,
        /// Digest at the registry.
        found: String,
        /// Path of the lock file.
        lock_file: PathBuf,
    },
    /// The archive of the plugin cannot be unpacked.
    #[error("plugin {reference}: failed to unpack its archive; nothing was installed")]
    Unpack {
        /// Reference of the plugin.
        reference: String,
        /// Reason why the archive was refused.
        source: UnpackError,
    },
    /// The lock file cannot be used.
    #[error(transparent)]
    LockFile(#[from] LockFileError),
    /// Another process held the lock until the timeout.
    #[error(
        "{}: locked by another process that installs or removes plugins; waited {seconds} s; run the command again after \
         that process has ended",
        path.display()
    )]
    Busy {
        /// Path of the locked file.
        path: PathBuf,
        /// Time in seconds that this process waited.
        seconds: u64,
    },
    /// A file or directory of the store cannot be changed.
    #[error("failed to {operation} {}; set FLEETING_PLUGIN_PATH to a writable directory", path.display())]
    Directory {
        /// Path of the file or directory.
        path: PathBuf,
        /// The failed operation: `create`, `lock`, `replace` or `delete`.
        operation: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// Neither `FLEETING_PLUGIN_PATH` nor `HOME` is set.
    #[error("no directory for plugins; set FLEETING_PLUGIN_PATH or HOME")]
    NoDirectory,
    /// The version to remove is not installed.
    #[error(
        "plugin {reference}: no such version is installed in {}; run `muster plugin list` to see the installed versions",
        directory.display()
    )]
    NotInstalled {
        /// Reference of the plugin.
        reference: String,
        /// Directory of the installed plugins.
        directory: PathBuf,
    },
}

impl InstallError {
    pub(super) fn from_registry(reference: &Reference, source: RegistryError) -> Self {
        let reference = reference.to_string();
        match source {
            RegistryError::Refused { .. } => Self::Refused { reference, source },
            source => Self::Registry { reference, source },
        }
    }
}
