//! Creates directories inside directories that jobs own, and gives them to the user of the jobs.
//!
//! A manager that runs as root must not change the owner of a file or directory of a job. Each part of a path is
//! therefore opened relative to the directory above it, and links are followed only in directories that no job can
//! change. Only an empty directory of this process's user changes its owner, through its open descriptor. Files never
//! change their owner, so hard links are of no use to a job.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, fchown, fstat, mkdirat, openat, readlinkat, statat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::user::Owner;

/// Maximum number of links that are followed, as in the Linux kernel.
const MAX_LINKS: u32 = 40;
/// Maximum number of attempts to create a directory, which other processes may create or delete meanwhile.
const MAX_ATTEMPTS: u32 = 100;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Creates a directory and its parents, and gives the directory to `owner`.
///
/// `None` means the user of this process. An existing directory is changed only if `owner` is set and the directory is
/// empty and belongs to the user of this process.
pub(super) fn create(path: &Path, owner: Option<Owner>) -> io::Result<()> {
    match owner {
        Some(owner) => create_for(path, Mode::from_raw_mode(0o777), owner, || {}),
        None => std::fs::create_dir_all(path),
    }
}

pub(super) fn create_private(path: &Path, owner: Option<Owner>) -> io::Result<()> {
    match owner {
        Some(owner) => create_for(path, Mode::RWXU, owner, || {}),
        None => muster_files::private_directory(path),
    }
}

