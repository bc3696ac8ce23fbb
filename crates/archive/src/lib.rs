//! Reads the entries of an archive and writes them as files below an open directory, within limits.
//!
//! Both parts are usable alone: [`read`] calls back for each entry, [`Tree`] writes entries. [`unpack`] connects them.
//!
//! An archive is hostile until proven otherwise, and so is the directory: an earlier job may have left links in it.
//!
//! - Nothing outside of the directory is created, changed or removed. Every operation is relative to an open directory, and the
//!   kernel resolves names so that they never leave it (`openat2` with `RESOLVE_BENEATH`; without it, a walk of each
//!   component). A process that replaces directories by links at the same time changes nothing about that.
//! - A symbolic link of the archive is created as it is, wherever it points to, because that alone writes nothing elsewhere. Links
//!   are created after all other entries, and no entry is written below one.
//! - A link that exists in the directory is followed only if it is relative and leads to a directory below the same directory.
//! - Bytes, entries, the directories that their names imply, compression ratio and headers are limited ([`Limits`]).

mod limits;
mod meter;
mod name;
mod open;
mod read;
mod tree;

pub use limits::{Exceeded, Limit, Limits};
pub use meter::Meter;
pub use open::{Root, create_root};
pub use read::{Entry, EntryKind, Format, check_zip, read, read_zip_file};
pub use tree::{LeftOut, Tree, write_new};

use std::io::{self, Read, Seek};

use cap_std::fs::Dir;

/// Reason why an archive was not unpacked, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
    /// The bytes are not an archive of the format, or are damaged.
    #[error("the archive cannot be read")]
    Broken(#[source] io::Error),
    /// The name of an entry leaves the directory, is empty, or is not a valid file name.
    #[error("the archive holds `{name}`, which lies outside of the directory: nothing more is unpacked")]
    Outside {
        /// Name of the entry.
        name: String,
    },
    /// The entry is of a kind that is never unpacked, such as a device.
    #[error(
        "the archive's `{name}` is a {kind}, and only files, directories and symbolic links are unpacked: \
         nothing more is unpacked"
    )]
    Kind {
        /// Name of the entry.
        name: String,
        /// Kind of the entry.
        kind: &'static str,
    },
    /// The archive exceeds a limit.
    #[error(transparent)]
    Limit(#[from] Exceeded),
    /// The system refused an operation for a reason that is not the archive's.
    #[error("cannot unpack `{name}`")]
    Io {
        /// Name of the entry.
        name: String,
        /// Error of the system.
        source: io::Error,
    },
}

/// Unpacks an archive into an open directory. Existing files are replaced.
///
/// `stop` is asked often ([`Meter::new`]); `true` ends the work with [`UnpackError::Stopped`].
/// Entries that meet something that must not be replaced are left out and returned.
///
/// # Errors
/// [`UnpackError`]. Entries before the offending one are unpacked then.
pub fn unpack<R: Read + Seek>(
    archive: R,
    into: &Dir,
    limits: &Limits,
    format: Format,
    stop: &dyn Fn() -> bool,
) -> Result<LeftOut, UnpackError> {
    let meter = Meter::new(*limits, stop);
    let mut tree = Tree::new(into, &meter);
    read(archive, format, &meter, &mut |entry, content| tree.add(entry, content))?;
    tree.finish()
}

#[cfg(test)]
mod tests;
