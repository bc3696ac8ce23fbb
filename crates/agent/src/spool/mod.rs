//! Files of the agent about its jobs, which survive a lost connection and a killed agent.
//!
//! ```text
//! spool/
//!   agent.lock          locked by the owner of the spool; contains its process ID, and whether it is shutting down
//!   reserve             space for final messages and results on a full disk
//!   <job>/journal       the `Run` request with the job's secrets (mode 0600), then started processes, then the result
//!   <job>/log           the trace, byte for byte
//!   <job>/tmp/          file variables, outputs and exports of a step file
//!   .free/              emptied directories of finished jobs
//!   .templates/         templates for checkouts
//!   .steps/             cache of remote steps
//!   .prepared-containers  engines that have prepared containers
//! ```
//! Nothing is synced to disk: a power failure may lose the last seconds. See [`journal`] for the meaning of an
//! incomplete record.

mod journal;
mod log;
mod quota;
mod recycle;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use muster_agent_api::step_runner::RunRequest;
use prost::Message;
use rustix::fs::FlockOperation;

pub(crate) use journal::{Journal, JournalContents};
pub(crate) use log::{LogFile, LogSink};
use quota::{JobQuota, Quota};
use recycle::Recycler;

const LOCK: &str = "agent.lock";
const MAX_LOCK_BYTES: u64 = 64;
const JOURNAL: &str = "journal";
const LOG: &str = "log";
const TEMP_DIR: &str = "tmp";
const FILES: [&str; 2] = [JOURNAL, LOG];
/// Reserve for results on a full disk.
const RESERVE_BYTES: usize = 128 * 1024;
const SHUTTING_DOWN: &str = "shutting down";
const MAX_ID_BYTES: usize = 128;

