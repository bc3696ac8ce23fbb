//! Why a command about plugins failed.

use std::path::PathBuf;

use muster_fleeting::install::{InstallError, ResolveError};
use muster_oci::{CredentialsError, ReferenceError, RegistryError};

/// Why a command failed. What went wrong with one of several plugins is told at once, and is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PluginError {
    #[error(transparent)]
    Install(#[from] InstallError),
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error("{0}")]
    Config(String),
    #[error("the password cannot be read from standard input")]
    Password(#[source] std::io::Error),
    #[error("{}: it is there already; nothing was written", .0.display())]
    Exists(PathBuf),
    #[error("{}: there is no Cargo.toml; name the folder of the crate muster-fleeting", .0.display())]
    NoSdk(PathBuf),
    #[error("{}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Words(&'static str),
}
