//! Removes directories of any depth.

use std::collections::HashSet;
use std::ffi::{CStr, CString, OsStr};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chmod, fstat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

/// Maximum number of levels to enter, because each keeps a file descriptor open. Deeper directories are first moved
/// into the top directory.
const MAX_OPEN_LEVELS: usize = 32;
/// Maximum number of names in `Level::subdirectories`, a list that each open level has. A directory with this number of
/// unremovable subdirectories is not read again.
const MAX_NAMES: usize = 1024;

/// Removes a directory with its content. Symbolic links are not followed.
///
/// Unlike [`std::fs::remove_dir_all`], needs little stack and few open files at any depth.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    remove(path, false, &mut OnError::End)
}

/// Removes a directory like [`remove_tree`], even if its owner lacks permissions.
///
/// The mode of such directories is changed to 0700.
pub fn remove_locked_tree(path: &Path) -> io::Result<()> {
    remove(path, true, &mut OnError::End)
}

/// Removes a directory like [`remove_locked_tree`], but continues after errors.
///
/// # Errors
/// The first path that could not be removed, and the error of the system.
pub fn remove_most_of_tree(path: &Path) -> Result<(), (PathBuf, io::Error)> {
    let mut first = None;
    remove(path, true, &mut OnError::Continue(&mut first)).map_err(|error| (path.to_owned(), error))?;
    first.map_or(Ok(()), Err)
}

/// What to do after an error.
enum OnError<'e> {
    /// End the removal.
    End,
    /// Continue the removal. The first error is stored with its path.
    Continue(&'e mut Option<(PathBuf, io::Error)>),
}

impl OnError<'_> {
    /// Returns the error if the removal must end.
    fn handle(&mut self, path: impl FnOnce() -> PathBuf, error: io::Error) -> io::Result<()> {
        match self {
            Self::End => Err(error),
            Self::Continue(first) => {
                first.get_or_insert_with(|| (path(), error));
                Ok(())
            }
        }
    }
}

/// Open directory on the way to the directory that is being emptied.
struct Level {
    name: CString,
    directory: OwnedFd,
    /// Names of subdirectories that are still to be removed.
    subdirectories: Vec<CString>,
    /// Names of subdirectories that cannot be removed.
    unremovable: HashSet<CString>,
    /// Whether the directory may contain more entries.
    has_more: bool,
}

