//! Writes the ledger in the background.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use super::store::{LedgerError, LedgerStore};
use crate::event::Action;
use crate::history::HistoryEntry;
use crate::ledger::{Change, Row, RowKey};
use crate::types::TaskKey;

const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Interval between log messages while writes fail.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Time after which an unfinished write is reported.
const SLOW_WRITE: Duration = Duration::from_secs(5);
/// Maximum number of decisions that wait to be written. If there are more, the oldest are dropped.
const MAX_HISTORY_BACKLOG: usize = 10_000;

#[derive(Default)]
struct Batch {
    /// The last change of each row.
    changes: BTreeMap<RowKey, Option<Row>>,
    history: VecDeque<HistoryEntry>,
    actions: Vec<Action>,
}

impl Batch {
    fn add(&mut self, later: Self) {
        self.changes.extend(later.changes);
        self.history.extend(later.history);
        let surplus = self.history.len().saturating_sub(MAX_HISTORY_BACKLOG);
        self.history.drain(..surplus);
        self.actions.extend(later.actions);
    }

    fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.history.is_empty() && self.actions.is_empty()
    }
}

struct CompletedWrite {
    store: Box<dyn LedgerStore>,
    batch: Batch,
    result: Result<(), LedgerError>,
}

struct FailedWrite {
    error: String,
    retry_at: Instant,
    logged_at: Instant,
}

/// A write in progress.
struct RunningWrite {
    write: Pin<Box<dyn Future<Output = CompletedWrite> + Send>>,
    since: Instant,
    assigned: Vec<TaskKey>,
}

pub(super) struct LedgerWriter {
    /// `None` while a write is in progress, because the write owns the store.
    store: Option<Box<dyn LedgerStore>>,
    writing: Option<RunningWrite>,
    next: Batch,
    /// Actions whose changes have been written.
    ready: Vec<Action>,
    failed: Option<FailedWrite>,
}

impl LedgerWriter {
    pub(super) fn new(store: Box<dyn LedgerStore>) -> Self {
        Self { store: Some(store), writing: None, next: Batch::default(), ready: Vec::new(), failed: None }
    }

    /// Adds changes, history and actions to the next write. Returns the actions that need not wait for it.
    #[must_use]
    pub(super) fn add(
        &mut self,
        changes: Vec<Change>,
        history: Vec<HistoryEntry>,
        actions: Vec<Action>,
    ) -> Vec<Action> {
        let changes = changes.into_iter().map(|change| (change.key, change.row)).collect();
        self.next.add(Batch { changes, history: history.into(), actions: Vec::new() });
        let mut immediate = Vec::new();
        for action in actions {
            if self.must_be_durable_first(&action) {
                self.next.actions.push(action);
            } else {
                immediate.push(action);
            }
        }
        immediate
    }

    /// Returns true if an action must wait until the ledger contains its change.
    ///
    /// [`Action::Lost`] waits if the same job's [`Action::Assign`] still waits, so that the job is notified of the
    /// assignment first.
    fn must_be_durable_first(&self, action: &Action) -> bool {
        match action {
            Action::List { .. }
            | Action::Heartbeat { .. }
            | Action::Prepare { .. }
            | Action::RevokeReservation { .. }
            | Action::ResumeFailed { .. }
            | Action::ForgetInstance { .. } => false,
            Action::Lost { key, .. } => self.assigns_slots_to(key),
            _ => true,
        }
    }

    fn assigns_slots_to(&self, key: &TaskKey) -> bool {
        let assigns = |action: &Action| matches!(action, Action::Assign(lease) if lease.key == *key);
        self.writing.as_ref().is_some_and(|writing| writing.assigned.contains(key))
            || self.next.actions.iter().any(assigns)
            || self.ready.iter().any(assigns)
    }

    /// Starts and polls writes without waiting for them. Returns the actions that can be performed now.
    pub(super) async fn advance(&mut self) -> Vec<Action> {
        while self.start_write() {
            let Some(RunningWrite { write, .. }) = &mut self.writing else { break };
            match poll_fn(|context| Poll::Ready(write.as_mut().poll(context))).await {
                Poll::Ready(written) => self.write_finished(written),
                Poll::Pending => break,
            }
        }
        std::mem::take(&mut self.ready)
    }

    /// Waits until [`Self::advance`] can make progress. Cancel-safe.
    pub(super) async fn next_event(&mut self) {
        if let Some(RunningWrite { write, .. }) = &mut self.writing {
            let written = write.await;
            self.write_finished(written);
        } else if let Some(failed) = &self.failed {
            tokio::time::sleep_until(failed.retry_at).await;
        } else if self.next.is_empty() {
            std::future::pending().await
        }
    }

    fn start_write(&mut self) -> bool {
        if self.writing.is_some() {
            return true;
        }
        let must_wait = self.failed.as_ref().is_some_and(|failed| Instant::now() < failed.retry_at);
        if self.next.is_empty() || must_wait {
            return false;
        }
        let Some(mut store) = self.store.take() else { return false };
        let batch = std::mem::take(&mut self.next);
        let assigned = batch.actions.iter().filter_map(|action| match action {
            Action::Assign(lease) => Some(lease.key.clone()),
            _ => None,
        });
        let assigned = assigned.collect();
        let write = async move {
            let changes: Vec<Change> =
                batch.changes.iter().map(|(key, row)| Change { key: key.clone(), row: row.clone() }).collect();
            let result = if changes.is_empty() { Ok(()) } else { store.apply(&changes).await };
            let mut batch = batch;
            if result.is_ok() {
                store.append_history(batch.history.make_contiguous()).await;
            }
            CompletedWrite { store, batch, result }
        };
        self.writing = Some(RunningWrite { write: Box::pin(write), since: Instant::now(), assigned });
        true
    }

    fn write_finished(&mut self, written: CompletedWrite) {
        let CompletedWrite { store, mut batch, result } = written;
        self.writing = None;
        self.store = Some(store);
        let Err(error) = result else {
            if self.failed.take().is_some() {
                tracing::info!("scaler ledger is writable again");
            }
            self.ready.append(&mut batch.actions);
            return;
        };
        batch.add(std::mem::take(&mut self.next));
        self.next = batch;
        let (error, now) = (error.with_causes(), Instant::now());
        let logged_at = self.failed.as_ref().map(|failed| failed.logged_at).filter(|at| now - *at < LOG_INTERVAL);
        if logged_at.is_none() {
            tracing::error!(
                error,
                "failed to write the scaler ledger; scaling and slot assignment are paused until a write succeeds"
            );
        }
        self.failed = Some(FailedWrite { error, retry_at: now + RETRY_DELAY, logged_at: logged_at.unwrap_or(now) });
    }

    /// Returns why actions wait for the ledger. `None` means that writes work normally.
    pub(super) fn write_error(&self) -> Option<String> {
        if let Some(failed) = &self.failed {
            return Some(format!("scaling and slot assignment are paused until a write succeeds: {}", failed.error));
        }
        let elapsed = self.writing.as_ref()?.since.elapsed();
        let seconds = elapsed.as_secs();
        let message = || {
            format!(
                "scaling and slot assignment are paused: a write of the scaler ledger has been in progress for {seconds} s"
            )
        };
        (elapsed >= SLOW_WRITE).then(message)
    }

    /// Returns true if a write is in progress or due. Returns false after a failed write, because a caller that waits
    /// for the next successful write could wait forever.
    pub(super) fn has_pending_writes(&self) -> bool {
        self.failed.is_none() && (self.writing.is_some() || !self.next.is_empty())
    }
}
