//! Directories of past runs, by repository.
//!
//! ```text
//! <state>/muster/projects/<name>-<hash>/
//!   repository     path of the working tree
//!   counter        number of the last run; changed under a lock on the file `lock`
//!   cache/         caches of jobs, shared by all runs
//!   includes/      downloaded include files
//!   trash/         directories that are being deleted
//!   runs/<n>/      lock (held while the run is active), store.git, coordinator, manager, builds, ...
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use muster_pipeline::slug::slug;
use sha2::{Digest as _, Sha256};

use super::config::Retention;
use super::error::CiError;
use super::trash::{Trash, remove_all};
use super::ui;

#[derive(Debug, Clone)]
pub(super) struct ProjectState {
    pub(super) directory: PathBuf,
    pub(super) worktree: PathBuf,
    /// Value of `CI_PROJECT_ID`, which is stable on this machine.
    pub(super) project_id: i64,
}

/// An active run. Its directory is not pruned while this value exists.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) number: u64,
    pub(super) directory: PathBuf,
    _lock: File,
}

/// Returns the user's state directory: MUSTER_STATE_DIR, else XDG_STATE_HOME/muster, else ~/.local/state/muster.
pub(super) fn root() -> Result<PathBuf, CiError> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty());
    let found = variable("MUSTER_STATE_DIR")
        .or_else(|| variable("XDG_STATE_HOME").filter(|path| path.is_absolute()).map(|path| path.join("muster")))
        .or_else(|| std::env::home_dir().map(|home| home.join(".local/state/muster")));
    let found = found
        .ok_or_else(|| CiError::Failed("no state directory: neither HOME nor MUSTER_STATE_DIR is set".to_owned()))?;
    std::path::absolute(&found).map_err(|source| CiError::State { path: found, source })
}

/// Returns the top of the working tree that contains `directory`: the nearest ancestor with a `.git`.
pub(super) fn find_worktree(directory: &Path) -> Option<PathBuf> {
    let directory = fs::canonicalize(directory).ok()?;
    directory.ancestors().find(|directory| directory.join(".git").exists()).map(Path::to_owned)
}

impl ProjectState {
    /// Returns the state of a working tree. Creates no directories.
    pub(super) fn of(worktree: &Path) -> Result<Self, CiError> {
        let worktree =
            fs::canonicalize(worktree).map_err(|source| CiError::Read { path: worktree.to_owned(), source })?;
        let digest = Sha256::digest(worktree.as_os_str().as_encoded_bytes());
        let name = worktree.file_name().map(|name| slug(&name.to_string_lossy())).unwrap_or_default();
        let name: String = name.chars().take(40).collect();
        let [h0, h1, h2, h3, h4, h5, n0, n1, n2, n3, ..] = <[u8; 32]>::from(digest);
        let hash = hex::encode([h0, h1, h2, h3, h4, h5]);
        let directory = root()?.join("projects").join(format!("{name}-{hash}"));
        let number = u32::from_be_bytes([n0, n1, n2, n3]) >> 1;
        Ok(Self { directory, worktree, project_id: i64::from(number.max(1)) })
    }

    pub(super) fn cache(&self) -> PathBuf {
        self.directory.join("cache")
    }

    pub(super) fn includes(&self) -> PathBuf {
        self.directory.join("includes")
    }

    pub(super) fn run_directory(&self, number: u64) -> PathBuf {
        self.directory.join("runs").join(number.to_string())
    }

    /// Takes the next run number, and creates the run's directory.
    pub(super) fn start_run(&self) -> Result<Run, CiError> {
        let start = || -> io::Result<Run> {
            create_private(&self.directory.join("runs"))?;
            let _lock = self.lock()?;
            fs::write(self.directory.join("repository"), self.worktree.as_os_str().as_encoded_bytes())?;
            let newest = self.run_numbers().into_iter().next_back().unwrap_or(0);
            let number = self.last_number().max(newest) + 1;
            let directory = self.run_directory(number);
            fs::create_dir(&directory)?;
            fs::write(self.counter(), format!("{number}\n"))?;
            // Another process holds this lock only briefly, to check whether the run is active.
            let run_lock = lock(&directory.join("lock"), &|_| ())?;
            Ok(Run { number, directory, _lock: run_lock })
        };
        start().map_err(|source| CiError::State { path: self.directory.clone(), source })
    }

    /// Deletes the directory of a run without a pipeline.
    ///
    /// The next run gets the same number, unless a later run was started.
    pub(super) fn discard(&self, run: Run) -> io::Result<()> {
        let number = run.number;
        let moved = {
            // The next run may use the same directory, so it must be moved before the lock is released.
            let _lock = self.lock()?;
            drop(run);
            let moved = self.move_run_to_trash(number)?;
            if self.last_number() == number {
                fs::write(self.counter(), format!("{}\n", number.saturating_sub(1)))?;
            }
            moved
        };
        moved.map_or(Ok(()), |moved| remove_all(&moved))
    }

