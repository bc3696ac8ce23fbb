//! Errors of `muster step`.

use std::path::PathBuf;

use muster_files::FileError;
use muster_oci::{CredentialsError, PackError, RegistryError};
use muster_steps::definition::StepFileError;
use muster_steps::engine::StepError;
use muster_steps::failure::PortError;
use muster_steps::lock::LockError;
use muster_steps::remote::ReferenceError;

use crate::ci::CiError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StepCommandError {
    #[error(transparent)]
    Pipeline(#[from] CiError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error(transparent)]
    Registry(RegistryError),
    #[error(
        "access denied; run `docker login {registry}`, or set DOCKER_AUTH_CONFIG to credentials that may access the repository"
    )]
    Refused {
        /// Name of the registry.
        registry: String,
        source: RegistryError,
    },
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error(transparent)]
    Pack(#[from] PackError),
    #[error(transparent)]
    Fetch(#[from] PortError),
    #[error("job `{job}`: {source}")]
    Job { job: String, source: StepError },
    #[error("job `{job}`: {source}")]
    List { job: String, source: StepFileError },
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("{}: {source}", path.display())]
    StepFile { path: PathBuf, source: StepFileError },
    #[error("{} is not a valid entry of an index: {problem}; correct or remove the file", path.display())]
    Index { path: PathBuf, problem: String },
    #[error(transparent)]
    Read(#[from] FileError),
    #[error("failed to access {}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Usage(String),
}

impl From<RegistryError> for StepCommandError {
    fn from(error: RegistryError) -> Self {
        match error {
            RegistryError::Refused { ref registry, .. } => Self::Refused { registry: registry.clone(), source: error },
            error => Self::Registry(error),
        }
    }
}

impl StepCommandError {
    /// Returns a function that turns an I/O error into [`Self::File`] with this path.
    pub(super) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
