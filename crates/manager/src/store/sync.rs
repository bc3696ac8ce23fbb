//! Syncs `state.log` within a second after a write, and compacts it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

use super::StoreError;
use super::index::{StateIndex, encode};
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

/// Syncs until nothing was written for one interval.
async fn run(index: Arc<Mutex<StateIndex>>) {
    loop {
        tokio::time::sleep(SYNC_INTERVAL).await;
        {
            let mut index = index.lock();
            if !std::mem::take(&mut index.unsynced) {
                index.has_sync_task = false;
                return;
            }
        }
        if let Err(error) = sync_or_compact(&index).await {
            index.lock().unsynced = true;
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to sync or compact state.log, retrying");
        }
    }
}

/// Syncs the file, or replaces it with a compacted and synced copy.
pub(super) async fn sync_or_compact(index: &Mutex<StateIndex>) -> Result<(), StoreError> {
    let compactor = index.lock().compactor()?;
    match compactor {
        None => sync(index).await,
        Some(compactor) => match compact(index, compactor).await {
            // The lines that were written since the last sync must be durable even if the disk is too full for a copy.
            Err(error) => sync(index).await.and(Err(error)),
            Ok(()) => Ok(()),
        },
    }
}

async fn sync(index: &Mutex<StateIndex>) -> Result<(), StoreError> {
    let file = index.lock().file_handle()?;
    flatten(spawn_blocking(move || file.sync_data()).await)
}

async fn compact(index: &Mutex<StateIndex>, compactor: Compactor) -> Result<(), StoreError> {
    let version_line = encode(&Record::Version(VERSION))?;
    let copied = flatten(spawn_blocking(move || compactor.copy(&version_line)).await)?;
    index.lock().replace_with(copied)
}

fn flatten<T>(work: Result<std::io::Result<T>, JoinError>) -> Result<T, StoreError> {
    work.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(StoreError::Sync)
}
