//! Errors of the coordinator.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_runner_api::service::ServiceError;

use crate::schedule::{GraphError, RejectedEvent};

/// Reason why a coordinator could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The state directory cannot be created or written.
    #[error(
        "failed to write to the state directory `{}`: {source}; pipelines store their jobs and logs there, so choose a writable directory",
        dir.display()
    )]
    Unwritable {
        /// The state directory.
        dir: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The disk is full.
    #[error("no space left for the state directory `{}`; free some space, or choose a directory on another disk", dir.display())]
    DiskFull {
        /// The state directory.
        dir: PathBuf,
    },
    /// The directory contains no run.
    #[error("`{}` contains no run: the file coordinator.db is missing", dir.display())]
    Missing {
        /// The state directory.
        dir: PathBuf,
    },
    /// The database was written by a newer version.
    #[error(
        "the database `{}` has version {found}, but this program supports versions up to {known}; use the program that wrote it, or a newer one",
        path.display()
    )]
    Newer {
        /// Path of the database.
        path: PathBuf,
        /// Version of the database.
        found: i64,
        /// Newest version that this program supports.
        known: i64,
    },
    /// A coordinator in memory could not be started.
    #[error("failed to start a coordinator in memory: {0}")]
    InMemory(#[source] StoreError),
    /// The database is damaged or cannot be read.
    #[error("failed to open the database `{}`", path.display())]
    Database {
        /// Path of the database.
        path: PathBuf,
        /// Error of the store.
        source: StoreError,
    },
}

/// Reason why the store failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The disk is full. Unwritten changes stay in memory and are written later.
    #[error("no space left on the disk that holds the database")]
    Full,
    /// The store failed for another reason.
    #[error("the database failed: {0}")]
    Failed(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The store is closed, or was opened for reading only.
    #[error("the database is closed")]
    Closed,
    /// A stored value cannot be parsed.
    #[error("failed to parse {value} in the database: {reason}")]
    Damaged {
        /// Name of the value.
        value: String,
        /// Error of the parser.
        reason: String,
    },
}

/// Reason why a trace or the content of an artifact could not be accessed.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The disk is full.
    #[error("no space left for {object}: {source}")]
    Full {
        /// Name of the file or object that could not be written.
        object: String,
        /// Error of the system.
        source: io::Error,
    },
    /// A read or write failed.
    #[error("failed to access {object}: {source}")]
    Failed {
        /// Name of the file or object that could not be read or written.
        object: String,
        /// Error of the system.
        source: io::Error,
    },
}

impl BlobError {
    pub(crate) fn new(object: impl std::fmt::Display, source: io::Error) -> Self {
        let object = object.to_string();
        if is_full(&source) { Self::Full { object, source } } else { Self::Failed { object, source } }
    }
}

/// Reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// The pipeline, job or artifact does not exist.
    #[error("not found: {0}")]
    NotFound(String),
    /// The jobs of the pipeline cannot be scheduled.
    #[error(transparent)]
    Unschedulable(#[from] GraphError),
    /// The state of the pipeline or job does not allow the call.
    #[error(transparent)]
    Rejected(#[from] RejectedEvent),
    /// A bridge was started with variables.
    #[error("a bridge cannot be started with variables")]
    BridgeVariables,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A trace or an artifact could not be accessed.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// The coordinator is shut down.
    #[error("the coordinator is shut down")]
    Closed,
}

impl From<StoreError> for ServiceError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full => Self::StorageFull(error.to_string()),
            StoreError::Failed(_) | StoreError::Closed | StoreError::Damaged { .. } => {
                Self::Internal(error.to_string())
            }
        }
    }
}

impl From<BlobError> for ServiceError {
    fn from(error: BlobError) -> Self {
        match error {
            BlobError::Full { .. } => Self::StorageFull(error.to_string()),
            BlobError::Failed { .. } => Self::Internal(error.to_string()),
        }
    }
}

impl From<CoordinatorError> for ServiceError {
    fn from(error: CoordinatorError) -> Self {
        match error {
            CoordinatorError::NotFound(name) => Self::NotFound(name),
            CoordinatorError::Unschedulable(_) | CoordinatorError::Rejected(_) | CoordinatorError::BridgeVariables => {
                Self::BadRequest(error.to_string())
            }
            CoordinatorError::Store(store) => store.into(),
            CoordinatorError::Blob(blob) => blob.into(),
            CoordinatorError::Closed => Self::Internal(error.to_string()),
        }
    }
}

/// Returns whether an error means that the disk or the quota is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

pub(crate) fn unwritable(dir: &Path, source: io::Error) -> OpenError {
    if is_full(&source) {
        OpenError::DiskFull { dir: dir.to_owned() }
    } else {
        OpenError::Unwritable { dir: dir.to_owned(), source }
    }
}
