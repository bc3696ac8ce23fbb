//! Opening the directory that an archive is unpacked into.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Whether the directory itself may be a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    /// The user chose the directory: a link is followed.
    Chosen,
    /// A job could write beside the directory: a link is refused.
    OfJob,
}

/// Opens a directory; creates it first if it does not exist.
///
/// # Errors
/// The error of the system. A link that is refused is [`io::ErrorKind::NotADirectory`].
pub fn create_root(path: &Path, root: Root) -> io::Result<Dir> {
    if root == Root::OfJob && path.is_symlink() {
        return Err(not_a_directory());
    }
    fs::create_dir_all(path)?;
    if root == Root::Chosen {
        return Dir::open_ambient_dir(path, ambient_authority());
    }
    let flags = OFlags::NOFOLLOW | OFlags::DIRECTORY;
    let opened: io::Result<File> = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    match opened {
        // The link appeared after the check above.
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::LOOP | Errno::NOTDIR)) => {
            Err(not_a_directory())
        }
        opened => opened.map(Dir::from_std_file),
    }
}

fn not_a_directory() -> io::Error {
    io::Error::new(io::ErrorKind::NotADirectory, "it is a symbolic link, which a job may have created; remove the link")
}
