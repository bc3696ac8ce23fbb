//! Why a plugin is not installed.

use std::path::PathBuf;

use muster_oci::{CredentialsError, LockFileError, Reference, RegistryError, UnpackError};

/// Why a plugin is not installed, or not removed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The registry.
    #[error("plugin {reference}")]
    Registry {
        /// What was asked for.
        reference: String,
        /// Why not.
        source: RegistryError,
    },
    /// The registry refuses access.
    #[error("plugin {reference}: log in with: muster plugin login {}", reference.split('/').next().unwrap_or_default())]
    Refused {
        /// The plugin, which begins with its registry.
        reference: String,
        /// Reason of the registry.
        source: RegistryError,
    },
    /// The credentials for it.
    #[error("the credentials for {registry}")]
    Credentials {
        /// The registry.
        registry: String,
        /// Why they cannot be used.
        source: CredentialsError,
    },
    /// No version fits.
    #[error("plugin {reference}: no version fits; {there}")]
    NoVersion {
        /// What was asked for.
        reference: String,
        /// What versions there are.
        there: String,
    },
    /// No entry for this system.
    #[error("plugin {reference}: not made for {host}; it is there for {there}")]
    NoPlatform {
        /// What was asked for.
        reference: String,
        /// This system.
        host: String,
        /// The others.
        there: String,
    },
    /// It is an image, and no plugin's.
    #[error("plugin {reference}: {what}; is it an image of a fleeting plugin?")]
    NoPlugin {
        /// What was asked for.
        reference: String,
        /// What is missing.
        what: String,
    },
    /// The same version was something else before.
    #[error(
        "plugin {reference}: version {version} has the digest {found} now, and {locked} when it was installed first \
         ({}): somebody has published other content under the same version. Nothing was changed. If that is right, say \
         --accept-changed", lock_file.display()
    )]
    Changed {
        /// What was asked for.
        reference: String,
        /// The version.
        version: String,
        /// The digest before.
        locked: String,
        /// The digest now.
        found: String,
        /// The file that remembers.
        lock_file: PathBuf,
    },
    /// Its archive.
    #[error("plugin {reference}: its archive is refused, nothing was installed")]
    Unpack {
        /// What was asked for.
        reference: String,
        /// Why.
        source: UnpackError,
    },
    /// The lock file.
    #[error(transparent)]
    LockFile(#[from] LockFileError),
    /// Another process.
    #[error("{}: another process has been installing or removing plugins for {seconds} s; wait for it, or end it", path.display())]
    Busy {
        /// The file that it holds.
        path: PathBuf,
        /// How long this one waited.
        seconds: u64,
    },
    /// The folder.
    #[error("{}: cannot be {what}; set FLEETING_PLUGIN_PATH to a folder that can be written", path.display())]
    Folder {
        /// What file or folder.
        path: PathBuf,
        /// What was to be done.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is none.
    #[error("there is no folder for plugins; set FLEETING_PLUGIN_PATH, or HOME")]
    NoFolder,
    /// To be removed, and not there.
    #[error("plugin {reference}: no such version is installed in {}", folder.display())]
    NotInstalled {
        /// What was asked for.
        reference: String,
        /// Where it was looked for.
        folder: PathBuf,
    },
}

impl InstallError {
    /// The error of a plugin's registry.
    pub(super) fn of_registry(reference: &Reference, source: RegistryError) -> Self {
        let reference = reference.to_string();
        match source {
            RegistryError::Refused { .. } => Self::Refused { reference, source },
            source => Self::Registry { reference, source },
        }
    }
}
