//! The folders of past runs: one folder per repository, in it one per run.
//!
//! ```text
//! <state>/muster/projects/<name>-<hash>/
//!   repository     the path of the working tree, for people and for `clean`
//!   counter        the number of the last run; taken under a lock on the file `lock`
//!   cache/         caches of jobs, shared by all runs
//!   includes/      fetched include files
//!   runs/<n>/      lock (held while the run lives), store.git, coordinator, manager, builds, ...
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use muster_pipeline::slug::slug;
use sha2::{Digest as _, Sha256};

use super::config::Keep;
use super::error::CiError;

/// The folder of one repository.
#[derive(Debug, Clone)]
pub(super) struct ProjectState {
    /// The folder.
    pub(super) folder: PathBuf,
    /// The working tree.
    pub(super) worktree: PathBuf,
    /// A stable number of the repository on this machine: `CI_PROJECT_ID`.
    pub(super) project_id: i64,
}

/// A run that is under way: its folder, which nobody prunes while this is held.
#[derive(Debug)]
pub(super) struct Run {
    /// Its number.
    pub(super) number: u64,
    /// Its folder.
    pub(super) folder: PathBuf,
    _lock: File,
}

/// The state folder of the user: MUSTER_STATE_DIR, else XDG_STATE_HOME/muster, else ~/.local/state/muster.
pub(super) fn root() -> Result<PathBuf, CiError> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty());
    let found = variable("MUSTER_STATE_DIR")
        .or_else(|| variable("XDG_STATE_HOME").filter(|path| path.is_absolute()).map(|path| path.join("muster")))
        .or_else(|| std::env::home_dir().map(|home| home.join(".local/state/muster")));
    let found = found.ok_or_else(|| {
        CiError::Usage("cannot tell where to keep state: neither HOME nor MUSTER_STATE_DIR is set".to_owned())
    })?;
    std::path::absolute(&found).map_err(|source| CiError::State { path: found, source })
}

/// The top of the working tree around `directory`: the nearest folder upwards that has a `.git`.
pub(super) fn find_worktree(directory: &Path) -> Option<PathBuf> {
    let directory = fs::canonicalize(directory).ok()?;
    directory.ancestors().find(|folder| folder.join(".git").exists()).map(Path::to_owned)
}

impl ProjectState {
    /// The folder of the repository whose working tree is at `worktree`. Nothing is written yet.
    pub(super) fn of(worktree: &Path) -> Result<Self, CiError> {
        let worktree =
            fs::canonicalize(worktree).map_err(|source| CiError::Read { path: worktree.to_owned(), source })?;
        let digest = Sha256::digest(worktree.as_os_str().as_encoded_bytes());
        let name = worktree.file_name().map(|name| slug(&name.to_string_lossy())).unwrap_or_default();
        let name: String = name.chars().take(40).collect();
        let folder = root()?.join("projects").join(format!("{name}-{}", hex::encode(&digest[..6])));
        let number = u32::from_be_bytes([digest[6], digest[7], digest[8], digest[9]]) >> 1;
        Ok(Self { folder, worktree, project_id: i64::from(number.max(1)) })
    }

    /// The folder of caches.
    pub(super) fn cache(&self) -> PathBuf {
        self.folder.join("cache")
    }

    /// The folder of fetched includes.
    pub(super) fn includes(&self) -> PathBuf {
        self.folder.join("includes")
    }

    /// The folder of one run.
    pub(super) fn run_folder(&self, number: u64) -> PathBuf {
        self.folder.join("runs").join(number.to_string())
    }

    /// Starts a run: takes the next number and makes its folder.
    pub(super) fn start_run(&self) -> Result<Run, CiError> {
        let start = || -> io::Result<Run> {
            create_private(&self.folder.join("runs"))?;
            let _lock = lock(&self.folder.join("lock"))?;
            fs::write(self.folder.join("repository"), self.worktree.as_os_str().as_encoded_bytes())?;
            let newest = self.run_numbers().into_iter().next_back().unwrap_or(0);
            let number = self.counted().max(newest) + 1;
            let folder = self.run_folder(number);
            fs::create_dir(&folder)?;
            fs::write(self.counter(), format!("{number}\n"))?;
            let run_lock = lock(&folder.join("lock"))?;
            Ok(Run { number, folder, _lock: run_lock })
        };
        start().map_err(|source| CiError::State { path: self.folder.clone(), source })
    }

