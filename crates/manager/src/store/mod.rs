//! `state.log`: the manager's durable state. A lock file excludes a second manager.
//!
//! A loss of power may remove the lines of the last second. The coordinator and the agent's spool then show what has become of these jobs.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use muster_config::settings::{RunnerKey, RunnerSettings};
use muster_runner_api::payload::JobPayload;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use crate::clock::unix_now_ms;
use crate::state::JobState;

mod index;
mod job_run_id;
mod log;
mod record;
mod sync;
#[cfg(test)]
mod tests;

use index::StateIndex;
pub use job_run_id::JobRunId;
use record::{Lane, Record};
use sync::SyncTask;

/// Held by the manager that uses the directory.
const LOCK: &str = "manager.lock";

/// A child process of a killed manager may still hold the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Errors of the manager's state.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another manager uses the directory.
    #[error("another manager uses the state directory {}; use a separate directory for each manager", .0.display())]
    InUse(PathBuf),
    /// The state directory is not usable.
    #[error("failed to use the state directory {}", path.display())]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file cannot be read or written.
    #[error("failed to read or write {}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file cannot be synced to disk.
    #[error("failed to sync state.log")]
    Sync(#[source] io::Error),
    /// A newer version of Muster has written the file.
    #[error("{} has version {version}, which this version of Muster does not support; use the version that wrote it, or a newer one", path.display())]
    Newer {
        /// Path of the file.
        path: PathBuf,
        /// Version of its format.
        version: u32,
    },
    /// A record cannot be encoded as JSON.
    #[error("failed to encode a record of state.log")]
    Encode(#[source] serde_json::Error),
    /// A job's row is damaged.
    #[error("failed to read job {job} in state.log")]
    Row {
        /// ID of the job.
        job: JobRunId,
        /// Cause of the error.
        source: io::Error,
    },
}

/// A job as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredJob {
    /// ID of the job, unique among all coordinators.
    pub run: JobRunId,
    /// Runner that received the job. `None` if its settings can no longer be read.
    pub runner: Option<Arc<RunnerSettings>>,
    /// Payload from the coordinator.
    pub payload: JobPayload,
    /// State of the job.
    pub state: JobState,
    /// Time at which the job was received, in milliseconds since 1970.
    pub received_ms: i64,
}

impl StoredJob {
    /// Returns the prefix of the IDs of the job's runs at agents.
    #[must_use]
    pub fn agent_run_prefix(&self) -> String {
        self.run.agent_run_prefix(&self.payload.token)
    }
}

/// What became of a received job.
#[derive(Debug, Clone, PartialEq)]
pub enum Insertion {
    /// The job is new and stored.
    New(Box<StoredJob>),
    /// The same assignment of the job was stored before.
    Duplicate,
    /// An earlier assignment of the job is still stored. The lane keeps its key, and a repeated request with this key
    /// gets the later assignment again.
    Superseding,
}

/// A job that could not be stored.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct StoreJobError {
    /// Cause of the failure.
    pub error: StoreError,
    /// Payload of the job.
    pub payload: JobPayload,
    /// Whether the job was stored before, so that only the new key of its lane could not be stored.
    pub known: bool,
}

/// The manager's durable state.
#[derive(Debug)]
pub struct Store {
    index: Arc<Mutex<StateIndex>>,
    sync: SyncTask,
    /// Runners with the digests of their settings.
    runners: Mutex<HashMap<RunnerKey, (Arc<RunnerSettings>, String)>>,
    _lock: File,
}

