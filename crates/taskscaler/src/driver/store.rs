//! Storage of the ledger.

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;

use crate::history::HistoryEntry;
use crate::ledger::{Change, Row, RowKey};

/// Errors from reading or writing the ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// A file operation failed.
    #[error("failed to {doing} scaler ledger {}", path.display())]
    File {
        /// The operation, as a verb.
        doing: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The file is damaged, or is not a ledger.
    #[error("failed to parse scaler ledger {} at line {line}; move the file aside to start with an empty ledger (existing instances then count as unmanaged)", path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// Line number, counted from 1.
        line: usize,
        /// Parse error.
        source: serde_json::Error,
    },
    /// The file has no complete first line. Only complete ledgers are renamed into place, so another program changed
    /// the file.
    #[error("scaler ledger {} is empty or truncated in its first line, because another program changed it; restore its content, or move the file aside to start with an empty ledger (existing instances then count as unmanaged)", .0.display())]
    Truncated(PathBuf),
    /// The file has another format version.
    #[error("scaler ledger {} has version {found}, but this version of Muster supports {supported}; start the version of Muster that wrote it, or move the file aside to start with an empty ledger (existing instances then count as unmanaged)", path.display())]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Version of the file.
        found: u32,
        /// Supported version.
        supported: u32,
    },
    /// The file exceeds the maximum size.
    #[error("scaler ledger {} has {size} bytes, which is more than a ledger can have; restore its content, or move the file aside to start with an empty ledger (existing instances then count as unmanaged)", path.display())]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// Size of the file in bytes.
        size: u64,
    },
    /// A row cannot be encoded. This is a bug.
    #[error("failed to encode a row of the scaler ledger")]
    Encode(#[source] serde_json::Error),
}

impl LedgerError {
    /// Returns the message followed by those of its causes.
    pub(crate) fn with_causes(&self) -> String {
        let error: &dyn std::error::Error = self;
        let chain = std::iter::successors(Some(error), |error| error.source());
        chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }
}

/// Durable storage for ledger rows. Applied changes survive a crash of the process.
#[async_trait]
pub trait LedgerStore: Send + 'static {
    /// Returns all rows.
    async fn load(&mut self) -> Result<Vec<(RowKey, Row)>, LedgerError>;
    /// Applies all changes or none. After an error, called again with these changes and any later ones.
    async fn apply(&mut self, changes: &[Change]) -> Result<(), LedgerError>;
    /// Appends decisions to the history. Errors are not reported, because only history is lost.
    async fn append_history(&mut self, _decisions: &[HistoryEntry]) {}
}

/// Ledger in memory, for tests.
#[derive(Debug, Clone, Default)]
pub struct MemoryLedger {
    rows: std::sync::Arc<std::sync::Mutex<BTreeMap<RowKey, Row>>>,
}

impl MemoryLedger {
    fn rows(&self) -> std::sync::MutexGuard<'_, BTreeMap<RowKey, Row>> {
        self.rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[async_trait]
impl LedgerStore for MemoryLedger {
    async fn load(&mut self) -> Result<Vec<(RowKey, Row)>, LedgerError> {
        Ok(self.rows().iter().map(|(key, row)| (key.clone(), row.clone())).collect())
    }

    async fn apply(&mut self, changes: &[Change]) -> Result<(), LedgerError> {
        let mut rows = self.rows();
        for change in changes {
            match &change.row {
                Some(row) => rows.insert(change.key.clone(), row.clone()),
                None => rows.remove(&change.key),
            };
        }
        Ok(())
    }
}