/// Reason why a spool cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// Another agent owns the spool.
    #[error("another agent (process {pid}) uses the spool {}; stop it, or use another spool", path.display())]
    InUse {
        /// Process ID of the other agent.
        pid: String,
        /// Path of the spool.
        path: PathBuf,
        /// Whether the other agent is shutting down.
        is_shutting_down: bool,
    },
    /// A file or directory of the spool cannot be used.
    #[error("failed to open the spool {}", path.display())]
    Io {
        /// Path of the spool.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

#[derive(Debug)]
pub(crate) struct Spool {
    root: PathBuf,
    recycler: Arc<Recycler>,
    quota: Arc<Quota>,
    /// Locked while the agent runs.
    lock: File,
}

impl Spool {
    /// Opens or creates a spool, in which all jobs may use `limit` bytes.
    pub(crate) fn open(root: &Path, limit: u64) -> Result<Self, SpoolError> {
        let failed = |source| SpoolError::Io { path: root.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(failed)?;
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut lock = muster_files::open_with(options, &root.join(LOCK)).map_err(|error| failed(error.into()))?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut text = String::new();
            let _ = (&lock).take(MAX_LOCK_BYTES).read_to_string(&mut text);
            let mut lines = text.lines();
            let pid = lines.next().unwrap_or_default().trim().to_owned();
            return Err(SpoolError::InUse {
                pid,
                path: root.to_owned(),
                is_shutting_down: lines.next() == Some(SHUTTING_DOWN),
            });
        }
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(failed)?;
        let recycler = Arc::new(Recycler::open(root.join(".free")).map_err(failed)?);
        let spool = Self { root: root.to_owned(), recycler, quota: Quota::new(limit), lock };
        for entry in spool.entries().map_err(failed)? {
            entry.job_quota.count_existing(&entry.id, entry.bytes());
        }
        spool.make_reserve();
        Ok(spool)
    }

    pub(crate) fn mark_shutting_down(&self) {
        if let Err(error) = writeln!(&self.lock, "{SHUTTING_DOWN}") {
            tracing::debug!(%error, "failed to mark the agent as shutting down");
        }
    }

    pub(crate) fn exists(&self) -> bool {
        let id = |metadata: io::Result<fs::Metadata>| metadata.ok().map(|file| (file.dev(), file.ino()));
        let locked = id(self.lock.metadata());
        locked.is_some() && locked == id(fs::metadata(self.root.join(LOCK)))
    }

    /// Returns whether the spool has no jobs, or was deleted.
    pub(crate) fn is_empty(&self) -> bool {
        match self.entries() {
            Ok(entries) => entries.is_empty(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    pub(crate) fn templates(&self) -> PathBuf {
        self.root.join(".templates")
    }

    pub(crate) fn prepared_containers(&self) -> PathBuf {
        self.root.join(".prepared-containers")
    }

    pub(crate) fn step_cache(&self) -> PathBuf {
        self.root.join(".steps")
    }

    /// Returns the entry of a job, which may not exist yet. `None` means that the ID is not a valid directory name.
    pub(crate) fn entry(&self, id: &str) -> Option<Entry> {
        let is_valid_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let is_valid = !id.is_empty()
            && id.len() <= MAX_ID_BYTES
            && id.chars().all(is_valid_char)
            && !id.starts_with('.')
            && !matches!(id, LOCK | "reserve");
        is_valid.then(|| Entry {
            id: id.to_owned(),
            dir: self.root.join(id),
            recycler: Arc::clone(&self.recycler),
            quota: Arc::clone(&self.quota),
            job_quota: self.quota.job(id),
        })
    }

    pub(crate) fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            if entry.file_type()?.is_dir()
                && let Some(entry) = entry.file_name().to_str().and_then(|id| self.entry(id))
            {
                entries.push(entry);
            }
        }
        entries.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(entries)
    }

    /// Frees the reserve, so that results can be written.
    pub(crate) fn release_reserve(&self) {
        let _ = fs::remove_file(self.root.join("reserve"));
    }

    /// Restores the reserve if the disk has enough space.
    pub(crate) fn make_reserve(&self) {
        let path = self.root.join("reserve");
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_file() && found.len() == RESERVE_BYTES as u64) {
            return;
        }
        let created = remove_if_exists(&path)
            .and_then(|()| File::options().write(true).create_new(true).mode(0o600).open(&path))
            .and_then(|mut file| file.write_all(&vec![0; RESERVE_BYTES]));
        if let Err(error) = created {
            tracing::warn!(%error, "failed to reserve space for results");
            let _ = fs::remove_file(&path);
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) id: String,
    dir: PathBuf,
    recycler: Arc<Recycler>,
    quota: Arc<Quota>,
    job_quota: JobQuota,
}

impl Entry {
    /// Writes the whole request, and opens the log. After an error, nothing remains. Keeps the log of an earlier
    /// attempt.
    pub(crate) fn create(&self, request: &RunRequest) -> io::Result<(Journal, LogFile)> {
        if !self.recycler.take(&self.dir) {
            match fs::DirBuilder::new().mode(0o700).create(&self.dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Err(_) => remove_if_exists(&self.dir.join(JOURNAL))?,
                Ok(()) => {}
            }
        }
        self.job_quota.count_existing(&self.id, self.bytes());
        let created = self
            .job_quota
            .reserve(request.encoded_len() as u64)
            .and_then(|()| Journal::create(&self.dir.join(JOURNAL), request))
            .and_then(|journal| Ok((journal, self.log()?)));
        if created.is_err() {
            // The refused `Run` has no manager that closes the job.
            let _ = self.remove();
        }
        created
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn temp_dir(&self) -> PathBuf {
        self.dir.join(TEMP_DIR)
    }

    pub(crate) fn journal(&self) -> io::Result<Journal> {
        Journal::open(&self.dir.join(JOURNAL))
    }

    pub(crate) fn read_journal(&self) -> io::Result<JournalContents> {
        JournalContents::read(&self.dir)
    }

    pub(crate) fn log(&self) -> io::Result<LogFile> {
        LogFile::open(&self.dir.join(LOG), self.job_quota.clone())
    }

    /// Returns the time since the last write to the journal. For a finished job, this is the time since its end.
    /// Without a journal, returns the time since the last change of the directory.
    pub(crate) fn age(&self) -> Duration {
        let paths = [self.dir.join(JOURNAL), self.dir.clone()];
        let metadata = paths.iter().find_map(|path| fs::metadata(path).ok());
        let modified = metadata.and_then(|metadata| metadata.modified().ok()).unwrap_or(SystemTime::now());
        SystemTime::now().duration_since(modified).unwrap_or_default()
    }

    /// Deletes the entry on a blocking thread, because the entry may contain many files.
    pub(crate) async fn remove_on_blocking_thread(&self) -> io::Result<()> {
        let entry = self.clone();
        tokio::task::spawn_blocking(move || entry.remove()).await?
    }

    /// Deletes the entry, if it exists. Blocks the thread.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.recycler.put(&self.dir)?;
        self.quota.release(&self.id);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        let request = journal::request_bytes(&self.dir.join(JOURNAL)).unwrap_or_default();
        request + fs::metadata(self.dir.join(LOG)).map_or(0, |log| log.len())
    }
}

fn remove_if_exists(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