impl Store {
    /// Returns whether a manager has used this directory for its state.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn exists(directory: &Path) -> io::Result<bool> {
        directory.join(LOCK).try_exists()
    }

    /// Opens `<directory>/state.log`, and creates it if necessary. Only the owner can access a new directory.
    ///
    /// # Errors
    /// [`StoreError`] if another manager uses the directory, or the file cannot be read.
    pub async fn open(directory: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Directory { path: directory.to_owned(), source };
        muster_files::private_directory(directory).map_err(failed)?;
        let lock = private_file(&directory.join(LOCK)).map_err(failed)?;
        let started = Instant::now();
        while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            match error {
                rustix::io::Errno::WOULDBLOCK if started.elapsed() < LOCK_TIMEOUT => {
                    tokio::time::sleep(LOCK_POLL_INTERVAL).await
                }
                rustix::io::Errno::WOULDBLOCK => return Err(StoreError::InUse(directory.to_owned())),
                error => return Err(failed(error.into())),
            }
        }
        let index = StateIndex::open(&directory.join("state.log"))?;
        Ok(Self {
            index: Arc::new(Mutex::new(index)),
            sync: SyncTask::default(),
            runners: Mutex::default(),
            _lock: lock,
        })
    }

    /// Returns the limit on the file's size in bytes, which may be changed at any time. Beyond it, nothing is stored, as on a full disk.
    #[must_use]
    pub fn limit(&self) -> Arc<AtomicU64> {
        self.index.lock().limit()
    }

    /// Returns the jobs of an earlier manager process, oldest first. A job that cannot be read is logged and keeps its row.
    #[must_use]
    pub fn jobs(&self) -> Vec<StoredJob> {
        self.index.lock().jobs()
    }

    /// Returns one job. `runner` is the runner that received it. `None` if the job is not stored.
    ///
    /// # Errors
    /// [`StoreError`] if the row cannot be read.
    pub fn job(&self, run: &JobRunId, runner: &Arc<RunnerSettings>) -> Result<Option<StoredJob>, StoreError> {
        self.index.lock().job(run, runner)
    }

    /// Returns the idempotency key of a lane of `runner`. The key changes only when the lane gets a job.
    ///
    /// # Errors
    /// [`StoreError`] if a new key cannot be stored.
    pub fn lane_key(&self, runner: &RunnerKey, lane: u32) -> Result<String, StoreError> {
        let known = {
            let index = self.index.lock();
            // No job may be requested if it could not be stored.
            index.check()?;
            index.lane_key(runner, lane).map(str::to_owned)
        };
        match known {
            Some(key) => Ok(key),
            None => {
                let lane = Lane { runner: runner.clone(), lane, key: new_key() };
                self.add(|index| index.add(&Record::Lane(&lane)))?;
                Ok(lane.key)
            }
        }
    }

    /// Returns the lanes of `runner` that have a key.
    #[must_use]
    pub fn lanes_of(&self, runner: &RunnerKey) -> BTreeSet<u32> {
        self.index.lock().lanes_of(runner)
    }

    /// Deletes the lanes of a runner that is no longer configured, except those that `is_kept` selects.
    ///
    /// If the runner is configured again, a deleted lane gets a new key. A lane with a request that may have been
    /// answered with a job must therefore be kept, because only its key brings that job again.
    ///
    /// # Errors
    /// [`StoreError`] if the deletion cannot be written.
    pub fn remove_lanes(&self, runner: &RunnerKey, is_kept: impl Fn(u32) -> bool) -> Result<(), StoreError> {
        self.runners.lock().remove(runner);
        let removed: Vec<u32> = self.lanes_of(runner).into_iter().filter(|lane| !is_kept(*lane)).collect();
        if removed.is_empty() {
            return Ok(());
        }
        self.add(|index| removed.into_iter().try_for_each(|lane| index.add(&Record::RemovedLane { runner, lane })))
    }

    /// Stores a job of `runner` together with a new key of its lane (R1). After a crash, both are stored or neither.
    ///
    /// # Errors
    /// [`StoreJobError`] with the payload.
    pub fn insert_job(
        &self,
        runner: &Arc<RunnerSettings>,
        lane: u32,
        payload: JobPayload,
    ) -> Result<Insertion, Box<StoreJobError>> {
        let run = JobRunId::new(payload.id, &runner.url);
        let received_ms = i64::try_from(unix_now_ms()).unwrap_or(i64::MAX);
        match self.write_received(runner, lane, &run, &payload, received_ms) {
            Ok(None) => {
                let runner = Some(Arc::clone(runner));
                let job = StoredJob { run, runner, payload, state: JobState::received(), received_ms };
                Ok(Insertion::New(Box::new(job)))
            }
            Ok(Some(known)) => Ok(known),
            Err(error) => {
                let known = self.index.lock().contains(&run);
                Err(Box::new(StoreJobError { error, payload, known }))
            }
        }
    }

    /// Returns `None` if the job is new, and otherwise why it was not stored.
    fn write_received(
        &self,
        runner: &Arc<RunnerSettings>,
        lane: u32,
        run: &JobRunId,
        payload: &JobPayload,
        received_ms: i64,
    ) -> Result<Option<Insertion>, StoreError> {
        let digest = self.digest(runner)?;
        let lane = Lane { runner: runner.key.clone(), lane, key: new_key() };
        self.add(|index| {
            match index.token(run) {
                Some(Ok(token)) if token != payload.token => return Ok(Some(Insertion::Superseding)),
                Some(_) => return index.add(&Record::Lane(&lane)).map(|()| Some(Insertion::Duplicate)),
                None => {}
            }
            if !index.has_runner(&digest) {
                index.add(&Record::Runner { digest: &digest, settings: runner })?;
            }
            let (runner, lane) = (Some(digest.as_str()), Some(&lane));
            index.add(&Record::Job { run, runner, received_ms, lane, payload }).map(|()| None)
        })
    }

    /// Stores the state of a job.
    ///
    /// # Errors
    /// [`StoreError`] if the state cannot be written.
    pub fn set_state(&self, run: &JobRunId, state: &JobState) -> Result<(), StoreError> {
        self.add(|index| index.add(&Record::State { run, state }))
    }

    /// Deletes a job for which nothing is left to do (R6).
    ///
    /// # Errors
    /// [`StoreError`] if the deletion cannot be written.
    pub fn delete(&self, run: &JobRunId) -> Result<(), StoreError> {
        self.add(|index| index.add(&Record::Removed { run }))
    }

    /// Returns the digest of the runner's settings, which is computed only if they have changed.
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

    /// Calls `write`, and ensures that the file is synced afterwards.
    fn add<T>(&self, write: impl FnOnce(&mut StateIndex) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let written = write(&mut self.index.lock());
        self.sync.wake(&self.index);
        written
    }
}

fn new_key() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
}
