//! Removes directories of any depth.

use std::ffi::CString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, chmod, fstat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

/// Maximum number of levels below the top directory to enter. Each level keeps a file open. Deeper directories are first moved to the
/// top.
const DEPTH: usize = 32;
/// Maximum number of names of a directory to keep in memory.
const NAMES: usize = 1024;

/// Removes a directory and everything in it. Symbolic links are not followed.
///
/// Unlike [`std::fs::remove_dir_all`], neither the stack nor the number of open files grows with the depth of the directory.
///
/// # Errors
/// The error of the system.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    remove(path, false)
}

/// Removes a directory like [`remove_tree`], even if its owner lacks permissions for directories in it.
///
/// The mode of such directories is changed to 0700 first.
///
/// # Errors
/// The error of the system.
pub fn remove_locked_tree(path: &Path) -> io::Result<()> {
    remove(path, true)
}

/// Open directory on the path to the directory that is being emptied.
struct Level {
    name: CString,
    directory: OwnedFd,
    /// Directories in it that are not removed yet.
    inner: Vec<CString>,
    /// Whether the directory may contain more entries than were read.
    has_more: bool,
}

impl Level {
    /// Opens the directory. `None` means that it does not exist, or that it was another kind of file, which was removed.
    fn enter(above: BorrowedFd<'_>, name: CString, unlock: bool) -> io::Result<Option<Self>> {
        match open_directory(above, &name, unlock) {
            Ok(directory) => Ok(Some(Self { name, directory, inner: Vec::new(), has_more: true })),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => gone(unlinkat(above, &name, AtFlags::empty())).map(|()| None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes everything except directories. Keeps the names of up to [`NAMES`] directories.
    fn read(&mut self) -> io::Result<()> {
        let directory = &self.directory;
        self.has_more = false;
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let is_directory = match entry.file_type() {
                FileType::Unknown => match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => continue,
                    found => FileType::from_raw_mode(found?.st_mode) == FileType::Directory,
                },
                kind => kind == FileType::Directory,
            };
            if !is_directory {
                gone(unlinkat(directory, name, AtFlags::empty()))?;
                continue;
            }
            self.inner.push(name.to_owned());
            if self.inner.len() >= NAMES {
                self.has_more = true;
                break;
            }
        }
        Ok(())
    }
}

fn remove(path: &Path, unlock: bool) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let found = statat(CWD, &name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => {}
        FileType::Symlink => return Ok(unlinkat(CWD, &name, AtFlags::empty())?),
        _ => return Err(Errno::NOTDIR.into()),
    }
    let Some(mut top) = Level::enter(CWD, name, unlock)? else { return Ok(()) };
    let mut below: Vec<Level> = Vec::new();
    loop {
        let depth = below.len();
        let level = below.last_mut().unwrap_or(&mut top);
        if let Some(name) = level.inner.pop() {
            let above = &below.last().unwrap_or(&top).directory;
            if depth < DEPTH {
                let entered = Level::enter(above.as_fd(), name, unlock)?;
                below.extend(entered);
            } else {
                move_up(above, &name, &top.directory, unlock)?;
                top.has_more = true;
            }
        } else if level.has_more {
            level.read()?;
        } else if let Some(empty) = below.pop() {
            let above = below.last().unwrap_or(&top);
            gone(unlinkat(&above.directory, &empty.name, AtFlags::REMOVEDIR))?;
        } else {
            return gone(unlinkat(CWD, &top.name, AtFlags::REMOVEDIR));
        }
    }
}

/// Moves a directory to the top directory, where it will be removed later.
fn move_up(above: &OwnedFd, name: &CString, top: &OwnedFd, unlock: bool) -> io::Result<()> {
    if unlock {
        // Moving a directory requires write permission in it.
        drop(open_directory(above.as_fd(), name, unlock));
    }
    let random = RandomState::new().build_hasher().finish();
    gone(renameat(above, name, top, format!(".removed-{random:016x}")))
}

fn open_directory(above: BorrowedFd<'_>, name: &CString, unlock: bool) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if !unlock {
        return openat(above, name, flags | OFlags::RDONLY, Mode::empty());
    }
    let place = openat(above, name, flags | OFlags::PATH, Mode::empty())?;
    if fstat(&place)?.st_mode & 0o700 != 0o700 {
        // The path names the open directory, even if another file has replaced it. If this fails, so do later operations.
        let _ = chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), Mode::RWXU);
    }
    openat(&place, c".", flags | OFlags::RDONLY, Mode::empty())
}

/// Ignores the error of an entry that does not exist: another process may have removed it.
fn gone(removed: Result<(), Errno>) -> io::Result<()> {
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
    fn all_that_is_in_a_directory_goes_and_nothing_that_links_lead_to() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, kept) = (dir.path().join("tree"), dir.path().join("kept"));
        fs::create_dir_all(kept.join("inner")).unwrap();
        fs::write(kept.join("inner/file"), "").unwrap();
        // Deeper than `DEPTH`, with several directories at each level.
        let mut at = tree.clone();
        for _ in 0..2 * DEPTH {
            for name in ["a", "b/c"] {
                fs::create_dir_all(at.join(name)).unwrap();
                fs::write(at.join(name).join("file"), "").unwrap();
            }
            symlink(&kept, at.join("link")).unwrap();
            at.push("d");
        }
        // More directories than the `NAMES` that are kept in memory.
        for number in 0..NAMES + 10 {
            fs::create_dir(tree.join(number.to_string())).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        symlink(&kept, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(fs::symlink_metadata(&tree).is_err() && kept.join("inner/file").exists());
    }

    #[test]
    fn what_is_no_directory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(remove_tree(&file).unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert_eq!(remove_tree(&dir.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(file.exists());
    }
}
