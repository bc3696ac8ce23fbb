//! What an agent keeps on disk about its jobs, so that neither a lost connection nor its own death loses one.
//!
//! ```text
//! spool/
//!   agent.lock          held by the agent that owns the spool; its process id, and whether it is about to end
//!   reserve             space that is given back when the disk is full, for last words and results
//!   <job>/journal       the `Run`, written before anything starts (0600: it holds the job's secrets); what was
//!                       started; how it ended, written before anyone is told
//!   <job>/log           the trace, byte for byte
//!   .free/              directories of jobs that are over, emptied
//! ```
//! The journal starts with the version of its format. Nothing is synced: after a loss of power the last second may be
//! missing, and what cannot be read counts as not written.

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

pub(crate) use journal::{Journal, Past};
pub(crate) use log::{LogFile, LogSink};
use quota::{Quota, Share};
use recycle::Recycler;

const LOCK: &str = "agent.lock";
/// What is read of it: a process id and a word.
const LOCK_BYTES: u64 = 64;
const JOURNAL: &str = "journal";
const LOG: &str = "log";
/// What an entry holds.
const FILES: [&str; 2] = [JOURNAL, LOG];
/// Space held back for the results of jobs that run when the disk becomes full.
const RESERVE: usize = 128 * 1024;
/// The line of an agent's lock, after its process id, that says that it is about to end.
const ENDING: &str = "ending";
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
        /// It is about to end, and takes no calls any more.
        is_ending: bool,
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
    recycler: Arc<Recycler>,
    quota: Arc<Quota>,
    /// Held as long as the agent lives.
    lock: File,
}

impl Spool {
    /// Takes a spool, making it where there is none. All jobs together may keep `limit` bytes in it.
    pub(crate) fn open(root: &Path, limit: u64) -> Result<Self, SpoolError> {
        let failed = |source| SpoolError::Io { path: root.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(failed)?;
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut lock = muster_files::open_with(options, &root.join(LOCK)).map_err(|error| failed(error.into()))?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut text = String::new();
            let _ = (&lock).take(LOCK_BYTES).read_to_string(&mut text);
            let mut lines = text.lines();
            let pid = lines.next().unwrap_or_default().trim().to_owned();
            return Err(SpoolError::Taken { pid, path: root.to_owned(), is_ending: lines.next() == Some(ENDING) });
        }
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(failed)?;
        let recycler = Arc::new(Recycler::open(root.join(".free")).map_err(failed)?);
        let spool = Self { root: root.to_owned(), recycler, quota: Quota::new(limit), lock };
        for entry in spool.entries().map_err(failed)? {
            entry.share.found(&entry.id, entry.bytes());
        }
        spool.make_reserve();
        Ok(spool)
    }

    /// Says to the next agent of this spool that it need not wait long.
    pub(crate) fn say_ending(&self) {
        if let Err(error) = writeln!(&self.lock, "{ENDING}") {
            tracing::debug!(%error, "the next agent is not told that this one ends");
        }
    }

    /// Whether the directory is still the one that was taken: it may have been removed, and made again by another agent.
    pub(crate) fn is_there(&self) -> bool {
        let id = |metadata: io::Result<fs::Metadata>| metadata.ok().map(|file| (file.dev(), file.ino()));
        let own = id(self.lock.metadata());
        own.is_some() && own == id(fs::metadata(self.root.join(LOCK)))
    }

    /// Whether it has no job, of whatever state. One that was removed has none.
    pub(crate) fn is_empty(&self) -> bool {
        match self.entries() {
            Ok(entries) => entries.is_empty(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
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
            && !matches!(id, LOCK | "reserve");
        good.then(|| Entry {
            id: id.to_owned(),
            dir: self.root.join(id),
            recycler: Arc::clone(&self.recycler),
            quota: Arc::clone(&self.quota),
            share: self.quota.share(id),
        })
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
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_file() && found.len() == RESERVE as u64) {
            return;
        }
        let made = remove_if_there(&path)
            .and_then(|()| File::options().write(true).create_new(true).mode(0o600).open(&path))
            .and_then(|mut file| file.write_all(&vec![0; RESERVE]));
        if let Err(error) = made {
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
    recycler: Arc<Recycler>,
    quota: Arc<Quota>,
    share: Share,
}

impl Entry {
    /// Writes the request, whole or not at all. What an earlier attempt that started nothing has logged stays.
    pub(crate) fn create(&self, request: &RunRequest) -> io::Result<Journal> {
        if !self.recycler.take(&self.dir) {
            match fs::DirBuilder::new().mode(0o700).create(&self.dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Err(_) => remove_if_there(&self.dir.join(JOURNAL))?,
                Ok(()) => {}
            }
        }
        self.share.found(&self.id, self.bytes());
        let made = self
            .share
            .take(request.encoded_len() as u64)
            .and_then(|()| Journal::create(&self.dir.join(JOURNAL), request));
        if made.is_err() {
            // `Run` is refused, so nobody will close the job.
            let _ = self.remove();
        }
        made
    }

    /// The journal, to go on with.
    pub(crate) fn journal(&self) -> io::Result<Journal> {
        Journal::open(&self.dir.join(JOURNAL))
    }

    /// What the journal says.
    pub(crate) fn past(&self) -> io::Result<Past> {
        Past::read(&self.dir)
    }

    pub(crate) fn log(&self) -> io::Result<LogFile> {
        LogFile::open(&self.dir.join(LOG), self.share.clone())
    }

    /// How long ago the job ended, or the entry was touched last.
    pub(crate) fn age(&self) -> Duration {
        let paths = [self.dir.join(JOURNAL), self.dir.clone()];
        let touched = paths.iter().find_map(|path| fs::metadata(path).ok());
        let touched = touched.and_then(|metadata| metadata.modified().ok()).unwrap_or(SystemTime::now());
        SystemTime::now().duration_since(touched).unwrap_or_default()
    }

    /// Removes the entry on a thread for blocking calls, because it may hold many files. Succeeds if there is no entry.
    pub(crate) async fn remove_apart(&self) -> io::Result<()> {
        let entry = self.clone();
        tokio::task::spawn_blocking(move || entry.remove()).await?
    }

    /// Removes the entry; it is no error if there is none.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.recycler.give(&self.dir)?;
        self.quota.give_back(&self.id);
        Ok(())
    }

    /// The bytes of what counts.
    fn bytes(&self) -> u64 {
        let files = FILES.map(|name| fs::metadata(self.dir.join(name)));
        files.into_iter().flatten().map(|metadata| metadata.len()).sum()
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