impl Level {
    /// Opens the directory. `None` means that it does not exist, or that it was another kind of file, which this
    /// function has removed.
    fn enter(parent: BorrowedFd<'_>, name: &CString, add_permissions: bool) -> io::Result<Option<Self>> {
        match open_directory(parent, name, add_permissions) {
            Ok(directory) => {
                let (subdirectories, unremovable) = (Vec::new(), HashSet::new());
                Ok(Some(Self { name: name.clone(), directory, subdirectories, unremovable, has_more: true }))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => ignore_missing(unlinkat(parent, name, AtFlags::empty())).map(|()| None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes everything except directories, and stores up to [`MAX_NAMES`] of their names. `path` is the path of this
    /// directory.
    fn remove_files(&mut self, path: &Path, on_error: &mut OnError<'_>) -> io::Result<()> {
        let directory = &self.directory;
        self.has_more = false;
        let entries = match Dir::read_from(directory) {
            Ok(entries) => entries,
            Err(error) => return on_error.handle(|| path.to_owned(), error.into()),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return on_error.handle(|| path.to_owned(), error.into()),
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let is_directory = match entry.file_type() {
                FileType::Unknown => match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => continue,
                    Err(error) => {
                        on_error.handle(|| path.join(os_str(name)), error.into())?;
                        continue;
                    }
                    Ok(found) => FileType::from_raw_mode(found.st_mode) == FileType::Directory,
                },
                kind => kind == FileType::Directory,
            };
            if !is_directory {
                if let Err(error) = ignore_missing(unlinkat(directory, name, AtFlags::empty())) {
                    on_error.handle(|| path.join(os_str(name)), error)?;
                }
                continue;
            }
            if self.unremovable.contains(name) {
                continue;
            }
            self.subdirectories.push(name.to_owned());
            if self.subdirectories.len() >= MAX_NAMES {
                // If `unremovable` is full, the directory is not read again.
                self.has_more = self.unremovable.len() < MAX_NAMES;
                break;
            }
        }
        Ok(())
    }
}

fn os_str(name: &CStr) -> &OsStr {
    OsStr::from_bytes(name.to_bytes())
}

fn remove(path: &Path, add_permissions: bool, on_error: &mut OnError<'_>) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let found = statat(CWD, &name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => {}
        FileType::Symlink => return Ok(unlinkat(CWD, &name, AtFlags::empty())?),
        _ => return Err(Errno::NOTDIR.into()),
    }
    let Some(mut top) = Level::enter(CWD, &name, add_permissions)? else { return Ok(()) };
    let mut below: Vec<Level> = Vec::new();
    // Path of the last level, for errors.
    let mut path = path.to_owned();
    loop {
        let depth = below.len();
        let level = below.last_mut().unwrap_or(&mut top);
        if let Some(name) = level.subdirectories.pop() {
            let parent = &below.last().unwrap_or(&top).directory;
            let entered = if depth < MAX_OPEN_LEVELS {
                Level::enter(parent.as_fd(), &name, add_permissions)
            } else {
                move_up(parent, &name, &top.directory, add_permissions).map(|()| {
                    top.has_more = true;
                    None
                })
            };
            match entered {
                Ok(Some(entered)) => {
                    path.push(os_str(&name));
                    below.push(entered);
                }
                Ok(None) => {}
                Err(error) => {
                    on_error.handle(|| path.join(os_str(&name)), error)?;
                    below.last_mut().unwrap_or(&mut top).unremovable.insert(name);
                }
            }
        } else if level.has_more {
            level.remove_files(&path, on_error)?;
        } else if let Some(empty) = below.pop() {
            let parent = below.last_mut().unwrap_or(&mut top);
            let removed = ignore_missing(unlinkat(&parent.directory, &empty.name, AtFlags::REMOVEDIR));
            if let Err(error) = removed {
                on_error.handle(|| path.clone(), error)?;
                parent.unremovable.insert(empty.name);
            }
            path.pop();
        } else {
            return ignore_missing(unlinkat(CWD, &top.name, AtFlags::REMOVEDIR))
                .or_else(|error| on_error.handle(|| path, error));
        }
    }
}

/// Moves a directory into the top directory for later removal.
fn move_up(parent: &OwnedFd, name: &CString, top: &OwnedFd, add_permissions: bool) -> io::Result<()> {
    if add_permissions {
        // Moving a directory requires write permission in it, which `open_directory` adds.
        drop(open_directory(parent.as_fd(), name, add_permissions));
    }
    let random = RandomState::new().build_hasher().finish();
    ignore_missing(renameat(parent, name, top, format!(".removed-{random:016x}")))
}

fn open_directory(parent: BorrowedFd<'_>, name: &CString, add_permissions: bool) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if !add_permissions {
        return openat(parent, name, flags | OFlags::RDONLY, Mode::empty());
    }
    let directory = openat(parent, name, flags | OFlags::PATH, Mode::empty())?;
    if fstat(&directory)?.st_mode & 0o700 != 0o700 {
        // This path leads to the open directory, even if it was renamed. An error can be ignored, because later
        // operations then fail, too.
        let _ = chmod(format!("/proc/self/fd/{}", directory.as_raw_fd()), Mode::RWXU);
    }
    openat(&directory, c".", flags | OFlags::RDONLY, Mode::empty())
}

/// Ignores that an entry does not exist, because another process may have removed it.
fn ignore_missing(removed: Result<(), Errno>) -> io::Result<()> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => Ok(removed?),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn remove_tree_removes_all_contents_but_not_the_targets_of_links() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("tree"), dir.path().join("outside"));
        fs::create_dir_all(outside.join("inner")).unwrap();
        fs::write(outside.join("inner/file"), "").unwrap();
        // Deeper than `MAX_OPEN_LEVELS`, with several directories per level.
        let mut at = tree.clone();
        for _ in 0..2 * MAX_OPEN_LEVELS {
            for name in ["a", "b/c"] {
                fs::create_dir_all(at.join(name)).unwrap();
                fs::write(at.join(name).join("file"), "").unwrap();
            }
            symlink(&outside, at.join("link")).unwrap();
            at.push("d");
        }
        // More directories than `MAX_NAMES`.
        for number in 0..MAX_NAMES + 10 {
            fs::create_dir(tree.join(number.to_string())).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        symlink(&outside, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(fs::symlink_metadata(&tree).is_err() && outside.join("inner/file").exists());
    }

    /// A mount point cannot be removed, not even by root.
    #[test]
    fn removal_continues_after_an_error_and_returns_the_first_one() {
        let test = "remove::tests::removal_continues_after_an_error_and_returns_the_first_one";
        let script = "mkdir -p \"$1/tree/a/mounted\" && mount -t tmpfs tmpfs \"$1/tree/a/mounted\"";
        let Some(dir) = muster_test_prerequisites::run_with_mounts(test, script) else { return };
        let tree = dir.join("tree");
        for name in ["a/b/c", "a/mounted", "a/z", "d"] {
            fs::create_dir_all(tree.join(name)).unwrap();
            fs::write(tree.join(name).join("file"), "").unwrap();
        }
        // More than `MAX_NAMES`, so that the directory is read again.
        for number in 0..MAX_NAMES + 10 {
            fs::create_dir(tree.join("a").join(number.to_string())).unwrap();
        }
        assert!(remove_locked_tree(&tree).is_err());
        let (path, error) = remove_most_of_tree(&tree).unwrap_err();
        assert_eq!((path, error.kind()), (tree.join("a/mounted"), io::ErrorKind::ResourceBusy));
        let left: Vec<_> = fs::read_dir(tree.join("a")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!((left, fs::read_dir(&tree).unwrap().count()), (vec!["mounted".into()], 1));
    }

    #[test]
    fn remove_tree_fails_if_the_path_is_a_file_or_missing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(remove_tree(&file).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert_eq!(remove_tree(&dir.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(file.exists());
    }
}
