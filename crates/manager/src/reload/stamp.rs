//! Detects cheaply whether a file may have changed, and then whether its content has changed.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sha2::Digest as _;

/// SHA-256 of the content.
pub(super) type Digest = [u8; 32];

/// Metadata of a file, or of the file behind a link.
///
/// Equal stamps mean equal content: a write changes the times, and a replacement changes the inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// Returns whether the modification time is later. gitlab-runner detects a change only by this time.
    pub(super) fn is_newer_than(self, old: Self) -> bool {
        self.modified > old.modified
    }

    /// `None` means that the file does not exist or cannot be accessed.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// Returns the digest of the content. `None` means that the content cannot be read.
///
/// `None` differs from the digest of an earlier content. The caller then reads the file, and so reports the error.
pub(super) fn digest(path: &Path) -> Option<Digest> {
    let metadata = std::fs::metadata(path).ok()?;
    // The reader rejects a file of this size.
    if !metadata.is_file() || metadata.len() > muster_config::MAX_FILE_BYTES as u64 {
        return None;
    }
    std::fs::read(path).ok().map(|content| sha2::Sha256::digest(content).into())
}
