//! `state.log`: what survives the manager. One writer, this process; a lock file keeps a second manager out.
//!
//! A job's life is a few lines that are added to one file, and a handful of jobs live at a time: so this is a file of
//! lines, each written by one call, and not a database (what a job cost there was a third of what it cost the manager).
//! What is written survives the death of any process; it is on the disk within a second. After a loss of power the last
//! second may be missing, and then the coordinator's hand-out lease and the agent's spool decide.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muster_config::settings::{RunnerKey, RunnerSettings};
use muster_runner_api::payload::JobPayload;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use crate::state::JobState;

mod books;
mod keeper;
mod log;
mod record;
mod run_name;
#[cfg(test)]
mod tests;

use books::Books;
use keeper::Keeper;
use record::{Lane, Record};
pub use run_name::RunName;

/// What the one manager that works on a directory holds.
const LOCK: &str = "manager.lock";

/// How long a copy of the lock may outlive a manager that was killed: a process that it was just starting has one.
const COPY_LIMIT: Duration = Duration::from_secs(1);
/// Its end is no event for this process; this is between two looks.
const COPY_LOOK: Duration = Duration::from_millis(20);

/// Why the state cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another manager uses the directory.
    #[error("another manager uses the state directory {}; give each manager its own", .0.display())]
    InUse(PathBuf),
    /// The directory is not usable.
    #[error("cannot use the state directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file cannot be read or written.
    #[error("cannot read or write the manager's state {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// What was written cannot be brought to the disk.
    #[error("cannot sync the manager's state: {0}")]
    Sync(#[source] io::Error),
    /// A newer Muster has written it.
    #[error("the manager's state {} is of version {version}, which this Muster does not know; start the newer one again", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// A record cannot be written as text.
    #[error("a record of the manager's state cannot be written")]
    Encode(#[source] serde_json::Error),
    /// A row is not readable.
    #[error("job {job} in the manager's state is not readable")]
    Row {
        /// The job.
        job: RunName,
        /// What is wrong with it.
        source: io::Error,
    },
}

/// One job, as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredJob {
    /// Its name at agents.
    pub run: RunName,
    /// The runner that it was taken with; none where its settings cannot be read any more.
    pub runner: Option<Arc<RunnerSettings>>,
    /// As it came from the coordinator.
    pub payload: JobPayload,
    /// Where it stands.
    pub state: JobState,
    /// When it was taken, in milliseconds of Unix time.
    pub taken_ms: i64,
}

impl StoredJob {
    /// What the ids of its runs at agents begin with.
    #[must_use]
    pub fn at_agents(&self) -> String {
        self.run.at_agents(&self.payload.token)
    }
}

/// A job that could not be stored.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct NotTaken {
    /// Why.
    pub error: StoreError,
    /// The job, as it came.
    pub payload: JobPayload,
    /// It was stored before: only its lane's new key was not.
    pub known: bool,
}

/// The manager's durable state.
#[derive(Debug)]
pub struct Store {
    books: Arc<Mutex<Books>>,
    keeper: Keeper,
    /// The runners whose settings are stored, with their digests.
    runners: Mutex<HashMap<RunnerKey, (Arc<RunnerSettings>, String)>>,
    _lock: File,
}

impl Store {
    /// Whether a manager has had its state in this directory.
    ///
    /// # Errors
    /// The directory cannot be looked into.
    pub fn is_there(directory: &Path) -> io::Result<bool> {
        directory.join(LOCK).try_exists()
    }

