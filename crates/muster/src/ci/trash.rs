//! Deletes directories of the state directory.
//!
//! A deletion takes long, so directories are moved to the trash under the lock of the project, and deleted without the
//! lock.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::state::{create_private, directory_size};

/// Extension of a directory that could not be deleted, and was reported.
const REPORTED: &str = "reported";

pub(super) struct Trash {
    directory: PathBuf,
}

impl Trash {
    /// `directory` must be on the file system of the directories to delete.
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Moves a directory to the trash, and returns its new path. `None` means that the directory does not exist.
    ///
    /// # Errors
    /// If the directory cannot be moved, for example because it is a mount point.
    pub(super) fn add(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        if !fs::exists(path)? {
            return Ok(None);
        }
        create_private(&self.directory)?;
        let target = tempfile::tempdir_in(&self.directory)?;
        // The rename replaces the empty target.
        fs::rename(path, target.path())?;
        Ok(Some(target.keep()))
    }

    /// Deletes as much of the trash as possible. Returns the freed space in bytes.
    ///
    /// Calls `on_error` once for each directory that could not be deleted completely, with the first path and its
    /// error.
    pub(super) fn empty(&self, on_error: &mut dyn FnMut(&Path, &io::Error)) -> u64 {
        self.entries().iter().map(|entry| remove_as_much_as_possible(entry, on_error)).sum()
    }

    /// Like [`Trash::empty`], but reports each directory only once, even across processes.
    pub(super) fn empty_and_report_once(&self, on_error: &mut dyn FnMut(&Path, &io::Error)) {
        for entry in self.entries() {
            let is_reported = entry.extension().is_some_and(|extension| extension == REPORTED);
            let reported = entry.with_extension(REPORTED);
            let mut failed = None;
            remove_as_much_as_possible(&entry, &mut |path, error| {
                let inner = path.strip_prefix(&entry).map_or_else(|_| path.to_owned(), |inner| reported.join(inner));
                failed = Some((inner, io::Error::new(error.kind(), error.to_string())));
            });
            // A directory that cannot be marked is not reported, because each later call would report it again.
            if let Some((path, error)) = failed
                && !is_reported
                && fs::rename(&entry, &reported).is_ok()
            {
                on_error(&path, &error);
            }
        }
    }

    fn entries(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().filter_map(Result::ok);
        entries.map(|entry| entry.path()).collect()
    }
}

/// Deletes a directory if it exists. Works even if a job removed write permissions inside it.
pub(super) fn remove_all(directory: &Path) -> io::Result<()> {
    match muster_files::remove_tree(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) => muster_files::remove_locked_tree(directory),
        Ok(()) => Ok(()),
    }
}

/// Deletes as much of a directory as possible. Returns the freed space in bytes.
///
/// Calls `on_error` with the first path that could not be deleted.
pub(super) fn remove_as_much_as_possible(directory: &Path, on_error: &mut dyn FnMut(&Path, &io::Error)) -> u64 {
    let size = directory_size(directory);
    match muster_files::remove_most_of_tree(directory) {
        // Another process may be deleting the same files.
        Err((path, error)) if error.kind() != io::ErrorKind::NotFound => on_error(&path, &error),
        _ => {}
    }
    size.saturating_sub(directory_size(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Even root cannot delete a mount point.
    #[test]
    fn directory_that_cannot_be_deleted_is_reported_once() {
        let test = "ci::trash::tests::directory_that_cannot_be_deleted_is_reported_once";
        let script = "mkdir -p \"$1/old/mounted\" \"$1/other/inner\" && mount -t tmpfs tmpfs \"$1/old/mounted\"";
        let Some(directory) = muster_test_prerequisites::run_with_mounts(test, script) else { return };
        let trash = Trash::new(directory.clone());
        let mut reported = Vec::new();
        for _ in 0..2 {
            trash.empty_and_report_once(&mut |path, _| reported.push(path.to_owned()));
        }
        assert_eq!(reported, [directory.join("old.reported/mounted")]);
        assert!(reported[0].is_dir() && !directory.join("other").exists());
        let mut count = 0;
        trash.empty(&mut |_, _| count += 1);
        assert_eq!(count, 1, "`muster ci clean` must report the directory again");
    }
}
