//! Opens the target directory of an archive.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

/// How far the path of a directory is trusted. Links are not followed in the part of the path that jobs can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// Jobs cannot change any part of the path, because the user chose the directory.
    Chosen,
    /// Jobs can change everything below this directory, which may itself be a link. A link below it is an error.
    Below(PathBuf),
}

/// Opens a directory. Creates it and its parents if necessary.
///
/// # Errors
/// The error of the system, or [`io::ErrorKind::NotADirectory`] for a link that is not allowed.
pub fn create_root(path: &Path, root: &Root) -> io::Result<Dir> {
    let Root::Below(base) = root else {
        fs::create_dir_all(path)?;
        return Dir::open_ambient_dir(path, ambient_authority());
    };
    let outside = || {
        let message = format!("`{}` is not below the builds directory `{}`", path.display(), base.display());
        io::Error::new(io::ErrorKind::InvalidInput, message)
    };
    let relative = path.strip_prefix(base).map_err(|_| outside())?;
    fs::create_dir_all(base)?;
    let mut walked = base.clone();
    // `O_PATH` needs no read permission, which only the last directory requires.
    let mut dir = openat(CWD, base, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for part in relative.components() {
        let Component::Normal(name) = part else { return Err(outside()) };
        walked.push(name);
        dir = match enter(&dir, name) {
            Err(Errno::NOENT) => match mkdirat(&dir, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => enter(&dir, name),
                Err(error) => Err(error),
            },
            entered => entered,
        }
        .map_err(|error| describe_open_error(error, &walked))?;
    }
    let dir = openat(&dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(Dir::from_std_file(dir.into()))
}

fn enter(dir: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn describe_open_error(error: Errno, path: &Path) -> io::Error {
    if !matches!(error, Errno::LOOP | Errno::NOTDIR) {
        return error.into();
    }
    let message = format!(
        "`{}` is a symbolic link or a file, which a job may have put there; remove it, or choose another builds directory",
        path.display()
    );
    io::Error::new(io::ErrorKind::NotADirectory, message)
}