    /// Deletes a run that was not started. Its number is given to the next one, if none was given out since.
    pub(super) fn discard(&self, run: Run) -> io::Result<()> {
        let number = run.number;
        drop(run);
        let _lock = lock(&self.folder.join("lock"))?;
        remove_all(&self.run_folder(number))?;
        if self.counted() == number {
            fs::write(self.counter(), format!("{}\n", number.saturating_sub(1)))?;
        }
        Ok(())
    }

    fn counter(&self) -> PathBuf {
        self.folder.join("counter")
    }

    /// The number that was given out last.
    fn counted(&self) -> u64 {
        fs::read_to_string(self.counter()).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// The numbers of the runs that are there, oldest first.
    pub(super) fn run_numbers(&self) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(self.folder.join("runs")) else { return Vec::new() };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let mut numbers: Vec<u64> = names.collect();
        numbers.sort_unstable();
        numbers
    }

    /// Whether a run is under way.
    pub(super) fn is_live(&self, number: u64) -> bool {
        let file = File::open(self.run_folder(number).join("lock"));
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock)))
    }

    /// Deletes runs that are too old or take too much space; never the newest ones, never one that is under way.
    pub(super) fn prune(&self, keep: &Keep, now: SystemTime) {
        let mut numbers = self.run_numbers();
        if numbers.len() <= keep.runs {
            return;
        }
        numbers.reverse();
        let age_limit = Duration::from_secs(keep.days.saturating_mul(86_400));
        let size_limit = keep.megabytes.saturating_mul(1_000_000);
        let mut total: u64 = 0;
        for (index, number) in numbers.into_iter().enumerate() {
            let folder = self.run_folder(number);
            total = total.saturating_add(self.run_size(number));
            if index < keep.runs {
                continue;
            }
            let started = fs::metadata(folder.join("lock")).and_then(|meta| meta.modified()).unwrap_or(now);
            let age = now.duration_since(started).unwrap_or_default();
            if age > age_limit || total > size_limit {
                let _ = self.delete_run(number);
            }
        }
    }

    /// The bytes of a run. Those of a run that has ended are counted once, and kept in its file `size`.
    fn run_size(&self, number: u64) -> u64 {
        let folder = self.run_folder(number);
        let kept = folder.join("size");
        if let Some(size) = fs::read_to_string(&kept).ok().and_then(|text| text.trim().parse().ok()) {
            return size;
        }
        let size = folder_size(&folder);
        if !self.is_live(number)
            && let Err(error) = fs::write(&kept, format!("{size}\n"))
        {
            tracing::debug!(%error, number, "the size of a run cannot be kept; it is counted again next time");
        }
        size
    }

    /// Deletes a run; says false for one that is under way.
    pub(super) fn delete_run(&self, number: u64) -> io::Result<bool> {
        let folder = self.run_folder(number);
        if self.is_live(number) {
            return Ok(false);
        }
        remove_all(&folder).map(|()| true)
    }
}

/// Every project folder of the user.
pub(super) fn all_projects() -> Result<Vec<ProjectState>, CiError> {
    let folder = root()?.join("projects");
    let Ok(entries) = fs::read_dir(&folder) else { return Ok(Vec::new()) };
    let mut found: Vec<_> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_dir())
        .map(|entry| {
            let worktree = fs::read_to_string(entry.path().join("repository")).unwrap_or_default();
            ProjectState { folder: entry.path(), worktree: PathBuf::from(worktree.trim_end()), project_id: 0 }
        })
        .collect();
    found.sort_by(|one, other| one.folder.cmp(&other.folder));
    Ok(found)
}

