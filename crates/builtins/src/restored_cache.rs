//! Record of a restored cache, for the comparison of its files with the archive when the cache is saved.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Time at which the system changed a file last, in seconds and nanoseconds. Unlike the modification time, no program can set it.
pub(crate) type ChangeTime = (i64, i64);

/// Record of the restore of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// Inode number and modification (not change) time of the archive. They show whether another job has replaced it.
    pub(crate) archive: (u64, ChangeTime),
    /// Time at which the restore ended.
    pub(crate) at: ChangeTime,
}

impl Restored {
    /// Returns the record of a restore that has just ended.
    ///
    /// `archive` is the metadata of the open archive, and `directory` is on the file system of the restored files.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn now(archive: &Metadata, directory: &Path) -> io::Result<Self> {
        // The time must come from the file system's clock. This process's clock is finer, and can differ.
        let at = change_time(&tempfile::tempfile_in(directory)?.metadata()?);
        Ok(Self { archive: identity(archive), at })
    }

    /// Returns the time at which the restore ended, if `archive` is the archive that was restored.
    pub(crate) fn end_for(&self, archive: &Metadata) -> Option<ChangeTime> {
        (self.archive == identity(archive)).then_some(self.at)
    }
}

pub(crate) fn change_time(file: &Metadata) -> ChangeTime {
    (file.ctime(), file.ctime_nsec())
}

fn identity(archive: &Metadata) -> (u64, ChangeTime) {
    (archive.ino(), (archive.mtime(), archive.mtime_nsec()))
}
