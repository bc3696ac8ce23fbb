//! Reads entries of an archive, and writes them below an open directory, within limits.
//!
//! Neither the archive nor the directory is trusted: an earlier job may have created links in the directory. These
//! rules therefore apply:
//!
//! - Nothing outside of the directory is changed, even if another process replaces directories with links. Every
//!   operation is relative to an open directory, and resolved names never leave it.
//! - A symbolic link of the archive may have any target. Links are created after all other entries, and no entry is
//!   written below them.
//! - An existing link is followed only if it is relative and leads to a directory below the open one.
//! - Bytes, entries, implied directories, compression ratio and headers are limited ([`Limits`]).

mod limits;
mod meter;
mod name;
mod open;
mod parallel;
mod place;
mod read;
mod skipped;
mod tree;
mod unpack_zip;
mod workers;

pub use limits::{Exceeded, Limit, Limits};
pub use meter::Meter;
pub use open::{Root, create_root};
pub use parallel::write_files;
pub use place::{FileTarget, PutError, write_new};
pub use read::{Entry, EntryKind, Format, check_zip, path, read, read_at, read_zip_file};
pub use skipped::SkippedEntries;
pub use tree::Tree;
pub use workers::Workers;

use std::fs::File;
use std::io;

use cap_std::fs::Dir;

/// Reason why an archive was not unpacked completely.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The `stop` function returned true.
    #[error("stopped")]
    Stopped,
    /// The archive is damaged, or has another format.
    #[error("failed to read the archive")]
    Broken(#[source] io::Error),
    /// The name of an entry leaves the directory, is empty, or is not a valid file name.
    #[error(
        "entry `{name}` of the archive has no valid path below the target directory; the remaining entries were not unpacked"
    )]
    Outside {
        /// Name of the entry.
        name: String,
    },
    /// The entry has a kind that cannot be unpacked, such as a device.
    #[error(
        "entry `{name}` of the archive is a {kind}, which cannot be unpacked; the remaining entries were not unpacked"
    )]
    Kind {
        /// Name of the entry.
        name: String,
        /// Kind, such as `device`.
        kind: &'static str,
    },
    /// The archive exceeds a limit.
    #[error(transparent)]
    Limit(#[from] Exceeded),
    /// The system failed.
    #[error("failed to unpack `{name}`")]
    Io {
        /// Name of the entry.
        name: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The system started no thread.
    #[error("failed to start a thread that unpacks files; raise the limit on the number of processes of the user")]
    NoThread(#[source] io::Error),
}

/// Unpacks an archive into an open directory, and replaces existing files. Several threads unpack zip archives.
///
/// `stop` is called often ([`Meter::new`]). Returns entries that were skipped: below a link of the archive, in conflict
/// with a directory, or with a name or permissions that the file system rejects.
///
/// # Errors
/// [`UnpackError`]. Some entries may already be unpacked.
pub fn unpack(
    archive: &File,
    into: &Dir,
    limits: &Limits,
    format: Format,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<SkippedEntries, UnpackError> {
    if format == Format::Zip {
        return unpack_zip::unpack(archive, into, limits, stop);
    }
    let meter = Meter::new(*limits, stop);
    let mut tree = Tree::new(into, &meter);
    read(archive, format, &meter, &mut |entry, content| tree.add(entry, content))?;
    tree.finish()
}

#[cfg(test)]
mod tests;