/// Creates a directory for `owner`, as [`create`] does. Calls `on_created` after the directory was created and before
/// its owner is changed.
fn create_for(path: &Path, mode: Mode, owner: Owner, mut on_created: impl FnMut()) -> io::Result<()> {
    let mut rest: VecDeque<OsString> = parts(path);
    let mut directory = open_start(path)?;
    let mut walked = PathBuf::from(if path.is_absolute() { "/" } else { "" });
    let (mut links, mut attempts) = (0, 0);
    while let Some(name) = rest.pop_front() {
        match openat(
            &directory,
            &name,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        ) {
            // A manager that was killed before it changed the owner leaves an empty directory.
            Ok(next) if rest.is_empty() && is_empty_and_ours(&directory, &name, &next)? => {
                return change_owner(&directory, &name, owner);
            }
            Ok(next) => {
                directory = next;
                walked.push(&name);
                attempts = 0;
            }
            Err(Errno::NOENT) => {
                let is_last = rest.is_empty();
                let mode = if is_last { mode } else { Mode::from_raw_mode(0o777) };
                match mkdirat(&directory, &name, mode) {
                    Ok(()) if is_last => {
                        on_created();
                        return change_owner(&directory, &name, owner);
                    }
                    // The next round opens the existing directory.
                    Ok(()) | Err(Errno::EXIST) if attempts < MAX_ATTEMPTS => rest.push_front(name),
                    Ok(()) => return Err(Errno::BUSY.into()),
                    Err(error) => return Err(error.into()),
                }
                attempts += 1;
            }
            Err(Errno::LOOP | Errno::NOTDIR) => {
                let target = follow(&directory, &name, &walked.join(&name))?;
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                if target.is_absolute() {
                    directory = open_start(&target)?;
                    walked = PathBuf::from("/");
                }
                for part in parts(&target).into_iter().rev() {
                    rest.push_front(part);
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

/// Opens the directory at which `path` starts: the root or the working directory.
fn open_start(path: &Path) -> io::Result<OwnedFd> {
    let from = if path.is_absolute() { "/" } else { "." };
    Ok(openat(CWD, from, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Returns the target of the link `name` in `directory`. Fails if a job can have created the link.
///
/// `path` is the path of the link for error messages.
fn follow(directory: &OwnedFd, name: &OsStr, path: &Path) -> io::Result<PathBuf> {
    let is_ours = |user: u32| user == 0 || user == geteuid().as_raw();
    let parent = fstat(directory)?;
    let link = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_protected = parent.st_mode & WRITABLE_BY_OTHERS == 0 || parent.st_mode & STICKY != 0 && is_ours(link.st_uid);
    let target = match readlinkat(directory, name, Vec::new()) {
        Ok(target) => PathBuf::from(OsString::from_vec(target.into_bytes())),
        Err(Errno::INVAL) => {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, format!("{} is a file", path.display())));
        }
        Err(error) => return Err(error.into()),
    };
    if is_ours(parent.st_uid) && is_protected {
        return Ok(target);
    }
    let message = format!(
        "{} is a link in a directory that other users can write to; configure the target of the link instead",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

fn change_owner(directory: &OwnedFd, name: &OsStr, owner: Owner) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let replaced = |reason: &dyn std::fmt::Display| {
        let name = name.display();
        io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("the new directory {name} was replaced meanwhile: {reason}"),
        )
    };
    let created = openat(directory, name, flags, Mode::empty()).map_err(|error| replaced(&error))?;
    if fstat(&created)?.st_uid != geteuid().as_raw() {
        return Err(replaced(&"it belongs to another user"));
    }
    // Another empty directory of this user that was moved here is safe, too.
    if let Some(entry) = first_entry(&created)? {
        return Err(replaced(&format_args!("it contains {}", entry.display())));
    }
    Ok(fchown(&created, Some(owner.user), Some(owner.group))?)
}

/// Returns whether `name`, opened as `found`, is an empty directory of this process's user.
fn is_empty_and_ours(directory: &OwnedFd, name: &OsStr, found: &OwnedFd) -> io::Result<bool> {
    if fstat(found)?.st_uid != geteuid().as_raw() {
        return Ok(false);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(first_entry(&openat(directory, name, flags, Mode::empty())?)?.is_none())
}

fn first_entry(directory: &OwnedFd) -> io::Result<Option<OsString>> {
    for entry in Dir::read_from(directory.as_fd())? {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    /// Returns a directory that contains `secret`, which root owns, and `jobs`, which `nobody` owns. Also returns `nobody`.
    ///
    /// `None` if the test does not run as root.
    fn home() -> Option<(tempfile::TempDir, Owner)> {
        if !geteuid().is_root() {
            muster_test_prerequisites::missing("only root can give directories away");
            return None;
        }
        let (home, owner) = (tempfile::tempdir().unwrap(), Owner::lookup("nobody").unwrap());
        std::fs::create_dir_all(home.path().join("secret/deep")).unwrap();
        create(&home.path().join("jobs"), Some(owner)).unwrap();
        Some((home, owner))
    }

    fn owner_id(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().uid()
    }

    #[test]
    fn replacement_of_a_new_directory_keeps_its_owner() {
        let Some((home, owner)) = home() else { return };
        let (jobs, secret) = (home.path().join("jobs"), home.path().join("secret"));
        let new = jobs.join("builds");
        let swaps: [(&str, &dyn Fn()); 4] = [
            ("a link", &|| symlink(&secret, &new).unwrap()),
            ("a directory with content", &|| std::fs::rename(&secret, &new).unwrap()),
            ("a hard link to a file", &|| std::fs::hard_link(home.path().join("file"), &new).unwrap()),
            ("nothing", &|| {}),
        ];
        std::fs::write(home.path().join("file"), "").unwrap();
        for (replacement, swap) in swaps {
            let created = create_for(&new, Mode::RWXU, owner, || {
                std::fs::remove_dir(&new).unwrap();
                swap();
            });
            let error = created.map(|()| replacement).unwrap_err().to_string();
            assert!(error.contains("was replaced meanwhile"), "{replacement}: {error}");
            if new.is_symlink() || new.is_file() {
                assert_eq!(owner_id(&home.path().join("file")), 0);
                std::fs::remove_file(&new).unwrap();
            } else if new.exists() {
                assert_eq!((owner_id(&new), owner_id(&new.join("deep"))), (0, 0), "{replacement}");
                std::fs::rename(&new, &secret).unwrap();
            }
            assert_eq!(owner_id(&secret), 0, "{replacement}");
        }
        create(&new, Some(owner)).unwrap();
        assert_eq!(owner_id(&new), owner_id(&jobs));
    }

    #[test]
    fn next_manager_changes_owner_of_leftover_directory() {
        let Some((home, owner)) = home() else { return };
        let left = home.path().join("left");
        std::fs::create_dir(&left).unwrap();
        create(&left, Some(owner)).unwrap();
        assert_eq!(owner_id(&left), owner_id(&home.path().join("jobs")));
    }

    #[test]
    fn long_missing_path_is_created() {
        let Some((home, owner)) = home() else { return };
        let path = home.path().join("d/".repeat(MAX_ATTEMPTS as usize + 10));
        create(&path, Some(owner)).unwrap();
        assert_eq!(owner_id(&path), owner_id(&home.path().join("jobs")));
    }

    #[test]
    fn existing_directories_keep_their_owner() {
        let Some((home, owner)) = home() else { return };
        let path = home.path().join("one/two/../three");
        std::fs::create_dir_all(home.path().join("one/two")).unwrap();
        create(&path, Some(owner)).unwrap();
        assert_eq!(
            (owner_id(&home.path().join("one")), owner_id(&home.path().join("one/three"))),
            (0, owner_id(&home.path().join("jobs")))
        );
        create(&home.path().join("secret"), Some(owner)).unwrap();
        assert_eq!(owner_id(&home.path().join("secret")), 0);
        std::fs::write(home.path().join("plain"), "").unwrap();
        let error = create(&home.path().join("plain/x"), Some(owner)).unwrap_err().to_string();
        assert!(error.contains("plain is a file"), "{error}");
        symlink("loop", home.path().join("loop")).unwrap();
        create(&home.path().join("loop/x"), Some(owner)).unwrap_err();
    }
}
