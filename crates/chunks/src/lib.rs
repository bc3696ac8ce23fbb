//! Stores the files of caches as chunks that caches share.
//!
//! ```text
//! files --divided by content--> new chunks, compressed --> packs          (objects, never changed)
//!    `---------------------------------------------------> index          (object, never changed)
//!                                                            `----------> reference of the key, written last and replaced atomically
//! ```
//!
//! A chunk is named by the hash of its content, and is stored in a pack. An index describes all files of a cache and names the packs that
//! contain their chunks, including packs of earlier saves. The reference of a cache key names its index, with the hash of the index. So every
//! byte that is restored was compared with a hash, and damage is found before a file gets its content.
//!
//! Objects are in a directory ([`Store`]), or in an object store with the same names. Each protection level has separate objects. A chunk of
//! one level is never used at another.
//!
//! The content of references and indexes is not trusted: numbers are limited ([`muster_archive::Limits`]), and files are written by
//! [`muster_archive`], which never writes outside of the target directory.

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

pub use gc::{Collection, Listed, MAX_MARKS_BYTES, Marks, Sweep};
pub use index::{Index, MAX_INDEX_BYTES};
pub use known::Known;
pub use reference::{MAX_REFERENCE_BYTES, Object, Reference};
pub use restore::{Restore, RestoreError, Restored, missing_chunks};
pub use save::{Save, SaveError, Saved};
pub use spool::{Download, Spool, downloads};
pub use store::{Store, directories};

/// Hash of the content of a chunk (BLAKE3).
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
    /// Another process is deleting unused objects of the store.
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
