//! What an agent keeps on disk about its jobs, so that neither a lost connection nor its own death loses one.
//!
//! ```text
//! spool/
//!   agent.lock          held by the agent that owns the spool; its process id
//!   reserve             space that is given back when the disk is full, for last words and results
//!   <job>/request       the `Run`, written before anything starts (0600: it holds the job's secrets)
//!   <job>/journal       what was started, line by line, before it runs the user's code
//!   <job>/log           the trace, byte for byte
//!   <job>/result.json   how it ended; written before anyone is told
//! ```
//! Each file but the log starts with, or holds, the version of its format. Nothing is synced: after a loss of power
//! the last second may be missing, and what cannot be read counts as not written.

mod journal;
mod log;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use muster_agent_api::result::JobResult;
use muster_agent_api::step_runner::RunRequest;
use prost::Message;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

pub(crate) use journal::{Journal, Past};
pub(crate) use log::{LogFile, LogSink};

/// First line of a request file.
const REQUEST_HEAD: &[u8] = b"muster request 1\n";
/// Version of the result file.
const RESULT_VERSION: u32 = 1;
/// Space held back for the results of jobs that run when the disk becomes full.
const RESERVE: usize = 128 * 1024;
/// The longest id of a job.
const MAX_ID: usize = 128;

/// Why a spool cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// Another agent owns it.
    #[error("another agent (process {pid}) uses the spool `{}`: stop it first, or give this one a spool of its own", path.display())]
    Taken {
        /// The other agent.
        pid: String,
        /// The spool.
        path: PathBuf,
    },
    /// The disk.
    #[error("cannot use the spool `{}`", path.display())]
    Io {
        /// The spool.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// The spool of an agent.
#[derive(Debug)]
pub(crate) struct Spool {
    root: PathBuf,
    /// Held as long as the agent lives.
    _lock: File,
}

#[derive(Serialize, Deserialize)]
struct ResultFile {
    version: u32,
    result: JobResult,
}

impl Spool {
    /// Takes a spool, making it where there is none.
    pub(crate) fn open(root: &Path) -> Result<Self, SpoolError> {
        let failed = |source| SpoolError::Io { path: root.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(failed)?;
        let path = root.join("agent.lock");
        let open = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let mut lock = open.map_err(failed)?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            let _ = lock.read_to_string(&mut pid);
            return Err(SpoolError::Taken { pid: pid.trim().to_owned(), path: root.to_owned() });
        }
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(failed)?;
        let spool = Self { root: root.to_owned(), _lock: lock };
        spool.make_reserve();
        Ok(spool)
    }

    /// Where the templates of checkouts are.
    pub(crate) fn templates(&self) -> PathBuf {
        self.root.join(".templates")
    }

    /// The entry of a job, whether it exists or not. None if the id cannot be a directory's name.
    pub(crate) fn entry(&self, id: &str) -> Option<Entry> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let good = !id.is_empty()
            && id.len() <= MAX_ID
            && id.chars().all(fits)
            && !id.starts_with('.')
            && !matches!(id, "agent.lock" | "reserve");
        good.then(|| Entry { id: id.to_owned(), dir: self.root.join(id) })
    }

    /// Every entry, in the order of their names.
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

    /// Gives back the reserve: the disk is full, and results have to be written.
    pub(crate) fn release_reserve(&self) {
        let _ = fs::remove_file(self.root.join("reserve"));
    }

    /// Takes the reserve again, if there is room.
    pub(crate) fn make_reserve(&self) {
        let path = self.root.join("reserve");
        if fs::metadata(&path).is_ok_and(|metadata| metadata.len() == RESERVE as u64) {
            return;
        }
        if let Err(error) = fs::write(&path, vec![0; RESERVE]) {
            tracing::warn!(%error, "no space can be held back for results");
            let _ = fs::remove_file(&path);
        }
    }
}

/// What the spool holds of one job.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) id: String,
    dir: PathBuf,
}

impl Entry {
    /// Writes the request, whole or not at all. What an earlier attempt that started nothing has logged stays.
    pub(crate) fn create(&self, request: &RunRequest) -> io::Result<()> {
        match fs::DirBuilder::new().mode(0o700).create(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let mut bytes = REQUEST_HEAD.to_vec();
        bytes.extend(request.encode_to_vec());
        self.write_whole("request", &bytes)
    }

    /// The request, if there is a whole one.
    pub(crate) fn request(&self) -> Option<RunRequest> {
        let bytes = fs::read(self.dir.join("request")).ok()?;
        RunRequest::decode(bytes.strip_prefix(REQUEST_HEAD)?).ok()
    }

    pub(crate) fn journal(&self, boot: &str) -> io::Result<Journal> {
        Journal::open(&self.dir.join("journal"), boot)
    }

    /// What an agent before this one wrote to the journal.
    pub(crate) fn past(&self) -> Past {
        Past::read(&self.dir.join("journal"))
    }

    pub(crate) fn log(&self) -> io::Result<LogFile> {
        LogFile::open(&self.dir.join("log"))
    }

    pub(crate) fn write_result(&self, result: &JobResult) -> io::Result<()> {
        let file = ResultFile { version: RESULT_VERSION, result: result.clone() };
        self.write_whole("result.json", &serde_json::to_vec(&file)?)
    }

    pub(crate) fn result(&self) -> Option<JobResult> {
        let file: ResultFile = serde_json::from_slice(&fs::read(self.dir.join("result.json")).ok()?).ok()?;
        (file.version == RESULT_VERSION).then_some(file.result)
    }

    /// How long ago the job ended, or the entry was touched last.
    pub(crate) fn age(&self) -> Duration {
        let touched = fs::metadata(self.dir.join("result.json")).or_else(|_| fs::metadata(&self.dir));
        let touched = touched.and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::now());
        SystemTime::now().duration_since(touched).unwrap_or_default()
    }

    /// Removes the entry; it is no error if there is none.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn write_whole(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let part = self.dir.join(format!("{name}.part"));
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        let written = file.write_all(bytes).and_then(|()| fs::rename(&part, self.dir.join(name)));
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written
    }
}

#[cfg(test)]
mod tests;
