//! Detects cheaply whether a file may have changed, and then whether its content has changed.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use muster_config::Problem;
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

/// Returns the digest of a file's text, or, if the read failed, its error message.
pub(super) fn digest(text: &Result<String, Box<Problem>>) -> Result<Digest, String> {
    match text {
        Ok(text) => Ok(sha2::Sha256::digest(text).into()),
        Err(problem) => Err(problem.message.clone()),
    }
}