    /// Obtains the lock that starting, discarding and deleting a run require. Prints a note before it waits.
    pub(super) fn lock(&self) -> io::Result<File> {
        self.lock_with_on_wait(&|path| {
            ui::note(&format!(
                "waiting for another `muster ci` that starts or deletes a run of this repository; it holds the lock `{}`",
                path.display()
            ));
        })
    }

    /// Like [`Self::lock`], but calls `on_wait` instead of printing a note.
    fn lock_with_on_wait(&self, on_wait: &dyn Fn(&Path)) -> io::Result<File> {
        lock(&self.directory.join("lock"), on_wait)
    }

    pub(super) fn trash(&self) -> Trash {
        Trash::new(self.directory.join("trash"))
    }

    /// Moves the directory of a run to the trash, and returns its new path. The caller must hold the lock.
    ///
    /// Deletes a directory that cannot be moved, and returns `None`.
    fn move_run_to_trash(&self, number: u64) -> io::Result<Option<PathBuf>> {
        let directory = self.run_directory(number);
        match self.trash().add(&directory) {
            Ok(moved) => Ok(moved),
            // A full disk may have no space for the trash.
            Err(_) => remove_all(&directory).map(|()| None),
        }
    }

    fn counter(&self) -> PathBuf {
        self.directory.join("counter")
    }

    /// Returns the number of the last run that was started, or 0.
    fn last_number(&self) -> u64 {
        fs::read_to_string(self.counter()).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// Returns the numbers of the existing runs, oldest first.
    pub(super) fn run_numbers(&self) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(self.directory.join("runs")) else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let mut numbers: Vec<u64> = names.collect();
        numbers.sort_unstable();
        numbers
    }

    pub(super) fn is_active(&self, number: u64) -> bool {
        let file = File::open(self.run_directory(number).join("lock"));
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock)))
    }

    /// Deletes runs that exceed the limits of `retention`, except active runs. Empties the trash first.
    ///
    /// Calls `on_kept` once for each directory of the trash that cannot be deleted, with the first path and its error.
    pub(super) fn prune(&self, retention: &Retention, now: SystemTime, on_kept: &mut dyn FnMut(&Path, &io::Error)) {
        // A process may have been killed while it deleted files.
        self.trash().empty_and_report_once(on_kept);
        let mut numbers = self.run_numbers();
        if numbers.len() <= retention.min_runs {
            return;
        }
        numbers.reverse();
        let max_age = Duration::from_secs(retention.max_days.saturating_mul(86_400));
        let max_size = retention.max_megabytes.saturating_mul(1_000_000);
        let mut total: u64 = 0;
        for (index, number) in numbers.into_iter().enumerate() {
            let directory = self.run_directory(number);
            total = total.saturating_add(self.run_size(number));
            if index < retention.min_runs {
                continue;
            }
            let started = fs::metadata(directory.join("lock")).and_then(|meta| meta.modified()).unwrap_or(now);
            let age = now.duration_since(started).unwrap_or_default();
            if age > max_age || total > max_size {
                let _ = self.delete_run(number);
            }
        }
    }

    /// Returns the size of a run in bytes. The file `size` caches it for finished runs.
    fn run_size(&self, number: u64) -> u64 {
        let directory = self.run_directory(number);
        let size_file = directory.join("size");
        if let Some(size) = fs::read_to_string(&size_file).ok().and_then(|text| text.trim().parse().ok()) {
            return size;
        }
        let size = directory_size(&directory);
        if !self.is_active(number)
            && let Err(error) = fs::write(&size_file, format!("{size}\n"))
        {
            tracing::debug!(%error, number, "failed to store the size of a run");
        }
        size
    }

    /// Returns false if the run is active, and was not deleted.
    fn delete_run(&self, number: u64) -> io::Result<bool> {
        self.delete_run_under(number, || self.lock())
    }

    fn delete_run_under(&self, number: u64, lock: impl FnOnce() -> io::Result<File>) -> io::Result<bool> {
        let moved = {
            let _lock = lock()?;
            if self.is_active(number) {
                return Ok(false);
            }
            self.move_run_to_trash(number)?
        };
        moved.map_or(Ok(()), |moved| remove_all(&moved)).map(|()| true)
    }
}

pub(super) fn all_projects() -> Result<Vec<ProjectState>, CiError> {
    let directory = root()?.join("projects");
    let Ok(entries) = fs::read_dir(&directory) else { return Ok(Vec::new()) };
    let mut found: Vec<_> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_dir())
        .map(|entry| {
            let worktree = fs::read_to_string(entry.path().join("repository")).unwrap_or_default();
            ProjectState { directory: entry.path(), worktree: PathBuf::from(worktree.trim_end()), project_id: 0 }
        })
        .collect();
    found.sort_by(|one, other| one.directory.cmp(&other.directory));
    Ok(found)
}

