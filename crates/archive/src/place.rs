//! Writes one file at a place in an open directory.

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

/// Number of bytes of content to copy at once.
pub(crate) const CHUNK: usize = 64 * 1024;

/// Place of a file in an open directory.
#[derive(Debug)]
pub(crate) struct FilePlace {
    /// Directory of the file. `None` stands for the root.
    dir: Option<Arc<Dir>>,
    name: OsString,
    mode: u32,
    modified: Option<FileTime>,
}

impl FilePlace {
    pub(crate) fn new(dir: Option<Arc<Dir>>, name: &OsStr, mode: u32, modified: Option<FileTime>) -> Self {
        Self { dir, name: name.to_owned(), mode, modified }
    }

    /// Returns whether both files are written through the same open directory.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        match (&self.dir, &other.dir) {
            (Some(dir), Some(other)) => Arc::ptr_eq(dir, other),
            (None, None) => true,
            _ => false,
        }
    }

    /// Writes the file, and replaces an existing one. Removes the file if it cannot be written completely.
    pub(crate) fn write(&self, root: &Dir, content: &mut dyn Read, buffer: &mut [u8]) -> Result<(), PutError> {
        let dir = self.dir.as_deref().unwrap_or(root);
        let file = create_or_replace(dir, &self.name, || create(dir, &self.name, self.mode))?;
        fill(file, self.mode, self.modified, content, buffer).map(drop).inspect_err(|_| {
            let _ = dir.remove_file(&self.name);
        })
    }

    /// Opens the regular file that exists at this place, if it has no other hard links.
    fn existing(&self, root: &Dir) -> Option<File> {
        let dir = self.dir.as_deref().unwrap_or(root);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(dir, &self.name, flags, Mode::empty()).ok()?);
        let metadata = file.metadata().ok()?;
        (metadata.is_file() && metadata.nlink() == 1).then_some(file)
    }

    /// Sets the permissions and the time of an existing file, and keeps its content.
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

/// Place of a file that a worker of [`crate::write_files`] writes.
#[derive(Debug)]
pub struct FileTarget<'a> {
    pub(crate) place: &'a FilePlace,
    pub(crate) root: &'a Dir,
    pub(crate) buffer: &'a mut [u8],
}

impl FileTarget<'_> {
    /// Opens the regular file at this place. `None` if it does not exist, cannot be opened, or has other hard links.
    #[must_use]
    pub fn existing(&self) -> Option<File> {
        self.place.existing(self.root)
    }

    /// Keeps the content of the existing file, because it is already the content of the entry. Sets its permissions and its time.
    ///
    /// # Errors
    /// [`PutError::Write`] if the permissions or the time cannot be set.
    pub fn keep(&self, file: &File) -> Result<(), PutError> {
        Ok(self.place.keep(file)?)
    }

    /// Writes the file, and replaces an existing one. Removes the file if it cannot be written completely.
    ///
    /// # Errors
    /// [`PutError`]
    pub fn write(&mut self, content: &mut dyn Read) -> Result<(), PutError> {
        self.place.write(self.root, content, self.buffer)
    }
}

/// Error of reading or of writing an entry.
#[derive(Debug)]
pub enum PutError {
    /// Writing the file failed.
    Write(io::Error),
    /// Reading the content failed, a limit is exceeded, or the work was stopped.
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

/// Creates a file that does not exist and fills it, without following a link. Returns the open file.
///
/// # Errors
/// [`UnpackError::Broken`] if reading the content fails, otherwise [`UnpackError::Io`].
pub fn write_new(dir: &Dir, name: &str, mode: u32, content: &mut dyn Read) -> Result<File, UnpackError> {
    let written = create(dir, OsStr::new(name), mode).map_err(PutError::Write);
    let filled = written.and_then(|file| fill(file, mode, None, content, &mut vec![0; CHUNK]));
    filled.map_err(|error| error.into_unpack_error(Path::new(name)))
}

fn create(dir: &Dir, name: &OsStr, mode: u32) -> io::Result<File> {
    // The name has one component, and `EXCL` follows no link, so the file cannot be outside of the directory.
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

/// Calls `create`. If the name already exists, removes the existing file and calls `create` again.
pub(crate) fn create_or_replace<T>(dir: &Dir, name: &OsStr, create: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match create() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            remove(dir, name)?;
            create()
        }
        created => created,
    }
}

/// Removes a file or a link, or a directory if it is empty.
fn remove(dir: &Dir, name: &OsStr) -> io::Result<()> {
    match dir.symlink_metadata(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if metadata.is_dir() => dir.remove_dir(name),
        Ok(_) => dir.remove_file(name),
    }
}
