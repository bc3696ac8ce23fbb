//! Directory of a plugin process.
//!
//! ```text
//! <base>/fleeting-local-<random>/.lock         held as long as the plugin lives: a later one clears away what nobody holds
//! <base>/fleeting-local-<random>/<instance>/   its home
//! ```

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};

const PREFIX: &str = "fleeting-local-";
const LOCK: &str = ".lock";

/// A directory that is removed with its contents when this is dropped.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Creates a directory below `base`, which must exist. Removes directories of this user's dead plugins in `base`.
    pub(crate) fn make(base: &Path) -> io::Result<Self> {
        clear(base);
        // Only this user may read it: jobs store secrets in their home directories.
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(base)?;
        // The directory gets its final name once it is locked.
        let unnamed = directory.path().join(".new");
        let lock = File::create(&unnamed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        std::fs::rename(unnamed, directory.path().join(LOCK))?;
        Ok(Self { path: directory.keep(), _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory. Nothing may be running in it.
    pub(crate) fn remove(&self) {
        match muster_files::remove_tree(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(directory = %self.path.display(), %error, "failed to remove the instances' directory");
            }
            _ => {}
        }
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        self.remove();
    }
}

fn clear(base: &Path) {
    for entry in base.read_dir().into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let Some(lock) = is_ours.then(|| lock_of(&entry.path())).flatten() else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let path = entry.path();
        match muster_files::remove_tree(&path) {
            Ok(()) => tracing::info!(directory = %path.display(), "removed leftover directory of an earlier process"),
            Err(error) => {
                tracing::warn!(directory = %path.display(), %error, "failed to remove leftover directory of an earlier process")
            }
        }
    }
}

/// Locks a directory of this user. The base may be /tmp: directories that belong to or can be written by other users
/// are ignored, and neither links nor FIFOs are opened.
fn lock_of(path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = open(path, flags, Mode::empty()).ok()?;
    let found = fstat(&directory).ok()?;
    if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o022 != 0 {
        return None;
    }
    muster_files::open_at(directory, path, LOCK).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_only_directories_that_are_not_locked() {
        let base = tempfile::tempdir().unwrap();
        let held = RunDir::make(base.path()).unwrap();
        std::fs::write(held.path().join("home"), "").unwrap();
        let dead = base.path().join("fleeting-local-dead");
        for path in [dead.join("local-1-1"), base.path().join("fleeting-local-begun"), base.path().join("mine")] {
            std::fs::create_dir_all(path).unwrap();
        }
        std::fs::write(dead.join(LOCK), "").unwrap();
        let second = RunDir::make(base.path()).unwrap();
        assert!(held.path().join("home").exists() && !dead.exists());
        drop((held, second));
        let mut left: Vec<_> = base.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["fleeting-local-begun", "mine"]);
    }

    /// Other users can write there, too. Opening a FIFO would block.
    #[test]
    fn files_of_others_in_shared_base_are_ignored() {
        let base = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::write(elsewhere.path().join(LOCK), "").unwrap();
        let [fifo, link, writable] =
            ["fifo", "link", "writable"].map(|name| base.path().join(format!("{PREFIX}{name}")));
        for path in [&fifo, &link, &writable] {
            std::fs::create_dir(path).unwrap();
        }
        assert!(std::process::Command::new("mkfifo").arg(fifo.join(LOCK)).status().unwrap().success());
        std::os::unix::fs::symlink(elsewhere.path().join(LOCK), link.join(LOCK)).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), base.path().join(format!("{PREFIX}directory"))).unwrap();
        std::fs::write(writable.join(LOCK), "").unwrap();
        std::fs::set_permissions(&writable, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let other_user = base.path().join(format!("{PREFIX}other_user"));
        if rustix::process::geteuid().is_root() {
            std::fs::create_dir(&other_user).unwrap();
            std::fs::write(other_user.join(LOCK), "").unwrap();
            std::os::unix::fs::chown(&other_user, Some(65534), Some(65534)).unwrap();
        }
        let before = base.path().read_dir().unwrap().count();
        let (tell, told) = std::sync::mpsc::channel();
        let path = base.path().to_owned();
        std::thread::spawn(move || tell.send(RunDir::make(&path)));
        let place = told.recv_timeout(std::time::Duration::from_secs(60)).expect("it waits for a FIFO").unwrap();
        assert_eq!(base.path().read_dir().unwrap().count(), before + 1);
        assert!(elsewhere.path().join(LOCK).exists());
        drop(place);
    }
}
