//! The port to where the books are kept.

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_trait::async_trait;

use crate::books::{Change, Row, RowKey};
use crate::history::Told;

/// Why the books cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refuses.
    #[error("books of the taskscaler: cannot {doing} {}", path.display())]
    File {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// They are of another program, or damaged.
    #[error("books of the taskscaler: {}, line {line} cannot be read; move the file away to start with empty books (its instances are foreign then)", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// They are there, and have nothing: they come into their place whole.
    #[error("books of the taskscaler: {} is empty, or cut in its first line: something else wrote there; put back what was in it, or move the file away to start with empty books (its instances are foreign then)", .0.display())]
    Cut(PathBuf),
    /// They are of a later version of this program.
    #[error("books of the taskscaler: {} has version {found}; this program knows {known}", path.display())]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The latest that is known.
        known: u32,
    },
    /// Another store.
    #[error("books of the taskscaler: {0}")]
    Other(String),
}

impl StoreError {
    /// Returns the message followed by those of its causes.
    pub(crate) fn with_causes(&self) -> String {
        let error: &dyn std::error::Error = self;
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        text
    }
}

/// Keeps rows. What [`Store::apply`] was told is there after the process was killed at any instruction that follows.
#[async_trait]
pub trait Store: Send + 'static {
    /// All rows.
    async fn load(&mut self) -> Result<Vec<(RowKey, Row)>, StoreError>;
    /// Makes all of these changes, or none. Where it failed, it is called again with what they, and later ones, come to.
    async fn apply(&mut self, changes: &[Change]) -> Result<(), StoreError>;
    /// Keeps decisions for the questions of a day. Nothing depends on it.
    async fn tell(&mut self, _decisions: &[Told]) {}
}

/// Books that end with the process. For tests, and where nothing is to be kept.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    rows: std::sync::Arc<std::sync::Mutex<BTreeMap<RowKey, Row>>>,
}

impl MemoryStore {
    fn rows(&self) -> std::sync::MutexGuard<'_, BTreeMap<RowKey, Row>> {
        self.rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn load(&mut self) -> Result<Vec<(RowKey, Row)>, StoreError> {
        Ok(self.rows().iter().map(|(key, row)| (key.clone(), row.clone())).collect())
    }

    async fn apply(&mut self, changes: &[Change]) -> Result<(), StoreError> {
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
