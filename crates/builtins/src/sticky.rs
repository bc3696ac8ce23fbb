//! Sticky contexts: directories that jobs of one project and protection level share on a machine.
//!
//! ```text
//! <root>/<name>/       directory of one context
//! <root>/<name>.lock   shared lock of jobs that use the directory
//! ```
//!
//! After each job, contexts that have been unused for too long are removed. Then the least recently used ones are
//! removed until all together are within the size limit.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use muster_agent_api::builtin::StickyContext;
use muster_files::DiskUsage;

use crate::named_lock::{self, Kind};
use crate::removal::remove_tree;

/// Maximum time to wait for another process that removes the context.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Sticky context in use by a job.
#[derive(Debug)]
pub(crate) struct StickyDir {
    settings: StickyContext,
    dir: PathBuf,
    lock: File,
    /// Time of the previous use. `None` means a new context.
    last_use: Option<SystemTime>,
}

impl StickyDir {
    /// Opens the context of a job. Creates it if necessary.
    ///
    /// # Errors
    /// The error of the system, [`io::ErrorKind::InvalidInput`] if the name is invalid, or [`io::ErrorKind::TimedOut`]
    /// if another process holds the lock.
    pub(crate) async fn open(settings: StickyContext) -> io::Result<Self> {
        if !named_lock::is_valid_name(&settings.name) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("`{}` is not a valid name of a sticky context", settings.name),
            ));
        }
        let lock = named_lock::lock(Path::new(&settings.root), &settings.name, Kind::Shared, LOCK_TIMEOUT).await?;
        tokio::task::spawn_blocking(move || Self::locked(settings, lock)).await.map_err(io::Error::other)?
    }

    fn locked(settings: StickyContext, lock: File) -> io::Result<Self> {
        let dir = Path::new(&settings.root).join(&settings.name);
        // A symbolic link could lead out of the root.
        let found = fs::symlink_metadata(&dir).ok();
        if found.as_ref().is_some_and(|metadata| !metadata.is_dir()) {
            fs::remove_file(&dir)?;
        }
        let last_use =
            if found.is_some_and(|metadata| metadata.is_dir()) { lock.metadata()?.modified().ok() } else { None };
        if last_use.is_none() {
            DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        }
        lock.set_modified(SystemTime::now())?;
        Ok(Self { settings, dir, lock, last_use })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn description(&self) -> String {
        match self.last_use {
            None => "Sticky context: new".to_owned(),
            Some(last) => {
                let ago = SystemTime::now().duration_since(last).unwrap_or_default();
                format!(
                    "Sticky context: reused from earlier jobs on this machine, last used {} ago",
                    human_readable(ago)
                )
            }
        }
    }

    /// Releases the context, and removes contexts until the rest is within the limits. Returns warnings for the trace.
    pub(crate) fn close(self) -> Vec<String> {
        let Self { settings, lock, .. } = self;
        if let Err(error) = lock.set_modified(SystemTime::now()) {
            tracing::warn!(%error, name = settings.name, "failed to record the use of a sticky context");
        }
        drop(lock);
        evict(&settings, SystemTime::now())
    }
}

/// Removes contexts that are too old, and then the least recently used ones until the rest is within the size limit.
/// Returns a warning if the job's own context was removed.
fn evict(limits: &StickyContext, now: SystemTime) -> Vec<String> {
    let root = Path::new(&limits.root);
    let mut remaining: Vec<(SystemTime, String, u64)> = Vec::new();
    for (name, last) in named_lock::last_uses(root) {
        let age = now.duration_since(last).unwrap_or_default();
        if limits.max_age_s > 0 && age > Duration::from_secs(limits.max_age_s) && remove(root, &name) {
            tracing::info!(name, age_s = age.as_secs(), "sticky context removed because it was not used for too long");
            continue;
        }
        let bytes = if limits.max_size_bytes > 0 { disk_usage(&root.join(&name)) } else { 0 };
        remaining.push((last, name, bytes));
    }
    remaining.sort();
    let mut total: u64 = remaining.iter().map(|(.., bytes)| bytes).sum();
    let mut warnings = Vec::new();
    for (_, name, bytes) in remaining {
        if limits.max_size_bytes == 0 || total <= limits.max_size_bytes {
            break;
        }
        if !remove(root, &name) {
            continue;
        }
        total = total.saturating_sub(bytes);
        tracing::info!(name, bytes, "sticky context removed because all contexts together exceeded the size limit");
        if name == limits.name {
            warnings.push(format!(
                "The sticky context was removed: its {} MiB exceed the limit of {} MiB for all contexts.",
                bytes >> 20,
                limits.max_size_bytes >> 20
            ));
        }
    }
    warnings
}

