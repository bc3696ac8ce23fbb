//! Decides which pipeline hierarchies are in memory: open hierarchies, hierarchies that the current batch needs, and a
//! few that finished or were used most recently.
//!
//! ```text
//! open --(finished, written)--> still in memory --(other hierarchies were used)--> in the store only
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

pub(crate) struct Residency {
    store: Arc<dyn Store>,
    locks: ArtifactLocks,
    max_finished: usize,
    /// Roots of hierarchies that may be removed from memory, least recently used first. Open hierarchies among them are skipped.
    finished: VecDeque<PipelineId>,
    /// Roots of finished hierarchies with an upload in progress. These hierarchies stay open until the upload ends.
    uploading: BTreeSet<PipelineId>,
    /// Pipelines that the current batch needs and that do not exist.
    absent: BTreeSet<PipelineId>,
}

impl Residency {
    pub(crate) fn new(store: Arc<dyn Store>, locks: ArtifactLocks, max_finished: usize) -> Self {
        let (finished, uploading, absent) = Default::default();
        Self { store, locks, max_finished, finished, uploading, absent }
    }

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
        let mut contents = self.store.hierarchy(member).await?;
        // Ignore the stored runners, because all runners are already in memory.
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

    pub(crate) fn is_absent(&self, pipeline: PipelineId) -> bool {
        self.absent.contains(&pipeline)
    }

    /// Updates the mark "open" of each hierarchy that is finished except for an upload. Called after an upload ended.
    pub(crate) fn upload_ended(&mut self, state: &mut CoordinatorState) {
        for root in std::mem::take(&mut self.uploading) {
            self.update_open_mark(state, root);
        }
    }

    /// Updates the mark "open" in the rows of each changed hierarchy. Called before a write.
    pub(crate) fn update_open_marks(&mut self, state: &mut CoordinatorState) {
        for root in state.changed_hierarchies() {
            self.update_open_mark(state, root);
        }
    }

    fn update_open_mark(&mut self, state: &mut CoordinatorState, root: PipelineId) {
        let mut finished = state.is_finished(root);
        if finished && !state.hierarchy(root).all(|row| state.jobs_of(row.id).all(|job| self.locks.is_free(job.id))) {
            // If the process is killed during the upload, a file without a row remains. The next start searches only open work for such
            // files, so the hierarchy stays open until the upload ends.
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

    /// Removes finished hierarchies without unwritten rows, least recently used first. Calls `before_removal` with each
    /// root first.
    pub(crate) fn evict(
        &mut self,
        state: &mut CoordinatorState,
        mut before_removal: impl FnMut(&CoordinatorState, PipelineId),
    ) {
        self.absent.clear();
        if self.finished.len() <= self.max_finished {
            return;
        }
        let unwritten = state.changed_hierarchies();
        let mut unwritten_roots = VecDeque::new();
        while self.finished.len() + unwritten_roots.len() > self.max_finished
            && let Some(root) = self.finished.pop_front()
        {
            if unwritten.contains(&root) {
                unwritten_roots.push_back(root);
            } else if state.hierarchy(root).all(|row| !row.open) {
                before_removal(state, root);
                state.evict(root);
            }
        }
        unwritten_roots.append(&mut self.finished);
        self.finished = unwritten_roots;
    }
}
