//! Private directories.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, Stat, fstat, open};

/// Creates a directory that only its owner can enter. An existing directory is neither changed nor checked.
///
/// Missing parents get the usual permissions.
pub fn private_directory(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        created => created,
    }
}

/// Ensures that `path` is this user's own directory, which no other user can enter: creates the directory in an
/// existing parent, or checks the directory if it already exists.
///
/// An existing directory is not changed. It must be private, and no other user may be able to replace it. Root, and a
/// group that can write to the parent, are trusted.
///
/// # Errors
/// The error of the system, or [`io::ErrorKind::PermissionDenied`] with the reason.
pub fn own_directory(path: &Path) -> io::Result<()> {
    let owner = rustix::process::geteuid().as_raw();
    let parent = stat_directory(path.parent().unwrap_or(Path::new("/")), OFlags::empty())?;
    let can_be_replaced = parent.st_mode & 0o002 != 0 && parent.st_mode & 0o1000 == 0;
    if ![0, owner].contains(&parent.st_uid) || can_be_replaced {
        return Err(permission_denied("another user can replace it"));
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = stat_directory(path, OFlags::NOFOLLOW)?;
    if found.st_uid != owner {
        return Err(permission_denied("it belongs to another user"));
    }
    if found.st_mode & 0o077 != 0 {
        return Err(permission_denied("it is open to other users; run chmod 700 on it"));
    }
    Ok(())
}

/// Returns the metadata of a directory. If another kind of file is at the path, fails without blocking.
fn stat_directory(path: &Path, flags: OFlags) -> io::Result<Stat> {
    let flags = flags | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(fstat(open(path, flags, Mode::empty())?)?)
}

fn permission_denied(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn private_directory_creates_only_the_last_directory_as_private_and_does_not_change_an_existing_one() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("parent/own");
        private_directory(&path).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap()) & 0o500), (0o700, 0o500));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o750)).unwrap();
        private_directory(&path).unwrap();
        assert_eq!(mode(&path), 0o750);
        std::fs::write(home.path().join("file"), "").unwrap();
        private_directory(&home.path().join("file")).unwrap_err();
    }

    #[test]
    fn own_directory_rejects_a_directory_of_another_user() {
        if !rustix::process::geteuid().is_root() {
            muster_test_prerequisites::missing("only root can give a directory to another user");
            return;
        }
        let parent = tempfile::tempdir().unwrap();
        std::fs::set_permissions(parent.path(), PermissionsExt::from_mode(0o1777)).unwrap();
        let path = parent.path().join("own");
        own_directory(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
        assert_eq!(own_directory(&path).unwrap_err().to_string(), "it belongs to another user");
    }
}
