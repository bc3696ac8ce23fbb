use std::path::PathBuf;

use muster_fleeting::install::{InstallError, ResolveError};
use muster_oci::{CredentialsError, ReferenceError, RegistryError};

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
    #[error("failed to read the password from standard input")]
    Password(#[source] std::io::Error),
    #[error("{}: the directory already exists; set --directory to a directory that does not exist yet", .0.display())]
    Exists(PathBuf),
    #[error("{}: no Cargo.toml in this directory; set --sdk to the directory of the crate muster-fleeting", .0.display())]
    NoSdk(PathBuf),
    #[error("failed to access {}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Usage(&'static str),
}
