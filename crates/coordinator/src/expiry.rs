//! Retention: deletes the files of artifacts that have expired, of whatever age their pipelines are.
//!
//! The store knows what expires when; here is only when to look. A file is deleted first and noted in its row after
//! that, so that a process that is killed in between does it again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use muster_job::JobId;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;

use crate::artifacts::{self, Places};
use crate::blobs::Blobs;
use crate::clock::Timestamp;
use crate::error::StoreError;
use crate::store::{ArtifactRow, Store};

/// Number of artifacts that are deleted at a time.
const AT_ONCE: usize = 64;

/// What a piece of the work has found or done.
pub(crate) enum Step {
    /// These have expired; the next one expires then.
    Found(Result<(Vec<ArtifactRow>, Option<Timestamp>), StoreError>),
    /// The files of these are deleted. Nobody else uses the files of these jobs until the guards are dropped.
    Deleted(Vec<(JobId, String)>, Vec<OwnedMutexGuard<()>>),
}

/// The work on its way.
pub(crate) struct Expiry {
    store: Arc<dyn Store>,
    places: Places,
    blobs: Arc<dyn Blobs>,
    /// Time of the next query for expired artifacts. `None` if nothing expires.
    next: Option<Timestamp>,
    /// Whether it was time to look while work was on its way.
    is_overdue: bool,
    work: JoinSet<Step>,
}

impl Expiry {
    /// Does nothing until [`Expiry::look`] is called.
    pub(crate) fn new(store: Arc<dyn Store>, blobs: Arc<dyn Blobs>, places: Places) -> Self {
        Self { store, places, blobs, next: None, is_overdue: false, work: JoinSet::new() }
    }

    /// Something expires `at`. True if that is sooner than what was known: a timer is to be set.
    pub(crate) fn is_first(&mut self, at: Timestamp) -> bool {
        let first = self.next.is_none_or(|next| at < next);
        if first {
            self.next = Some(at);
        }
        first
    }

    /// Asks the store what has expired by `now`. While work is on its way, [`Expiry::take_overdue`] remembers it.
    pub(crate) fn look(&mut self, now: Timestamp) {
        self.is_overdue = !self.work.is_empty();
        if self.is_overdue {
            return;
        }
        self.next = None;
        let store = Arc::clone(&self.store);
        self.work.spawn(async move {
            let found = async { Ok((store.expired(now, AT_ONCE).await?, store.next_expiry().await?)) };
            Step::Found(found.await)
        });
    }

    /// Returns whether it was time to look while work was on its way, and forgets it.
    pub(crate) fn take_overdue(&mut self) -> bool {
        std::mem::take(&mut self.is_overdue)
    }

    /// Returns the next completed step. Waits indefinitely if there is no work. Cancel safe.
    pub(crate) async fn step(&mut self) -> Step {
        loop {
            match self.work.join_next().await {
                Some(Ok(step)) => return step,
                Some(Err(error)) => tracing::error!(%error, "expired artifacts were not all deleted"),
                None => return std::future::pending().await,
            }
        }
    }

    /// Deletes the files of `expired`, except those of jobs whose files are in use.
    pub(crate) fn delete(&mut self, expired: Vec<ArtifactRow>) {
        let mut guards = BTreeMap::new();
        let mut free = Vec::new();
        for row in expired {
            // Jobs share locks, and the guard of one may be that of another.
            let lock = self.places.number(row.job);
            if let Entry::Vacant(entry) = guards.entry(lock) {
                let Some(guard) = self.places.try_lock(row.job) else { continue };
                entry.insert(guard);
            }
            free.push(row);
        }
        let blobs = Arc::clone(&self.blobs);
        self.work.spawn(async move {
            let mut deleted = Vec::new();
            for row in free {
                match blobs.delete(&artifacts::name_of(&row)).await {
                    Ok(()) => {
                        tracing::info!(job = %row.job, kind = row.kind, "expired artifact deleted");
                        deleted.push((row.job, row.kind));
                    }
                    // It is found again.
                    Err(error) => {
                        tracing::warn!(job = %row.job, kind = row.kind, %error, "failed to delete an artifact")
                    }
                }
            }
            Step::Deleted(deleted, guards.into_values().collect())
        });
    }

    /// Stops the current work. It is repeated after the next start.
    pub(crate) async fn stop(&mut self) {
        self.work.shutdown().await;
    }
}