/// Removes a context unless a job uses it. Returns whether it was removed.
fn remove(root: &Path, name: &str) -> bool {
    let removed = named_lock::try_lock(root, name, Kind::Exclusive).and_then(|lock| {
        let Some(_lock) = lock else { return Ok(false) };
        remove_tree(&root.join(name))?;
        named_lock::remove(root, name).map(|()| true)
    });
    match removed {
        Ok(is_removed) => is_removed,
        Err(error) => {
            tracing::warn!(%error, name, "failed to remove a sticky context");
            false
        }
    }
}

/// Returns the disk space of a directory in bytes.
fn disk_usage(dir: &Path) -> u64 {
    let mut usage = DiskUsage::default();
    usage.add(dir, u64::MAX, &|| false);
    usage.bytes
}

fn human_readable(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds @ 3600..86_400 => format!("{} h", seconds / 3600),
        seconds @ 86_400..172_800 => format!("{} day", seconds / 86_400),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::FlockOperation;
    use tokio::time::Instant;

    use super::*;

    fn settings(root: &Path, name: &str) -> StickyContext {
        StickyContext {
            root: root.to_string_lossy().into_owned(),
            name: name.to_owned(),
            max_size_bytes: 0,
            max_age_s: 0,
        }
    }

    fn fill(sticky: &StickyDir, kib: usize) {
        fs::write(sticky.dir().join("file"), vec![1; kib * 1024]).unwrap();
    }

    fn set_last_use(root: &Path, name: &str, seconds: u64) {
        let time = SystemTime::now() - Duration::from_secs(seconds);
        named_lock::file(root, name).unwrap().set_modified(time).unwrap();
    }

    #[tokio::test]
    async fn fifo_in_place_of_lock_does_not_block() {
        let root = tempfile::tempdir().unwrap();
        let lock = root.path().join("trapped.lock");
        rustix::fs::mknodat(rustix::fs::CWD, &lock, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let error = StickyDir::open(settings(root.path(), "trapped")).await.unwrap_err();
        assert!(error.to_string().contains("it is a FIFO"), "{error}");
        // The lock is old, so the next job tries to remove its context.
        let limits = StickyContext { max_age_s: 1, ..settings(root.path(), "other") };
        let time = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, &lock, &times, rustix::fs::AtFlags::empty()).unwrap();
        StickyDir::open(limits).await.unwrap().close();
    }

    #[tokio::test(start_paused = true)]
    async fn lock_held_by_job_delays_only_its_own_context() {
        let root = tempfile::tempdir().unwrap();
        let own = StickyDir::open(settings(root.path(), "mine")).await.unwrap();
        // Scripts of a job can lock the file, too.
        let held = named_lock::file(root.path(), "mine").unwrap();
        drop(own);
        rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
        let start = Instant::now();
        let error = StickyDir::open(settings(root.path(), "mine")).await.unwrap_err();
        let message = format!("another process has held `{}/mine.lock` for 30 s", root.path().display());
        assert!(error.to_string().starts_with(&message), "{error}");
        assert_eq!((error.kind(), start.elapsed().as_secs()), (io::ErrorKind::TimedOut, 30));
        let start = Instant::now();
        StickyDir::open(settings(root.path(), "other")).await.unwrap().close();
        assert_eq!(start.elapsed().as_secs(), 0);
        drop(held);
        StickyDir::open(settings(root.path(), "mine")).await.unwrap();
    }

    #[tokio::test]
    async fn context_is_shared_only_by_jobs_with_the_same_context_name() {
        let root = tempfile::tempdir().unwrap();
        let first = StickyDir::open(settings(root.path(), "a-1-protected")).await.unwrap();
        assert_eq!(first.description(), "Sticky context: new");
        fill(&first, 1);
        assert!(first.close().is_empty());
        let next = StickyDir::open(settings(root.path(), "a-1-protected")).await.unwrap();
        assert!(
            next.description()
                .starts_with("Sticky context: reused from earlier jobs on this machine, last used 0 s ago"),
            "{}",
            next.description()
        );
        assert!(next.dir().join("file").exists());
        for other in ["a-1-unprotected", "a-2-protected", "b-1-protected"] {
            let other = StickyDir::open(settings(root.path(), other)).await.unwrap();
            assert_eq!(fs::read_dir(other.dir()).unwrap().count(), 0);
            assert_ne!(other.dir(), next.dir());
        }
        for invalid in ["", "..", "a/b", "a.lock"] {
            assert!(StickyDir::open(settings(root.path(), invalid)).await.is_err(), "{invalid}");
        }
    }

    #[test]
    fn durations_have_one_unit() {
        let texts =
            [59, 60, 7200, 86_400, 172_799, 172_800].map(|seconds| human_readable(Duration::from_secs(seconds)));
        assert_eq!(texts, ["59 s", "1 min", "2 h", "1 day", "1 day", "2 days"]);
    }

    #[tokio::test]
    async fn symlink_in_place_of_context_is_not_followed() {
        let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(elsewhere.path().join("secret"), "").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), root.path().join("a-1-protected")).unwrap();
        let sticky = StickyDir::open(settings(root.path(), "a-1-protected")).await.unwrap();
        assert_eq!(fs::read_dir(sticky.dir()).unwrap().count(), 0);
        assert!(elsewhere.path().join("secret").exists());
    }

    #[tokio::test]
    async fn old_context_is_removed_unless_in_use() {
        let root = tempfile::tempdir().unwrap();
        let limits = |name: &str| StickyContext { max_age_s: 100, ..settings(root.path(), name) };
        for name in ["old", "young", "held"] {
            StickyDir::open(limits(name)).await.unwrap().close();
        }
        let held = StickyDir::open(limits("held")).await.unwrap();
        for (name, age) in [("old", 101), ("young", 60), ("held", 1000)] {
            set_last_use(root.path(), name, age);
        }
        StickyDir::open(limits("young")).await.unwrap().close();
        assert!(!root.path().join("old").exists() && !root.path().join("old.lock").exists());
        assert!(root.path().join("young").exists() && held.dir().exists());
    }

    #[tokio::test]
    async fn least_recently_used_context_is_removed_first() {
        let root = tempfile::tempdir().unwrap();
        let limits = |name: &str| StickyContext { max_size_bytes: 1 << 20, ..settings(root.path(), name) };
        for (name, age) in [("one", 30), ("two", 20), ("three", 10)] {
            let sticky = StickyDir::open(limits(name)).await.unwrap();
            fill(&sticky, 300);
            sticky.close();
            set_last_use(root.path(), name, age);
        }
        let four = StickyDir::open(limits("four")).await.unwrap();
        fill(&four, 300);
        assert!(four.close().is_empty());
        let exists = |name: &str| root.path().join(name).exists();
        assert_eq!(["one", "two", "three", "four"].map(exists), [false, true, true, true]);
        let large = StickyDir::open(limits("large")).await.unwrap();
        fill(&large, 2000);
        let warnings = large.close();
        assert!(warnings.len() == 1 && warnings[0].contains("exceed the limit of 1 MiB"), "{warnings:?}");
        assert!(["one", "two", "three", "four", "large"].iter().all(|name| !exists(name)));
    }
}
