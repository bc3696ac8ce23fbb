//! Cache of remote steps by digest, which jobs of an agent share.
//!
//! Content is renamed when it is complete, so a killed agent leaves no partial entry.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, OwnedRwLockReadGuard, RwLock};
use walkdir::WalkDir;

use crate::removal::remove_tree;

/// Maximum size of all entries in bytes. Least recently used entries are removed first.
const MAX_BYTES: u64 = 4 * 1024 * 1024 * 1024;
const INCOMPLETE: &str = ".incomplete";

/// Cache of remote steps.
#[derive(Debug, Default)]
pub struct StepCache {
    /// Directory of the entries. `None` means no cache.
    directory: Option<PathBuf>,
    max_bytes: u64,
    /// Locks of entries that jobs fetch or read, by key.
    entries: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Shared lock for using entries, exclusive lock for removing them.
    users: Arc<RwLock<()>>,
}

/// Guard of one entry. While it exists, no other job fetches the entry, and the entry is not removed.
#[derive(Debug)]
pub(super) struct EntryGuard {
    /// Path of the entry, which may not exist yet.
    pub(super) path: PathBuf,
    pub(super) incomplete: PathBuf,
    /// Temporary directory, if there is no cache.
    _temporary: Option<tempfile::TempDir>,
    _lock: OwnedMutexGuard<()>,
    _user: OwnedRwLockReadGuard<()>,
}

impl StepCache {
    /// Returns the cache in a directory that only this process uses. Removes incomplete entries of an earlier process.
    ///
    /// # Errors
    /// If the directory cannot be created or cleaned.
    pub fn new(directory: PathBuf) -> io::Result<Self> {
        remove_tree(&directory.join(INCOMPLETE))?;
        fs::create_dir_all(directory.join(INCOMPLETE))?;
        Ok(Self { directory: Some(directory), max_bytes: MAX_BYTES, ..Self::default() })
    }

    /// Waits until no other job uses the entry `<kind>-<name>`.
    pub(super) async fn entry(&self, kind: &str, name: &str) -> io::Result<EntryGuard> {
        let key = format!("{kind}-{name}");
        let lock = Arc::clone(self.entries.lock().entry(key.clone()).or_default());
        let lock = lock.lock_owned().await;
        let user = Arc::clone(&self.users).read_owned().await;
        let temporary = match &self.directory {
            Some(_) => None,
            None => Some(tempfile::Builder::new().prefix("muster-steps-").tempdir()?),
        };
        let root = self.directory.as_deref().or(temporary.as_ref().map(tempfile::TempDir::path));
        let root = root.unwrap_or(Path::new("."));
        let (path, incomplete) = (root.join(key), root.join(INCOMPLETE));
        fs::create_dir_all(&incomplete)?;
        if path.exists() {
            // The modification time is the time of the last use.
            let _ = File::open(&path).and_then(|file| file.set_modified(now()));
        }
        Ok(EntryGuard { path, incomplete, _temporary: temporary, _lock: lock, _user: user })
    }

    /// Removes the least recently used entries until the rest is within the limit. Does nothing while an entry is in
    /// use.
    pub(super) fn prune(&self) -> io::Result<()> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let Ok(_exclusive) = self.users.try_write() else { return Ok(()) };
        self.entries.lock().retain(|_, lock| Arc::strong_count(lock) > 1);
        let mut entries = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_name() != INCOMPLETE {
                entries.push((entry.metadata()?.modified()?, size(&entry.path()), entry.path()));
            }
        }
        let mut total: u64 = entries.iter().map(|(_, bytes, _)| bytes).sum();
        entries.sort();
        for (_, bytes, path) in entries {
            if total <= self.max_bytes {
                break;
            }
            remove(&path)?;
            total -= bytes;
        }
        Ok(())
    }
}

impl EntryGuard {
    /// Moves a complete file or directory into the cache.
    pub(super) fn complete(&self, content: &Path) -> io::Result<()> {
        remove(&self.path)?;
        fs::rename(content, &self.path)
    }

    pub(super) fn discard(&self) -> io::Result<()> {
        remove(&self.path)
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => remove_tree(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn size(path: &Path) -> u64 {
    let files = WalkDir::new(path).into_iter().filter_map(Result::ok);
    files.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
}

fn now() -> SystemTime {
    time::OffsetDateTime::now_utc().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn put(cache: &StepCache, name: &str, bytes: usize) {
        let entry = cache.entry("oci", name).await.unwrap();
        let content = entry.incomplete.join("content");
        fs::write(&content, vec![0; bytes]).unwrap();
        entry.complete(&content).unwrap();
    }

    async fn has(cache: &StepCache, name: &str) -> bool {
        cache.entry("oci", name).await.unwrap().path.exists()
    }

    #[tokio::test]
    async fn oldest_entries_are_removed_first_but_not_while_an_entry_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let mut cache = StepCache::new(dir.path().join("steps")).unwrap();
        cache.max_bytes = 100;
        for (name, age) in [("a", 3), ("b", 2), ("c", 1)] {
            put(&cache, name, 60).await;
            let path = dir.path().join(format!("steps/oci-{name}"));
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000 - age);
            File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        }
        let used = cache.entry("oci", "c").await.unwrap();
        cache.prune().unwrap();
        drop(used);
        assert!(dir.path().join("steps/oci-a").exists());
        cache.prune().unwrap();
        assert!(!has(&cache, "a").await && !has(&cache, "b").await && has(&cache, "c").await);
    }

    #[tokio::test]
    async fn incomplete_entries_of_a_killed_agent_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = StepCache::new(dir.path().join("steps")).unwrap();
        put(&cache, "a", 1).await;
        fs::create_dir(dir.path().join("steps/.incomplete/half")).unwrap();
        let next = StepCache::new(dir.path().join("steps")).unwrap();
        assert!(has(&next, "a").await && !dir.path().join("steps/.incomplete/half").exists());
    }
}
