//! Deletes the files of expired artifacts, whatever the age of their pipelines.
//!
//! The store knows which artifacts expire when. This module decides when to query it. A file is deleted first, and its row is updated
//! afterwards, so that a deletion that is interrupted in between is repeated.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use muster_job::JobId;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;

use crate::artifacts::{self, ArtifactLocks};
use crate::blobs::Blobs;
use crate::clock::Timestamp;
use crate::error::StoreError;
use crate::store::{ArtifactRow, Store};

/// Number of artifacts that are deleted at a time.
const MAX_DELETIONS: usize = 64;

/// A completed step of the work.
pub(crate) enum Step {
    /// The artifacts that have expired, and when the next one expires.
    Found(Result<(Vec<ArtifactRow>, Option<Timestamp>), StoreError>),
    /// The deleted files, by job and kind. No other task uses the files of these jobs until the guards are dropped.
    Deleted(Vec<(JobId, String)>, Vec<OwnedMutexGuard<()>>),
}

/// The state of the work.
pub(crate) struct Expiry {
    store: Arc<dyn Store>,
    locks: ArtifactLocks,
    blobs: Arc<dyn Blobs>,
    /// Time of the next query for expired artifacts. `None` if no artifact expires.
    next: Option<Timestamp>,
    /// Whether a query became due while work was in progress.
    is_overdue: bool,
    work: JoinSet<Step>,
}

impl Expiry {
    /// Creates the state. Work starts with the first call of [`Expiry::look`].
    pub(crate) fn new(store: Arc<dyn Store>, blobs: Arc<dyn Blobs>, locks: ArtifactLocks) -> Self {
        Self { store, locks, blobs, next: None, is_overdue: false, work: JoinSet::new() }
    }

    /// Records when an artifact expires. Returns whether that is before the known time, so that a timer must be set.
    pub(crate) fn is_first(&mut self, at: Timestamp) -> bool {
        let first = self.next.is_none_or(|next| at < next);
        if first {
            self.next = Some(at);
        }
        first
    }

    /// Queries the store for artifacts that have expired by `now`. If work is in progress, [`Expiry::take_overdue`] remembers the call.
    pub(crate) fn look(&mut self, now: Timestamp) {
        self.is_overdue = !self.work.is_empty();
        if self.is_overdue {
            return;
        }
        self.next = None;
        let store = Arc::clone(&self.store);
        self.work.spawn(async move {
            let found = async { Ok((store.expired(now, MAX_DELETIONS).await?, store.next_expiry().await?)) };
            Step::Found(found.await)
        });
    }

    /// Returns whether a query became due while work was in progress, and resets that.
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
            let lock = self.locks.number(row.job);
            if let Entry::Vacant(entry) = guards.entry(lock) {
                let Some(guard) = self.locks.try_lock(row.job) else { continue };
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
                    // The next query finds it again.
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