/// Creates a directory and its parents without access for other users, because logs and artifacts may be private.
pub(super) fn create_private(directory: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory)
}

/// Opens a lock file and waits for its lock, which is released when the file is dropped.
///
/// Calls `on_wait` with the path if another process holds the lock.
fn lock(path: &Path, on_wait: &dyn Fn(&Path)) -> io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    match file.try_lock() {
        Err(fs::TryLockError::WouldBlock) => {
            on_wait(path);
            file.lock()?;
        }
        other => other?,
    }
    Ok(file)
}

/// Checks that a file of 64 KiB can be written in a directory. The coordinator's database needs about that much space
/// to grow.
pub(super) fn probe_space(directory: &Path) -> io::Result<()> {
    const BYTES: usize = 64 << 10;
    let mut file = tempfile::tempfile_in(directory)?;
    io::Write::write_all(&mut file, &[0; BYTES])
}

pub(super) fn directory_size(directory: &Path) -> u64 {
    let mut total = 0;
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok) {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => directories.push(entry.path()),
                Ok(meta) => total += meta.len(),
                Err(_) => {}
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(directory: &Path) -> ProjectState {
        ProjectState { directory: directory.join("p"), worktree: directory.to_owned(), project_id: 1 }
    }

    #[test]
    fn run_numbers_are_not_reused_after_deletion() {
        let directory = tempfile::tempdir().unwrap();
        let project = project(directory.path());
        let first = project.start_run().unwrap();
        let second = project.start_run().unwrap();
        assert_eq!((first.number, second.number), (1, 2));
        drop(second);
        assert!(project.delete_run(2).unwrap());
        assert_eq!(project.start_run().unwrap().number, 3);
        assert!(!project.delete_run(1).unwrap(), "the active run 1 must not be deleted");
    }

    #[test]
    fn run_that_is_being_started_is_not_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let project = project(directory.path());
        drop(project.start_run().unwrap());
        let starting = project.lock().unwrap();
        fs::create_dir(project.run_directory(2)).unwrap();
        let (waits, waiting) = std::sync::mpsc::channel();
        let other = project.clone();
        let deleting = std::thread::spawn(move || {
            other.delete_run_under(2, || other.lock_with_on_wait(&move |path| waits.send(path.to_owned()).unwrap()))
        });
        // If the deletion does not wait, it drops `waits`, and `recv` fails.
        assert_eq!(waiting.recv(), Ok(project.directory.join("lock")), "the deletion must wait for the lock");
        let _run = lock(&project.run_directory(2).join("lock"), &|_| ()).unwrap();
        drop(starting);
        assert!(!deleting.join().unwrap().unwrap(), "an active run must not be deleted");
        assert_eq!(project.run_numbers(), [1, 2]);
    }

    #[test]
    fn deleted_run_leaves_no_files() {
        let directory = tempfile::tempdir().unwrap();
        let project = project(directory.path());
        let run = project.start_run().unwrap();
        project.discard(run).unwrap();
        let run = project.start_run().unwrap();
        assert_eq!(run.number, 1, "the number of a discarded run must be used again");
        drop(run);
        assert!(project.delete_run(1).unwrap());
        assert!(project.run_numbers().is_empty());
        assert_eq!(fs::read_dir(project.directory.join("trash")).unwrap().count(), 0);
    }

    #[test]
    fn pruning_deletes_what_a_killed_process_left_in_the_trash() {
        let directory = tempfile::tempdir().unwrap();
        let project = project(directory.path());
        drop(project.start_run().unwrap());
        let left = project.move_run_to_trash(1).unwrap().unwrap();
        assert!(left.join("lock").is_file() && project.run_numbers().is_empty(), "{left:?}");
        project.prune(&Retention::default(), SystemTime::now(), &mut |_, _| ());
        assert!(!left.exists());
    }

    #[test]
    fn pruning_keeps_newest_and_active_runs() {
        let directory = tempfile::tempdir().unwrap();
        let project = project(directory.path());
        let active = project.start_run().unwrap();
        for _ in 0..4 {
            drop(project.start_run().unwrap());
        }
        let later = SystemTime::now() + Duration::from_secs(31 * 86_400);
        project.prune(&Retention { min_runs: 2, ..Retention::default() }, later, &mut |_, _| ());
        assert_eq!(project.run_numbers(), [active.number, 4, 5]);
    }

    #[test]
    fn pruning_by_size_deletes_the_oldest() {
        let directory = tempfile::tempdir().unwrap();
        let project = project(directory.path());
        for _ in 0..3 {
            let run = project.start_run().unwrap();
            fs::write(run.directory.join("big"), vec![0; 600_000]).unwrap();
        }
        project.prune(&Retention { min_runs: 1, max_megabytes: 1, max_days: 30 }, SystemTime::now(), &mut |_, _| ());
        assert_eq!(project.run_numbers(), [3]);
    }
}
