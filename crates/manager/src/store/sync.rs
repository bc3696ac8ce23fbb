//! Syncs `state.log` within a second after a write, and compacts it.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::Instant;

use super::StoreError;
use super::index::{COMPACTION_RETRY, StateIndex, encode};
use super::log::Compactor;
use super::record::{Record, VERSION};

/// A loss of power loses at most the lines that were written within this interval before it.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct SyncTask(Mutex<Option<JoinHandle<()>>>);

impl SyncTask {
    /// Must be called after each write.
    pub(super) fn wake(&self, index: &Arc<Mutex<StateIndex>>) {
        if std::mem::replace(&mut index.lock().has_sync_task, true) {
            return;
        }
        *self.0.lock() = Some(tokio::spawn(run(Arc::clone(index))));
    }
}

impl Drop for SyncTask {
    fn drop(&mut self) {
        if let Some(task) = &*self.0.lock() {
            task.abort();
        }
    }
}

/// Syncs until nothing was written for one interval, and no failure must be repaired.
async fn run(index: Arc<Mutex<StateIndex>>) {
    // Time of the next attempt after a failure.
    let mut retry_at: Option<Instant> = None;
    loop {
        tokio::time::sleep(SYNC_INTERVAL).await;
        let is_due = retry_at.is_none_or(|at| at <= Instant::now());
        {
            let mut index = index.lock();
            let unsynced = std::mem::take(&mut index.unsynced);
            if !unsynced && retry_at.is_none() {
                index.has_sync_task = false;
                return;
            }
            if !unsynced && !is_due {
                continue;
            }
        }
        // While a failed compaction waits, new lines are still synced.
        let result = if is_due { sync_or_compact(&index).await } else { sync(&index).await };
        match result {
            Ok(()) if is_due => {
                retry_at = None;
                index.lock().compaction_backoff.reset();
            }
            Ok(()) => {}
            Err(error) => {
                if is_due {
                    let wait = index.lock().compaction_backoff.next_wait(None).unwrap_or(COMPACTION_RETRY.cap);
                    retry_at = Some(Instant::now() + wait);
                }
                let wait = retry_at.map(|at| at.saturating_duration_since(Instant::now())).unwrap_or_default();
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    wait_ms = muster_job::milliseconds(wait),
                    "failed to sync or compact state.log, retrying"
                );
            }
        }
    }
}

/// Syncs the file, or replaces it with a compacted and synced copy.
pub(super) async fn sync_or_compact(index: &Mutex<StateIndex>) -> Result<(), StoreError> {
    let compactor = index.lock().compactor();
    let compacted = match compactor {
        Ok(None) => return sync(index).await,
        Ok(Some(compactor)) => compact(index, compactor).await,
        Err(error) => Err(error),
    };
    match compacted {
        // The lines that were written since the last sync must be durable even if the disk is too full for a copy.
        Err(error) => sync(index).await.and(Err(error)),
        Ok(()) => Ok(()),
    }
}

async fn sync(index: &Mutex<StateIndex>) -> Result<(), StoreError> {
    let file = {
        let mut index = index.lock();
        index.file_handle().inspect_err(|_| index.unsynced = true)?
    };
    flatten(spawn_blocking(move || file.sync_data()).await).inspect_err(|_| index.lock().must_rewrite = true)
}

async fn compact(index: &Mutex<StateIndex>, compactor: Compactor) -> Result<(), StoreError> {
    let version_line = encode(&Record::Version(VERSION))?;
    let copied = flatten(spawn_blocking(move || compactor.copy(&version_line)).await)?;
    let directory = {
        let mut index = index.lock();
        index.replace_with(copied)?;
        // A loss of power could still bring back the old file.
        index.must_rewrite = true;
        index.path().parent().map(Path::to_owned)
    };
    flatten(spawn_blocking(move || directory.map_or(Ok(()), |directory| sync_directory(&directory))).await)?;
    index.lock().must_rewrite = false;
    Ok(())
}

/// Succeeds if the file system cannot sync directories.
fn sync_directory(path: &Path) -> std::io::Result<()> {
    match File::open(path)?.sync_all() {
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}

fn flatten<T>(work: Result<std::io::Result<T>, JoinError>) -> Result<T, StoreError> {
    work.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(StoreError::Sync)
}
