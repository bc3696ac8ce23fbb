//! Syncs `state.log` to disk within a second after a write, and compacts it. Idle while nothing is written.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

use super::StoreError;
use super::books::{Books, encode};
use super::record::{Record, VERSION};

/// Time between two syncs: the most that a loss of power may cost.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// The task that syncs and compacts.
#[derive(Debug, Default)]
pub(super) struct Keeper(Mutex<Option<JoinHandle<()>>>);

impl Keeper {
    /// Starts the task unless it runs: something was written.
    pub(super) fn wake(&self, books: &Arc<Mutex<Books>>) {
        if std::mem::replace(&mut books.lock().kept, true) {
            return;
        }
        *self.0.lock() = Some(tokio::spawn(keep_up(Arc::clone(books))));
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(task) = &*self.0.lock() {
            task.abort();
        }
    }
}

async fn keep_up(books: Arc<Mutex<Books>>) {
    loop {
        tokio::time::sleep(SYNC_EVERY).await;
        {
            let mut books = books.lock();
            if !std::mem::take(&mut books.unsynced) {
                books.kept = false;
                return;
            }
        }
        if let Err(error) = keep(&books).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "state.log cannot be synced or shortened now");
        }
    }
}

/// Syncs the file, or replaces it with a compacted and synced copy.
pub(super) async fn keep(books: &Mutex<Books>) -> Result<(), StoreError> {
    let copier = books.lock().copier()?;
    match copier {
        None => {
            let file = books.lock().handle()?;
            done(spawn_blocking(move || file.sync_data()).await)
        }
        Some(copier) => {
            let first = encode(&Record::Version(VERSION))?;
            let copied = done(spawn_blocking(move || copier.copy(&first)).await)?;
            books.lock().copied(copied)
        }
    }
}

fn done<T>(work: Result<std::io::Result<T>, JoinError>) -> Result<T, StoreError> {
    work.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(StoreError::Sync)
}
