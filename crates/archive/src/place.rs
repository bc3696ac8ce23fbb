//! Writes one file in an open directory.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use cap_std::fs::Dir;
use filetime::FileTime;
use rustix::fs::{Mode, OFlags};

use crate::UnpackError;

/// Number of bytes to copy at once.
pub(crate) const CHUNK: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct FilePlace {
    /// Directory of the file. `None` means the root.
    dir: Option<Arc<Dir>>,
    name: OsString,
    mode: u32,
    modified: Option<FileTime>,
}

impl FilePlace {
    pub(crate) fn new(dir: Option<Arc<Dir>>, name: &OsStr, mode: u32, modified: Option<FileTime>) -> Self {
        Self { dir, name: name.to_owned(), mode, modified }
    }

    /// Returns whether both files have the same open directory.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        match (&self.dir, &other.dir) {
            (Some(dir), Some(other)) => Arc::ptr_eq(dir, other),
            (None, None) => true,
            _ => false,
        }
    }

    /// Writes or replaces the file. Removes it if it cannot be written completely.
    pub(crate) fn write(&self, root: &Dir, content: &mut dyn Read, buffer: &mut [u8]) -> Result<(), PutError> {
        let dir = self.dir.as_deref().unwrap_or(root);
        let file = create_or_replace(dir, &self.name, || create(dir, &self.name, self.mode))?;
        fill(file, self.mode, self.modified, content, buffer).map(drop).inspect_err(|_| {
            let _ = dir.remove_file(&self.name);
        })
    }

    /// Opens the existing regular file, if it has no other hard links.
    fn existing(&self, root: &Dir) -> Option<File> {
        let dir = self.dir.as_deref().unwrap_or(root);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(dir, &self.name, flags, Mode::empty()).ok()?);
        let metadata = file.metadata().ok()?;
        (metadata.is_file() && metadata.nlink() == 1).then_some(file)
    }

    /// Sets permissions and time of an existing file.
    fn keep(&self, file: &File) -> io::Result<()> {
        let metadata = file.metadata()?;
        if metadata.mode() & 0o7777 != self.mode {
            file.set_permissions(Permissions::from_mode(self.mode))?;
        }
        match self.modified {
            Some(time) if FileTime::from_last_modification_time(&metadata) != time => {
                filetime::set_file_handle_times(file, None, Some(time))
            }
            _ => Ok(()),
        }
    }
}

/// Place of a file for a worker of [`crate::write_files`].
#[derive(Debug)]
pub struct FileTarget<'a> {
    pub(crate) place: &'a FilePlace,
    pub(crate) root: &'a Dir,
    pub(crate) buffer: &'a mut [u8],
}

impl FileTarget<'_> {
    /// Opens the existing regular file, if it has no other hard links.
    #[must_use]
    pub fn existing(&self) -> Option<File> {
        self.place.existing(self.root)
    }

    /// Keeps the existing file, which has the right content, and sets its permissions and time.
    ///
    /// # Errors
    /// [`PutError::Write`] if they cannot be set.
    pub fn keep(&self, file: &File) -> Result<(), PutError> {
        Ok(self.place.keep(file)?)
    }

    /// Writes or replaces the file. Removes it if it cannot be written completely.
    pub fn write(&mut self, content: &mut dyn Read) -> Result<(), PutError> {
        self.place.write(self.root, content, self.buffer)
    }
}

/// Error of an entry.
#[derive(Debug)]
pub enum PutError {
    /// The file cannot be written.
    Write(io::Error),
    /// The content cannot be read, exceeds a limit, or was stopped.
    Read(UnpackError),
}

impl PutError {
    pub(crate) fn into_unpack_error(self, path: &Path) -> UnpackError {
        match self {
            Self::Write(source) => UnpackError::Io { name: path.display().to_string(), source },
            Self::Read(error) => error,
        }
    }
}

impl From<UnpackError> for PutError {
    fn from(error: UnpackError) -> Self {
        Self::Read(error)
    }
}

impl From<io::Error> for PutError {
    fn from(error: io::Error) -> Self {
        Self::Write(error)
    }
}

/// Creates and fills a file, without following a link. Returns the open file.
///
/// # Errors
/// [`UnpackError::Broken`] if reading the content fails, otherwise [`UnpackError::Io`].
pub fn write_new(dir: &Dir, name: &str, mode: u32, content: &mut dyn Read) -> Result<File, UnpackError> {
    let written = create(dir, OsStr::new(name), mode).map_err(PutError::Write);
    let filled = written.and_then(|file| fill(file, mode, None, content, &mut vec![0; CHUNK]));
    filled.map_err(|error| error.into_unpack_error(Path::new(name)))
}

fn create(dir: &Dir, name: &OsStr, mode: u32) -> io::Result<File> {
    // The name has one component, and `EXCL` follows no link.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(mode | 0o200))?.into())
}

fn fill(
    mut file: File,
    mode: u32,
    modified: Option<FileTime>,
    content: &mut dyn Read,
    buffer: &mut [u8],
) -> Result<File, PutError> {
    loop {
        let read = match content.read(buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(UnpackError::Broken(error).into()),
        };
        file.write_all(buffer.get(..read).unwrap_or_default())?;
    }
    file.set_permissions(Permissions::from_mode(mode))?;
    if let Some(time) = modified {
        filetime::set_file_handle_times(&file, None, Some(time))?;
    }
    Ok(file)
}

/// Calls `create`. Replaces an existing file.
pub(crate) fn create_or_replace<T>(dir: &Dir, name: &OsStr, create: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match create() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            remove(dir, name)?;
            create()
        }
        created => created,
    }
}

/// Removes a file, a link, or an empty directory.
fn remove(dir: &Dir, name: &OsStr) -> io::Result<()> {
    match dir.symlink_metadata(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if metadata.is_dir() => dir.remove_dir(name),
        Ok(_) => dir.remove_file(name),
    }
}
