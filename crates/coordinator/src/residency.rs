//! Decides which families of pipelines are in memory: open families, families that the current batch needs, and a few families that
//! finished or were used most recently.
//!
//! ```text
//! open --(finished, written)--> still in memory --(other families were used)--> in the store only
//!   ^                                 |   ^                                         |
//!   +--- a command changes a job -----+   +------------- a command needs it --------+
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use muster_job::PipelineId;

use crate::artifacts::ArtifactLocks;
use crate::error::StoreError;
use crate::state::{CoordinatorState, RestoredActions};
use crate::store::{Member, Store};

/// Reads families into memory, and removes them.
pub(crate) struct Residency {
    store: Arc<dyn Store>,
    locks: ArtifactLocks,
    /// Maximum number of finished families in memory.
    max_finished: usize,
    /// Roots of families that may be removed from memory, least recently used first. Open families among them are skipped.
    finished: VecDeque<PipelineId>,
    /// Roots of finished families with an upload in progress. These families stay open until the upload ends.
    uploading: BTreeSet<PipelineId>,
    /// Pipelines that the current batch needs and that do not exist.
    absent: BTreeSet<PipelineId>,
}

impl Residency {
    /// Creates an empty set of finished families. At most `max_finished` finished families are kept in memory.
    pub(crate) fn new(store: Arc<dyn Store>, locks: ArtifactLocks, max_finished: usize) -> Self {
        let (finished, uploading, absent) = Default::default();
        Self { store, locks, max_finished, finished, uploading, absent }
    }

    /// Reads a family into memory, unless it is already there or does not exist.
    pub(crate) async fn admit(
        &mut self,
        state: &mut CoordinatorState,
        member: Member,
        now_ms: u64,
    ) -> Result<RestoredActions, StoreError> {
        let is_loaded = match member {
            Member::Pipeline(id) => state.pipelines.contains_key(&id) || self.absent.contains(&id),
            Member::Job(id) => state.jobs.contains_key(&id),
        };
        if is_loaded {
            return Ok(RestoredActions::new());
        }
        let mut contents = self.store.family(member).await?;
        // All runners are in memory.
        contents.runners.clear();
        let root = contents.pipelines.first().map(|row| row.root);
        match (root, member) {
            (Some(root), _) => self.mark_used(root),
            (None, Member::Pipeline(id)) => {
                self.absent.insert(id);
            }
            (None, Member::Job(_)) => {}
        }
        state.admit(contents, now_ms)
    }

    /// Returns whether the current batch needs this pipeline although the pipeline does not exist.
    pub(crate) fn is_absent(&self, pipeline: PipelineId) -> bool {
        self.absent.contains(&pipeline)
    }

    /// Handles the end of an upload: checks the families that stayed open for it.
    pub(crate) fn upload_ended(&mut self, state: &mut CoordinatorState) {
        for root in std::mem::take(&mut self.uploading) {
            self.update_open_mark(state, root);
        }
    }

    /// Updates the mark "open" in the rows of each changed family. Called before a write.
    pub(crate) fn update_open_marks(&mut self, state: &mut CoordinatorState) {
        for root in state.changed_families() {
            self.update_open_mark(state, root);
        }
    }

    fn update_open_mark(&mut self, state: &mut CoordinatorState, root: PipelineId) {
        let mut finished = state.is_finished(root);
        if finished && !state.family(root).all(|row| state.jobs_of(row.id).all(|job| self.locks.is_free(job.id))) {
            // If the process is killed during the upload, a file without a row remains. The next start searches only open work for such
            // files, so the family stays open until the upload ends.
            self.uploading.insert(root);
            finished = false;
        }
        state.set_open(root, !finished);
        if finished {
            self.mark_used(root);
        }
    }

    fn mark_used(&mut self, root: PipelineId) {
        self.finished.retain(|other| *other != root);
        self.finished.push_back(root);
    }

    /// Removes finished families from memory after a batch, least recently used first.
    ///
    /// Families with unwritten rows stay in memory. `before_removal` is called with each root before the family is removed.
    pub(crate) fn evict(
        &mut self,
        state: &mut CoordinatorState,
        mut before_removal: impl FnMut(&CoordinatorState, PipelineId),
    ) {
        self.absent.clear();
        if self.finished.len() <= self.max_finished {
            return;
        }
        let unwritten = state.changed_families();
        let mut unwritten_roots = VecDeque::new();
        while self.finished.len() + unwritten_roots.len() > self.max_finished
            && let Some(root) = self.finished.pop_front()
        {
            if unwritten.contains(&root) {
                unwritten_roots.push_back(root);
            } else if state.family(root).all(|row| !row.open) {
                before_removal(state, root);
                state.evict(root);
            }
        }
        unwritten_roots.append(&mut self.finished);
        self.finished = unwritten_roots;
    }
}
