//! Reads the entries of an archive and writes them as files below an open directory, within limits.
//!
//! Reading and writing can be used separately: [`read`] calls a function for each entry, [`Tree`] writes entries, and [`write_files`] writes
//! them with several threads. [`unpack`] combines them.
//!
//! Neither the archive nor the directory is trusted: an earlier job may have created links in the directory.
//!
//! - Nothing outside of the directory is created, changed or removed, even while another process replaces directories with links. Every
//!   operation is relative to an open directory, and names are resolved so that they never leave it.
//! - A symbolic link of the archive is created as it is, wherever it points to, because creating a link writes nothing at its target. Links
//!   are created after all other entries, and no entry is written below a link of the archive.
//! - A link that already exists below the open directory is followed only if it is relative and leads to a directory below the open
//!   directory.
//! - Bytes, entries, the directories that their names imply, compression ratio and headers are limited ([`Limits`]).

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
    /// The caller's `stop` function returned true.
    #[error("stopped")]
    Stopped,
    /// The bytes are not an archive of the format, or are damaged.
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
    /// The entry cannot be unpacked, for example because it is a device.
    #[error(
        "entry `{name}` of the archive is a {kind}, which cannot be unpacked; the remaining entries were not unpacked"
    )]
    Kind {
        /// Name of the entry.
        name: String,
        /// Description of the entry, such as `device`.
        kind: &'static str,
    },
    /// The archive exceeds a limit.
    #[error(transparent)]
    Limit(#[from] Exceeded),
    /// The system failed to perform an operation for a reason that the archive did not cause.
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

/// Unpacks an archive into an open directory. Existing files are replaced. Several threads unpack zip archives.
///
/// `stop` is called often ([`Meter::new`]). If it returns true, unpacking ends with [`UnpackError::Stopped`].
/// Returns the skipped entries: entries below a link of the archive, entries that conflict with an existing directory, and entries whose
/// name or permissions the file system rejects.
///
/// # Errors
/// [`UnpackError`]. Some of the entries may already be unpacked.
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
