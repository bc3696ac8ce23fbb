//! Directory of a plugin process.
//!
//! ```text
//! <base>/fleeting-local-<random>/.lock         locked while the plugin runs; a later plugin removes directories that are not locked
//! <base>/fleeting-local-<random>/<instance>/   home directory of the instance
//! ```

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::process::{Pid, Signal, kill_process};

use crate::instance::INSTANCE_ARG;

const PREFIX: &str = "fleeting-local-";
const LOCK: &str = ".lock";
/// Maximum time to wait until the instances of a killed plugin have exited.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A directory that is removed with its contents when this is dropped.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Creates a directory below `base`, which must exist. Ends the instances that this user's killed plugins left
    /// there, and removes their directories. Blocks the thread, usually for milliseconds.
    pub(crate) fn create(base: &Path) -> io::Result<Self> {
        remove_stale(base);
        // Only this user can read the directory, because jobs store secrets in their home directories.
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(base)?;
        // The lock file gets its final name when it is locked.
        let temporary = directory.path().join(".new");
        let lock = File::create(&temporary)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        std::fs::rename(temporary, directory.path().join(LOCK))?;
        Ok(Self { path: directory.keep(), _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory, which no process may use anymore.
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

fn remove_stale(base: &Path) {
    for entry in base.read_dir().into_iter().flatten().flatten() {
        let has_prefix = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let Some(lock) = has_prefix.then(|| open_lock(&entry.path())).flatten() else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let path = entry.path();
        wait_instances_exited(&path);
        match muster_files::remove_tree(&path) {
            Ok(()) => tracing::info!(directory = %path.display(), "directory of an earlier process removed"),
            Err(error) => {
                tracing::warn!(directory = %path.display(), %error, "failed to remove directory of an earlier process")
            }
        }
    }
}

/// Waits until the instances in the directory of a killed plugin have exited.
///
/// Continues suspended instances, because only then can they notice the end of the plugin.
fn wait_instances_exited(directory: &Path) {
    let deadline = Instant::now() + EXIT_TIMEOUT;
    loop {
        let processes = instance_processes(directory);
        if processes.is_empty() {
            return;
        }
        if Instant::now() >= deadline {
            tracing::warn!(directory = %directory.display(), ?processes, "instances of an earlier process did not exit");
            return;
        }
        for pid in processes {
            let _ = kill_process(pid, Signal::CONT);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the processes of instances whose working directory is below `directory`. Processes of jobs are not included.
fn instance_processes(directory: &Path) -> Vec<Pid> {
    let Ok(directory) = directory.canonicalize() else { return Vec::new() };
    let last_argument = format!("\0{INSTANCE_ARG}\0");
    let instance_pid = |process: std::fs::DirEntry| {
        let pid = process.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let is_inside = std::fs::read_link(process.path().join("cwd")).ok()?.starts_with(&directory);
        let is_instance =
            is_inside && std::fs::read(process.path().join("cmdline")).ok()?.ends_with(last_argument.as_bytes());
        is_instance.then_some(pid)
    };
    std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(instance_pid).collect()
}

/// Opens the lock file of a directory of this user.
///
/// The base may be /tmp, so directories that belong to other users or are writable by them are ignored, and links and
/// FIFOs are not opened.
fn open_lock(path: &Path) -> Option<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = open(path, flags, Mode::empty()).ok()?;
    let metadata = fstat(&directory).ok()?;
    if metadata.st_uid != rustix::process::geteuid().as_raw() || metadata.st_mode & 0o022 != 0 {
        return None;
    }
    muster_files::open_at(directory, path, LOCK).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unlocked_directories_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let first = RunDir::create(base.path()).unwrap();
        std::fs::write(first.path().join("home"), "").unwrap();
        let stale = base.path().join("fleeting-local-stale");
        for path in
            [stale.join("local-1-1"), base.path().join("fleeting-local-without-lock"), base.path().join("other")]
        {
            std::fs::create_dir_all(path).unwrap();
        }
        std::fs::write(stale.join(LOCK), "").unwrap();
        let second = RunDir::create(base.path()).unwrap();
        assert!(first.path().join("home").exists() && !stale.exists());
        drop((first, second));
        let mut names: Vec<_> = base.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["fleeting-local-without-lock", "other"]);
    }

    /// Other users can create files in the base. Opening a FIFO would block.
    #[test]
    fn files_of_other_users_in_base_are_ignored() {
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
        let (sender, receiver) = std::sync::mpsc::channel();
        let path = base.path().to_owned();
        std::thread::spawn(move || sender.send(RunDir::create(&path)));
        let run_dir = receiver
            .recv_timeout(std::time::Duration::from_secs(60))
            .expect("creating the directory blocks on a FIFO")
            .unwrap();
        assert_eq!(base.path().read_dir().unwrap().count(), before + 1);
        assert!(elsewhere.path().join(LOCK).exists());
        drop(run_dir);
    }
}
