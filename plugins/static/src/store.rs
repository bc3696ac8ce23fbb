//! Leases in a JSON file, which is replaced durably. A lock file prevents two plugins from leasing the same machines.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::config::LOCK_SUFFIX;
use crate::pool::MachineLease;

const VERSION: u32 = 1;
/// Number of attempts to lock the file. A plugin that is being killed may still hold the lock for a moment.
const MAX_LOCK_ATTEMPTS: u32 = 50;
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The file of leases. It is locked while this value exists.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    _lock: File,
}

#[derive(Debug, Serialize, Deserialize)]
struct StateFile {
    version: u32,
    /// Number of the next lease.
    next: u64,
    leases: Vec<MachineLease>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("state file {} is locked by another plugin (PID {holder}); each manager needs its own pool: set a different `name` or `state_file`", path.display())]
    Locked { path: PathBuf, holder: String },
    #[error("failed to access {}; set `state_file` to a path that the plugin can read and write", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("failed to read leases from {}: {cause}; move the file away if none of its machines is in use", path.display())]
    Format { path: PathBuf, cause: String },
}

impl Store {
    pub(crate) async fn open(path: PathBuf) -> Result<(Self, u64, Vec<MachineLease>), StoreError> {
        let io = |source| StoreError::Io { path: path.clone(), source };
        let directory = path.parent().unwrap_or_else(|| Path::new("/"));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(io)?;
        let mut lock = lock(&path).await?;
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(io)?;
        let stored = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                StateFile { version: VERSION, next: 1, leases: Vec::new() }
            }
            read => parse(&path, &read.map_err(io)?)?,
        };
        Ok((Self { path, _lock: lock }, stored.next, stored.leases))
    }

    /// Replaces the stored leases. They are durable when this returns.
    pub(crate) fn save(&self, (next, leases): (u64, Vec<MachineLease>)) -> Result<(), StoreError> {
        let directory = self.path.parent().unwrap_or_else(|| Path::new("/"));
        let write = || {
            let mut file = tempfile::NamedTempFile::new_in(directory)?;
            serde_json::to_writer_pretty(&mut file, &StateFile { version: VERSION, next, leases })?;
            file.as_file().sync_all()?;
            file.persist(&self.path).map_err(|error| error.error)?;
            File::open(directory)?.sync_all()
        };
        write().map_err(|source| StoreError::Io { path: self.path.clone(), source })
    }
}

async fn lock(path: &Path) -> Result<File, StoreError> {
    // The suffix is added to the whole name, so that two state files never share a lock.
    let mut lock = path.as_os_str().to_owned();
    lock.push(LOCK_SUFFIX);
    let lock = PathBuf::from(lock);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&lock)
        .map_err(|source| StoreError::Io { path: lock, source })?;
    for _ in 0..MAX_LOCK_ATTEMPTS {
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(file);
        }
        tokio::time::sleep(LOCK_RETRY_DELAY).await;
    }
    let mut holder = String::new();
    let _ = file.read_to_string(&mut holder);
    Err(StoreError::Locked { path: path.to_owned(), holder: holder.trim().to_owned() })
}

fn parse(path: &Path, bytes: &[u8]) -> Result<StateFile, StoreError> {
    let format = |cause: String| StoreError::Format { path: path.to_owned(), cause };
    let stored: StateFile = serde_json::from_slice(bytes).map_err(|error| format(error.to_string()))?;
    if stored.version != VERSION {
        return Err(format(format!("unsupported version {}, expected {VERSION}", stored.version)));
    }
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Machine;

    #[tokio::test(start_paused = true)]
    async fn leases_are_restored_and_file_is_locked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/pool.json");
        let (store, next, leases) = Store::open(path.clone()).await.unwrap();
        assert_eq!((next, leases.len()), (1, 0));
        let lease = MachineLease { machine: "a".to_owned(), lease: 4, cleaning: true, details: Machine::default() };
        store.save((5, vec![lease.clone()])).unwrap();
        let error = Store::open(path.clone()).await.unwrap_err().to_string();
        assert!(error.contains(&format!("another plugin (PID {})", std::process::id())), "{error}");
        drop(store);
        let (store, next, leases) = Store::open(path.clone()).await.unwrap();
        assert_eq!((next, leases), (5, vec![lease]));
        drop(store);
        std::fs::write(&path, r#"{"version":2,"next":1,"leases":[]}"#).unwrap();
        let error = Store::open(path.clone()).await.unwrap_err().to_string();
        assert!(error.contains("unsupported version 2, expected 1"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn state_files_with_different_extensions_have_separate_locks() {
        let directory = tempfile::tempdir().unwrap();
        let mut stores = Vec::new();
        for name in ["pool", "pool.json", "pool.lock.json", "pool.other"] {
            let (store, ..) = Store::open(directory.path().join(name)).await.unwrap();
            store.save((1, Vec::new())).unwrap();
            stores.push(store);
        }
    }
}
