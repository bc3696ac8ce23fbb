//! Deletes directories of the state directory.
//!
//! Deleting the files of a run takes long, and other processes must not wait for it. So a directory is moved to the trash while the lock
//! of the project is held, and deleted after the lock was released.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::state::{create_private, directory_size};

/// A directory for directories that are being deleted.
pub(super) struct Trash {
    directory: PathBuf,
}

impl Trash {
    /// Creates the trash at a path on the file system of the directories to delete. Writes nothing.
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Moves a directory to the trash, and returns its new path. `None` means that the directory does not exist.
    ///
    /// # Errors
    /// Returns the error of the system if the directory cannot be moved, for example because it is a mount point.
    pub(super) fn add(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        if !fs::exists(path)? {
            return Ok(None);
        }
        create_private(&self.directory)?;
        let target = tempfile::tempdir_in(&self.directory)?;
        // The new, empty directory is replaced.
        fs::rename(path, target.path())?;
        Ok(Some(target.keep()))
    }

    /// Deletes the content of the trash, or as much of it as can be deleted. Returns the freed space in bytes.
    ///
    /// Calls `on_error` for each directory that could not be deleted, with the first path and its error.
    pub(super) fn empty(&self, on_error: &mut dyn FnMut(&Path, &io::Error)) -> u64 {
        let mut freed = 0;
        for entry in fs::read_dir(&self.directory).into_iter().flatten().filter_map(Result::ok) {
            freed += remove_as_much_as_possible(&entry.path(), on_error);
        }
        freed
    }
}

/// Deletes a directory, even if a job removed the write permission of a directory inside it.
pub(super) fn remove_all(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            make_writable(directory);
            fs::remove_dir_all(directory)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Deletes a directory, or as much of its content as can be deleted. Returns the freed space in bytes.
///
/// Calls `on_error` with the first path that could not be deleted.
pub(super) fn remove_as_much_as_possible(directory: &Path, on_error: &mut dyn FnMut(&Path, &io::Error)) -> u64 {
    let size = directory_size(directory);
    if remove_all(directory).is_ok() {
        return size;
    }
    if let Err((path, error)) = remove_inner_first(directory) {
        on_error(&path, &error);
    }
    size.saturating_sub(directory_size(directory))
}

/// Deletes all files and directories that can be deleted. Returns the first path that could not be deleted, with its error.
fn remove_inner_first(directory: &Path) -> Result<(), (PathBuf, io::Error)> {
    // `remove_dir_all` stops at the first error, so list the directories and delete them from the innermost outwards.
    let mut first = None;
    let mut record = |path: PathBuf, error: io::Error| {
        // Another process may be deleting the same files.
        if error.kind() != io::ErrorKind::NotFound {
            first.get_or_insert((path, error));
        }
    };
    let mut directories = vec![directory.to_owned()];
    let mut next = 0;
    while let Some(directory) = directories.get(next).cloned() {
        next += 1;
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) => {
                record(directory, error);
                continue;
            }
        };
        for entry in entries.filter_map(Result::ok) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                directories.push(entry.path());
            } else if let Err(error) = fs::remove_file(entry.path()) {
                record(entry.path(), error);
            }
        }
    }
    for directory in directories.into_iter().rev() {
        if let Err(error) = fs::remove_dir(&directory) {
            record(directory, error);
        }
    }
    first.map_or(Ok(()), Err)
}

#[cfg(unix)]
fn make_writable(directory: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let _ = fs::set_permissions(&directory, fs::Permissions::from_mode(0o700));
        for entry in fs::read_dir(&directory).into_iter().flatten().filter_map(Result::ok) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                directories.push(entry.path());
            }
        }
    }
}

#[cfg(not(unix))]
fn make_writable(_directory: &Path) {}
