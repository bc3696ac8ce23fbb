//! Why an operation on the coordinator failed, and how storage errors become words a person can act on.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_runner_api::service::ServiceError;

/// Why a coordinator could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder cannot be created or written.
    #[error(
        "cannot write to the state folder `{}`: {source}; pipelines keep their jobs and logs there, so choose a folder that you may write to",
        dir.display()
    )]
    Unwritable {
        /// The folder.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no space left.
    #[error("no space left for the state folder `{}`: free some space, or choose a folder on another disk", dir.display())]
    DiskFull {
        /// The folder.
        dir: PathBuf,
    },
    /// The folder holds no run.
    #[error("there is no run in `{}`: the file coordinator.db is missing", dir.display())]
    Missing {
        /// The folder.
        dir: PathBuf,
    },
    /// The database was written by a newer version.
    #[error(
        "the database `{}` is of version {found}, and this program knows versions up to {known}: use the program that wrote it, or a newer one",
        path.display()
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version that this program knows.
        known: i64,
    },
    /// A coordinator in memory could not be started.
    #[error("failed to start a coordinator in memory: {0}")]
    InMemory(#[source] StoreError),
    /// The database is damaged or cannot be read.
    #[error("cannot open the database `{}`", path.display())]
    Database {
        /// The database.
        path: PathBuf,
        /// What SQLite said.
        source: StoreError,
    },
}

/// Why the database refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The disk is full; what was not written is kept in memory and written later.
    #[error("no space left on the disk that holds the database")]
    Full,
    /// The store failed.
    #[error("the database failed: {0}")]
    Failed(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The store is closed, or was opened for reading only.
    #[error("the database is closed")]
    Closed,
    /// A stored value cannot be read back.
    #[error("the database holds a value that cannot be read: {what}: {why}")]
    Damaged {
        /// Which value.
        what: String,
        /// Why not.
        why: String,
    },
}

/// Why the blobs refused.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// No space is left.
    #[error("no space left for {what}: {source}")]
    Full {
        /// What could not be written.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A read or write failed.
    #[error("failed to access {what}: {source}")]
    Failed {
        /// What could not be read or written.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl BlobError {
    /// The error of an access to `what`.
    pub(crate) fn new(what: impl std::fmt::Display, source: io::Error) -> Self {
        let what = what.to_string();
        if is_full(&source) { Self::Full { what, source } } else { Self::Failed { what, source } }
    }
}

/// Why a library call failed.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// There is no such pipeline or job.
    #[error("not found: {0}")]
    NotFound(String),
    /// The state does not allow it; the text says why.
    #[error("{0}")]
    Refused(String),
    /// The database refused; nothing was acknowledged.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A trace or an artifact could not be read.
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
            CoordinatorError::NotFound(what) => Self::NotFound(what),
            CoordinatorError::Refused(why) => Self::BadRequest(why),
            CoordinatorError::Store(store) => store.into(),
            CoordinatorError::Blob(blob) => blob.into(),
            CoordinatorError::Closed => Self::Internal(error.to_string()),
        }
    }
}

/// Whether the system says that there is no space (or quota) left.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The error of a folder or file that cannot be written.
pub(crate) fn unwritable(dir: &Path, source: io::Error) -> OpenError {
    if is_full(&source) {
        OpenError::DiskFull { dir: dir.to_owned() }
    } else {
        OpenError::Unwritable { dir: dir.to_owned(), source }
    }
}
