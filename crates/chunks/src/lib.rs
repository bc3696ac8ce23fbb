//! Stores the files of caches as shared chunks.
//!
//! ```text
//! files --divided by content--> new chunks, compressed --> packs          (objects, never changed)
//!    `---------------------------------------------------> index          (object, never changed)
//!                                                            `----------> reference of the key, written last and replaced atomically
//! ```
//!
//! A chunk is named by the hash of its content, and is stored in a pack. An index describes the files of a cache, and
//! names the packs of their chunks, also packs of earlier saves. The reference of a cache key names its index with a
//! hash. So all restored bytes are verified, and damage is found before a file is written.
//!
//! Objects are in a directory ([`Store`]), or in an object store with the same names.
//!
//! References and indexes are not trusted: numbers are limited ([`muster_archive::Limits`]), and [`muster_archive`]
//! writes files only in the target directory.

mod cut;
mod gc;
mod index;
mod known;
mod reference;
mod restore;
mod save;
mod spool;
mod store;

use std::io;
use std::path::PathBuf;

pub use gc::{Collection, MAX_MARKS_BYTES, Marks, StoredObject, Sweep};
pub use index::{Index, MAX_INDEX_BYTES};
pub use known::Known;
pub use reference::{MAX_REFERENCE_BYTES, Object, Reference};
pub use restore::{Restore, RestoreError, Restored, missing_chunks};
pub use save::{Save, SaveError, Saved};
pub use spool::{Download, Spool, downloads};
pub use store::{Store, stores_below};

/// Hash of a chunk (BLAKE3).
pub type Hash = [u8; 32];

/// Error of a store.
#[derive(Debug, thiserror::Error)]
pub enum ChunkError {
    /// A reference or an index is invalid.
    #[error("the cache is damaged: {0}")]
    Damaged(String),
    /// A file cannot be read.
    #[error("failed to read `{}`", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// A file cannot be written.
    #[error("failed to write `{}`", .0.display())]
    Write(PathBuf, #[source] io::Error),
    /// Another process is deleting unused objects.
    #[error("another process is deleting unused objects below `{}`; try again when it has ended", .0.display())]
    Busy(PathBuf),
}

impl ChunkError {
    fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }
}

#[cfg(test)]
mod tests;
