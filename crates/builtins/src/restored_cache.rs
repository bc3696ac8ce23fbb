//! Record of a restored cache, for the later comparison of its files with the archive.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Time of the last change of a file, in seconds and nanoseconds. The system sets it, and programs cannot.
pub(crate) type ChangeTime = (i64, i64);

/// Record of the restore of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restored {
    /// Inode number of the archive, and its modification time in seconds and nanoseconds. They change if another job
    /// replaces the archive.
    pub(crate) archive: (u64, (i64, i64)),
    /// Time at which the restore ended.
    pub(crate) at: ChangeTime,
}

impl Restored {
    /// Returns the record of a restore that has just ended.
    ///
    /// `archive` is the metadata of the open archive. `directory` is on the file system of the restored files.
    pub(crate) fn now(archive: &Metadata, directory: &Path) -> io::Result<Self> {
        // The time must come from the file system, because this process's clock can differ.
        let at = change_time(&tempfile::tempfile_in(directory)?.metadata()?);
        Ok(Self { archive: identity(archive), at })
    }

    /// Returns the time at which the restore ended, if `archive` is the restored archive.
    pub(crate) fn end_for(&self, archive: &Metadata) -> Option<ChangeTime> {
        (self.archive == identity(archive)).then_some(self.at)
    }
}

pub(crate) fn change_time(file: &Metadata) -> ChangeTime {
    (file.ctime(), file.ctime_nsec())
}

fn identity(archive: &Metadata) -> (u64, (i64, i64)) {
    (archive.ino(), (archive.mtime(), archive.mtime_nsec()))
}
