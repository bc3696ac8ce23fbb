//! Whether a file may have changed, cheaply; and whether it has.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sha2::Digest as _;

/// SHA-256 of the content.
pub(super) type Digest = [u8; 32];

/// What the system says of a file, links followed. Whatever changes a file's content changes this: a write its times,
/// a swap its number. Times may go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// Whether its time shows a change since `old`: GitLab Runner goes by nothing else.
    pub(super) fn is_newer_than(self, old: Self) -> bool {
        self.modified > old.modified
    }

    /// None where there is no such file, or it cannot be looked at.
    pub(super) fn of(path: &Path) -> Option<Self> {
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

/// The content's digest; none where it cannot be read: that too is a change, and reading it tells why.
pub(super) fn digest(path: &Path) -> Option<Digest> {
    let metadata = std::fs::metadata(path).ok()?;
    // What is too large is refused by whoever reads it, and not by its content.
    if !metadata.is_file() || metadata.len() > muster_config::FILE_SIZE_MAX as u64 {
        return None;
    }
    std::fs::read(path).ok().map(|content| sha2::Sha256::digest(content).into())
}