/// A folder with its parents, which others cannot look into: logs and artifacts may be private.
fn create_private(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Opens a lock file and waits for its lock, which ends with the handle.
fn lock(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    file.lock()?;
    Ok(file)
}

/// Whether a little more can be written to a folder: about what a database grows by.
///
/// # Errors
/// Why not; that file is gone again.
pub(super) fn probe_space(folder: &Path) -> io::Result<()> {
    const BYTES: usize = 64 << 10;
    let mut file = tempfile::tempfile_in(folder)?;
    io::Write::write_all(&mut file, &[0; BYTES])
}

/// The bytes below a folder.
pub(super) fn folder_size(folder: &Path) -> u64 {
    let mut total = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => folders.push(entry.path()),
                Ok(meta) => total += meta.len(),
                Err(_) => {}
            }
        }
    }
    total
}

/// Deletes a folder, also where a job has taken the write permission from a folder inside it.
pub(super) fn remove_all(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            make_writable(folder);
            fs::remove_dir_all(folder)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Deletes a folder with all that can be deleted in it.
///
/// # Errors
/// The first path that cannot be deleted, and why.
pub(super) fn remove_what_can_be(folder: &Path) -> Result<(), (PathBuf, io::Error)> {
    if remove_all(folder).is_ok() {
        return Ok(());
    }
    // The standard library stops at the first error; here the folders are listed, and emptied from the innermost outwards.
    let mut first = None;
    let mut folders = vec![folder.to_owned()];
    let mut next = 0;
    while let Some(folder) = folders.get(next).cloned() {
        next += 1;
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) => {
                first.get_or_insert((folder, error));
                continue;
            }
        };
        for entry in entries.filter_map(Result::ok) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            } else if let Err(error) = fs::remove_file(entry.path()) {
                first.get_or_insert((entry.path(), error));
            }
        }
    }
    for folder in folders.into_iter().rev() {
        if let Err(error) = fs::remove_dir(&folder) {
            first.get_or_insert((folder, error));
        }
    }
    first.map_or(Ok(()), Err)
}

#[cfg(unix)]
fn make_writable(folder: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let _ = fs::set_permissions(&folder, fs::Permissions::from_mode(0o700));
        for entry in fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
    }
}

#[cfg(not(unix))]
fn make_writable(_folder: &Path) {}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(folder: &Path) -> ProjectState {
        ProjectState { folder: folder.join("p"), worktree: folder.to_owned(), project_id: 1 }
    }

    #[test]
    fn runs_are_numbered_on_also_after_the_newest_was_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let project = project(folder.path());
        let first = project.start_run().unwrap();
        let second = project.start_run().unwrap();
        assert_eq!((first.number, second.number), (1, 2));
        drop(second);
        assert!(project.delete_run(2).unwrap());
        assert_eq!(project.start_run().unwrap().number, 3);
        assert!(!project.delete_run(1).unwrap(), "a run that is under way stays");
    }

    #[test]
    fn pruning_keeps_the_newest_and_the_living() {
        let folder = tempfile::tempdir().unwrap();
        let project = project(folder.path());
        let living = project.start_run().unwrap();
        for _ in 0..4 {
            drop(project.start_run().unwrap());
        }
        let later = SystemTime::now() + Duration::from_secs(31 * 86_400);
        project.prune(&Keep { runs: 2, ..Keep::default() }, later);
        assert_eq!(project.run_numbers(), [living.number, 4, 5]);
    }

    #[test]
    fn pruning_by_size_deletes_the_oldest() {
        let folder = tempfile::tempdir().unwrap();
        let project = project(folder.path());
        for _ in 0..3 {
            let run = project.start_run().unwrap();
            fs::write(run.folder.join("big"), vec![0; 600_000]).unwrap();
        }
        project.prune(&Keep { runs: 1, megabytes: 1, days: 30 }, SystemTime::now());
        assert_eq!(project.run_numbers(), [3]);
    }
}
