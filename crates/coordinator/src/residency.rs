//! Decides which families of pipelines are in memory: open ones, those that the current batch needs, and the few that finished or
//! were used last.
//!
//! ```text
//! open --(finished, written)--> kept for a while --(other families came since)--> in the store only
//!   ^                                 |   ^                                          |
//!   +--- a command changes a job -----+   +------------- a command needs it ---------+
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use muster_job::PipelineId;

use crate::artifacts::Places;
use crate::error::StoreError;
use crate::store::{Member, Store};
use crate::world::{Repeated, World};

/// Reads families into memory, and removes them.
pub(crate) struct Residency {
    store: Arc<dyn Store>,
    places: Places,
    /// Maximum number of finished families in memory.
    kept_max: usize,
    /// Roots of families that are not open, least recently used first.
    kept: VecDeque<PipelineId>,
    /// Roots of finished families with an upload in progress. They stay open until it ends.
    uploading: BTreeSet<PipelineId>,
    /// Pipelines that the current batch needs and that do not exist.
    absent: BTreeSet<PipelineId>,
}

impl Residency {
    /// Creates the state. At most `kept_max` finished families are kept in memory.
    pub(crate) fn new(store: Arc<dyn Store>, places: Places, kept_max: usize) -> Self {
        let (kept, uploading, absent) = Default::default();
        Self { store, places, kept_max, kept, uploading, absent }
    }

    /// Reads a family into memory, unless it is already there or does not exist.
    pub(crate) async fn admit(
        &mut self,
        world: &mut World,
        member: Member,
        now_ms: u64,
    ) -> Result<Repeated, StoreError> {
        let known = match member {
            Member::Pipeline(id) => world.pipelines.contains_key(&id) || self.absent.contains(&id),
            Member::Job(id) => world.jobs.contains_key(&id),
        };
        if known {
            return Ok(Repeated::new());
        }
        let mut contents = self.store.family(member).await?;
        // All runners are in memory.
        contents.runners.clear();
        let root = contents.pipelines.first().map(|row| row.root);
        match (root, member) {
            (Some(root), _) => self.keep(root),
            (None, Member::Pipeline(id)) => {
                self.absent.insert(id);
            }
            (None, Member::Job(_)) => {}
        }
        world.admit(contents, now_ms)
    }

    /// Returns whether the current batch needs this pipeline and it does not exist.
    pub(crate) fn is_absent(&self, pipeline: PipelineId) -> bool {
        self.absent.contains(&pipeline)
    }

    /// Handles the end of an upload: checks the families that stayed open for it.
    pub(crate) fn upload_is_over(&mut self, world: &mut World) {
        for root in std::mem::take(&mut self.uploading) {
            self.look_at(world, root);
        }
    }

    /// Updates in the rows of each changed family whether it is open. Called before a write.
    pub(crate) fn note_open(&mut self, world: &mut World) {
        for root in world.changed_families() {
            self.look_at(world, root);
        }
    }

    fn look_at(&mut self, world: &mut World, root: PipelineId) {
        let mut finished = world.is_finished(root);
        if finished && !world.family(root).all(|row| world.jobs_of(row.id).all(|job| self.places.is_free(job.id))) {
            // If the process is killed during the upload, it leaves a file without a row. The next start looks for these in open work only.
            self.uploading.insert(root);
            finished = false;
        }
        world.set_open(root, !finished);
        if finished {
            self.keep(root);
        }
    }

    fn keep(&mut self, root: PipelineId) {
        self.kept.retain(|known| *known != root);
        self.kept.push_back(root);
    }

    /// Removes finished families from memory after a batch, least recently used first.
    ///
    /// Families with unwritten rows stay. `gone` is called with each root before the family is removed.
    pub(crate) fn evict(&mut self, world: &mut World, mut gone: impl FnMut(&World, PipelineId)) {
        self.absent.clear();
        if self.kept.len() <= self.kept_max {
            return;
        }
        let unwritten = world.changed_families();
        let mut stay = VecDeque::new();
        while self.kept.len() + stay.len() > self.kept_max
            && let Some(root) = self.kept.pop_front()
        {
            if unwritten.contains(&root) {
                stay.push_back(root);
            } else if world.family(root).all(|row| !row.open) {
                gone(world, root);
                world.evict(root);
            }
        }
        stay.append(&mut self.kept);
        self.kept = stay;
    }
}
