//! Gives the directories of a job to the user of its container, before the first command of the job.
//!
//! Runs as root, and follows no links, because earlier jobs may have planted links in the volumes.

use std::io::Write;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use muster_agent_api::container::SOCKET;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, chownat, fchmod, fchown, fstat, lstat, mkdirat, openat, statat,
};
use rustix::io::{Errno, Result};
use rustix::process::{Gid, Uid};

const SHARED: Mode = Mode::from_raw_mode(0o777);

/// Arguments of `muster agent adopt`.
#[derive(Debug, clap::Args)]
pub(crate) struct AdoptArgs {
    /// Directory that the job owns, with everything in it. It is created if it does not exist.
    #[arg(long, value_name = "DIR")]
    own: Vec<PathBuf>,
    /// Volume in which all users may create files, unless its owner or mode was changed.
    #[arg(long, value_name = "DIR")]
    volume: Vec<PathBuf>,
    /// Directories in which all users may create files. They are created if they do not exist.
    #[arg(required = true, value_name = "DIR")]
    shared: Vec<PathBuf>,
}

pub(super) fn adopt(args: &AdoptArgs) -> ExitCode {
    // `change_owner` keeps one directory open for each level of nested directories.
    crate::open_files::raise();
    // The socket belongs to the user of the container.
    let owner = match lstat(SOCKET) {
        Ok(found) => (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid)),
        Err(error) => return report_failure(Path::new(SOCKET), error),
    };
    let shared = args.shared.iter().map(|directory| (directory, share(directory)));
    let volumes = args.volume.iter().map(|directory| (directory, share_if_new(directory)));
    let owned = args.own.iter().map(|directory| (directory, change_owner(directory, owner)));
    for (directory, result) in shared.chain(volumes).chain(owned) {
        if let Err(error) = result {
            return report_failure(directory, error);
        }
    }
    ExitCode::SUCCESS
}

fn report_failure(path: &Path, error: Errno) -> ExitCode {
    // The agent that started this command shows the line in the log of the job.
    let _ = writeln!(std::io::stderr(), "{}: {error}", path.display());
    ExitCode::FAILURE
}

fn open_or_create(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory = rustix::fs::open("/", flags, Mode::empty())?;
    for component in path.components() {
        let Component::Normal(name) = component else { continue };
        match mkdirat(&directory, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        directory = openat(&directory, name, flags, Mode::empty())?;
    }
    Ok(directory)
}

fn share(path: &Path) -> Result<()> {
    let directory = open_or_create(path)?;
    let mode = Mode::from_raw_mode(fstat(&directory)?.st_mode);
    if mode.contains(SHARED) { Ok(()) } else { fchmod(&directory, mode | SHARED) }
}

/// Lets all users write to a volume that has the owner and mode of a new volume.
///
/// Any other owner or mode was set on purpose.
fn share_if_new(path: &Path) -> Result<()> {
    let directory = open_or_create(path)?;
    let found = fstat(&directory)?;
    let is_new = found.st_uid == 0 && Mode::from_raw_mode(found.st_mode) == Mode::from_raw_mode(0o755);
    if is_new { fchmod(&directory, SHARED) } else { Ok(()) }
}

/// Gives a directory and its content to the owner.
/// The directory itself changes last, so that the next job repeats an interrupted change.
fn change_owner(path: &Path, owner: (Uid, Gid)) -> Result<()> {
    let directory = open_or_create(path)?;
    if fstat(&directory)?.st_uid == owner.0.as_raw() {
        return Ok(());
    }
    change_owner_of_entries(&directory, owner, fstat(&directory)?.st_dev)?;
    fchown(&directory, Some(owner.0), Some(owner.1))
}

/// Gives everything in a directory to the owner. Skips mounted file systems, and files with more than one hard link.
fn change_owner_of_entries(directory: impl AsFd, owner: (Uid, Gid), device: u64) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let found = match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error),
        };
        let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        if found.st_dev != device || (!is_directory && found.st_nlink > 1) {
            continue;
        }
        if is_directory {
            change_owner_of_entries(openat(&directory, name, flags, Mode::empty())?, owner, device)?;
        }
        if found.st_uid != owner.0.as_raw() {
            chownat(&directory, name, Some(owner.0), Some(owner.1), AtFlags::SYMLINK_NOFOLLOW)?;
        }
    }
    Ok(())
}