    /// Opens `<directory>/state.log`, makes it if need be; a new directory is its owner's only.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn open(directory: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Directory { path: directory.to_owned(), source };
        muster_files::private_directory(directory).map_err(failed)?;
        let lock = private_file(&directory.join(LOCK)).map_err(failed)?;
        let started = Instant::now();
        while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            match error {
                rustix::io::Errno::WOULDBLOCK if started.elapsed() < COPY_LIMIT => tokio::time::sleep(COPY_LOOK).await,
                rustix::io::Errno::WOULDBLOCK => return Err(StoreError::InUse(directory.to_owned())),
                error => return Err(failed(error.into())),
            }
        }
        let books = Books::open(&directory.join("state.log"))?;
        Ok(Self {
            books: Arc::new(Mutex::new(books)),
            keeper: Keeper::default(),
            runners: Mutex::default(),
            _lock: lock,
        })
    }

    /// The most bytes that the file may hold; it may be changed at any time. Past it nothing is stored, as on a full disk.
    #[must_use]
    pub fn limit(&self) -> Arc<AtomicU64> {
        self.books.lock().limit()
    }

    /// The jobs of an earlier start, oldest first. One that cannot be read stays, and is told.
    #[must_use]
    pub fn jobs(&self) -> Vec<StoredJob> {
        self.books.lock().jobs()
    }

    /// One job, if it is stored, with the `runner` that it was taken with.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn job(&self, run: &RunName, runner: &Arc<RunnerSettings>) -> Result<Option<StoredJob>, StoreError> {
        self.books.lock().job(run, runner)
    }

    /// The idempotency key that a lane of `runner` asks with, the same until a job came of it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn lane_key(&self, runner: &RunnerKey, lane: u32) -> Result<String, StoreError> {
        let known = {
            let books = self.books.lock();
            // Nothing is asked for that could not be stored.
            books.check()?;
            books.lane_key(runner, lane).map(str::to_owned)
        };
        match known {
            Some(key) => Ok(key),
            None => {
                let lane = Lane { runner: runner.clone(), lane, key: new_key() };
                self.add(|books| books.add(&Record::Lane(&lane)))?;
                Ok(lane.key)
            }
        }
    }

    /// R1: stores a job of `runner` before anything is done with it, and gives its lane a new key, both or neither.
    /// None where the job was stored before: it has its actor, and this answer is a repetition.
    ///
    /// # Errors
    /// [`NotTaken`], with the job.
    pub fn take(
        &self,
        runner: &Arc<RunnerSettings>,
        lane: u32,
        payload: JobPayload,
    ) -> Result<Option<StoredJob>, Box<NotTaken>> {
        let run = RunName::new(payload.id, &runner.url);
        let taken_ms = now_ms();
        match self.write_taken(runner, lane, &run, &payload, taken_ms) {
            Ok(true) => {
                let runner = Some(Arc::clone(runner));
                Ok(Some(StoredJob { run, runner, payload, state: JobState::taken(), taken_ms }))
            }
            Ok(false) => Ok(None),
            Err(error) => {
                let known = self.books.lock().knows(&run);
                Err(Box::new(NotTaken { error, payload, known }))
            }
        }
    }

    /// Whether the job is a new one.
    fn write_taken(
        &self,
        runner: &Arc<RunnerSettings>,
        lane: u32,
        run: &RunName,
        payload: &JobPayload,
        taken_ms: i64,
    ) -> Result<bool, StoreError> {
        let digest = self.digest(runner)?;
        let lane = Lane { runner: runner.key.clone(), lane, key: new_key() };
        self.add(|books| {
            if books.knows(run) {
                return books.add(&Record::Lane(&lane)).map(|()| false);
            }
            if !books.has_runner(&digest) {
                books.add(&Record::Runner { digest: &digest, settings: runner })?;
            }
            let (runner, lane) = (Some(digest.as_str()), Some(&lane));
            books.add(&Record::Job { run, runner, taken_ms, lane, payload }).map(|()| true)
        })
    }

    /// Stores where a job stands.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn set_state(&self, run: &RunName, state: &JobState) -> Result<(), StoreError> {
        self.add(|books| books.add(&Record::State { run, state }))
    }

    /// R6: nothing is left to do for the job.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn delete(&self, run: &RunName) -> Result<(), StoreError> {
        self.add(|books| books.add(&Record::Done { run }))
    }

    /// The digest of a runner's settings, which is made once for each.
    fn digest(&self, runner: &Arc<RunnerSettings>) -> Result<String, StoreError> {
        let mut runners = self.runners.lock();
        match runners.get(&runner.key).filter(|(known, _)| Arc::ptr_eq(known, runner)) {
            Some((_, digest)) => Ok(digest.clone()),
            None => {
                let settings = serde_json::to_string(&**runner).map_err(StoreError::Encode)?;
                let digest = format!("{:x}", Sha256::digest(&settings));
                runners.insert(runner.key.clone(), (Arc::clone(runner), digest.clone()));
                Ok(digest)
            }
        }
    }

    /// Writes, and sees to it that it comes to the disk.
    fn add<T>(&self, write: impl FnOnce(&mut Books) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let written = write(&mut self.books.lock());
        self.keeper.wake(&self.books);
        written
    }
}

/// An idempotency key that nobody has used.
fn new_key() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
