//! Deletes the files of expired artifacts, including those of finished pipelines.
//!
//! A file is deleted before its row is updated, so that an interrupted deletion is repeated.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use muster_job::JobId;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;

use crate::artifacts::{self, ArtifactLocks};
use crate::blobs::Blobs;
use crate::clock::Timestamp;
use crate::error::StoreError;
use crate::state::CoordinatorState;
use crate::store::{ArtifactRow, Store};

const MAX_DELETIONS: usize = 64;

/// Minimum delay after a query that failed or found artifacts, before the timer starts the next query, which may find
/// the same artifacts again. A query that follows a deletion does not wait for the timer.
const RETRY_DELAY: Duration = Duration::from_secs(1);

pub(crate) enum ExpiryStep {
    Found(Result<(Vec<ArtifactRow>, Option<Timestamp>), StoreError>),
    /// The deleted files, by job and kind. No other task uses the files of these jobs until the guards are dropped.
    Deleted(Vec<(JobId, String)>, Vec<OwnedMutexGuard<()>>),
}

pub(crate) struct ArtifactExpiry {
    store: Arc<dyn Store>,
    locks: ArtifactLocks,
    blobs: Arc<dyn Blobs>,
    /// Time of the next query for expired artifacts. `None` if no artifact expires, or while a query is in progress.
    next: Option<Timestamp>,
    /// Whether a query became due while work was in progress.
    is_overdue: bool,
    work: JoinSet<ExpiryStep>,
}

impl ArtifactExpiry {
    pub(crate) fn new(store: Arc<dyn Store>, blobs: Arc<dyn Blobs>, locks: ArtifactLocks) -> Self {
        Self { store, locks, blobs, next: None, is_overdue: false, work: JoinSet::new() }
    }

    /// Records that an artifact expires at `at`. Returns whether this is the earliest known expiry: then, the caller
    /// must set a timer.
    pub(crate) fn record_expiry(&mut self, at: Timestamp) -> bool {
        let is_earliest = self.next.is_none_or(|next| at < next);
        if is_earliest {
            self.next = Some(at);
        }
        is_earliest
    }

    /// Starts a query for expired artifacts. If files are being deleted, the query starts after the deletion.
    pub(crate) fn query(&mut self, now: Timestamp) {
        self.next = None;
        self.is_overdue = !self.work.is_empty();
        if self.is_overdue {
            return;
        }
        let store = Arc::clone(&self.store);
        self.work.spawn(async move {
            let found = async { Ok((store.expired(now, MAX_DELETIONS).await?, store.next_expiry().await?)) };
            ExpiryStep::Found(found.await)
        });
    }

    /// Waits indefinitely if there is no work. Cancel-safe.
    pub(crate) async fn step(&mut self) -> ExpiryStep {
        loop {
            match self.work.join_next().await {
                Some(Ok(step)) => return step,
                Some(Err(error)) => tracing::error!(%error, "deletion of expired artifacts was aborted"),
                None => return std::future::pending().await,
            }
        }
    }

    /// Handles the result of a step. Returns when the next query is due, if a timer must be set for it.
    ///
    /// The rows of deleted artifacts are kept, to show that the artifacts existed (docs/spec/pipeline-yaml.md, case C187).
    pub(crate) fn advance(
        &mut self,
        step: ExpiryStep,
        state: &mut CoordinatorState,
        now: Timestamp,
    ) -> Option<Timestamp> {
        match step {
            ExpiryStep::Found(Ok((expired, next))) => {
                // An artifact may have been uploaded again after the query. Only open jobs upload, and their rows are in memory.
                let is_expired = |row: &ArtifactRow| {
                    let current = state.artifact(row.job, &row.kind);
                    current.is_none_or(|current| current.expires_at.is_some_and(|at| at <= now) && !current.deleted)
                };
                // Delay the next query if this query found artifacts, because some of them may remain.
                let delay = if expired.is_empty() { Duration::ZERO } else { RETRY_DELAY };
                let expired: Vec<_> = expired.into_iter().filter(is_expired).collect();
                if !expired.is_empty() {
                    self.delete(expired);
                } else if std::mem::take(&mut self.is_overdue) {
                    // An artifact may have been uploaded and expired while the query was in progress.
                    self.query(now);
                    return None;
                }
                // The timer is needed even while files are being deleted, because files that are in use are skipped.
                next.map(|at| at.max(now + delay)).filter(|at| self.record_expiry(*at))
            }
            ExpiryStep::Found(Err(error)) => {
                tracing::warn!(%error, "failed to read which artifacts have expired, retrying");
                Some(now + RETRY_DELAY).filter(|at| self.record_expiry(*at))
            }
            ExpiryStep::Deleted(deleted, _guards) => {
                // Query again if the timer fired in the meantime, or if files were deleted, because there may be
                // another batch. Files that could not be deleted wait for the timer.
                let query_again = std::mem::take(&mut self.is_overdue) || !deleted.is_empty();
                for (job, kind) in deleted {
                    state.mark_deleted(job, kind);
                }
                if query_again {
                    self.query(now);
                }
                None
            }
        }
    }

    /// Starts to delete the files of expired artifacts. Skips jobs whose lock is held, for example by an upload.
    fn delete(&mut self, expired: Vec<ArtifactRow>) {
        let mut guards = BTreeMap::new();
        let mut deletable = Vec::new();
        for row in expired {
            // Several jobs share a lock, which may already have been acquired for another job of this batch.
            let lock = self.locks.lock_index(row.job);
            if let Entry::Vacant(entry) = guards.entry(lock) {
                let Some(guard) = self.locks.try_lock(row.job) else { continue };
                entry.insert(guard);
            }
            deletable.push(row);
        }
        let blobs = Arc::clone(&self.blobs);
        self.work.spawn(async move {
            let mut deleted = Vec::new();
            for row in deletable {
                match blobs.delete(&artifacts::name_of(&row)).await {
                    Ok(()) => {
                        tracing::info!(job = %row.job, kind = row.kind, "expired artifact deleted");
                        deleted.push((row.job, row.kind));
                    }
                    Err(error) => {
                        tracing::warn!(job = %row.job, kind = row.kind, %error, "failed to delete an expired artifact, retrying")
                    }
                }
            }
            ExpiryStep::Deleted(deleted, guards.into_values().collect())
        });
    }

    /// Stops the current work. It is repeated after the next start.
    pub(crate) async fn stop(&mut self) {
        self.work.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blobs::memory::MemoryBlobs;
    use crate::store::memory::MemoryStore;

    #[tokio::test]
    async fn query_that_becomes_due_during_another_query_is_started_after_it() {
        let (mut state, now) = (CoordinatorState::default(), Timestamp::UNIX_EPOCH);
        let (store, blobs) = (Arc::new(MemoryStore::new()), Arc::new(MemoryBlobs::default()));
        let mut expiry = ArtifactExpiry::new(store, blobs, ArtifactLocks::default());
        expiry.query(now);
        expiry.query(now);
        let first = expiry.step().await;
        assert_eq!(expiry.advance(first, &mut state, now), None);
        let second = tokio::time::timeout(Duration::from_secs(60), expiry.step()).await.expect("a second query");
        assert!(matches!(second, ExpiryStep::Found(Ok((expired, None))) if expired.is_empty()));
    }
}
