//! Which families of pipelines are in memory: those that are open, those that the present batch asks for, and the few
//! that finished or were asked for last.
//!
//! ```text
//! open --(finished, written)--> kept for a while --(others came since)--> in the store only
//!   ^                                 |   ^                                     |
//!   +--- something happens again -----+   +---- a command names it -------------+
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use muster_job::PipelineId;

use crate::artifacts::Places;
use crate::error::StoreError;
use crate::store::{Member, Store};
use crate::world::{Repeated, World};

/// Decides what is read into memory, and what leaves it.
pub(crate) struct Residency {
    store: Arc<dyn Store>,
    places: Places,
    /// Number of finished families that are kept in memory.
    kept_max: usize,
    /// Roots of families that are not open, the one that was used last at the end.
    kept: VecDeque<PipelineId>,
    /// Roots of finished families that have an upload on its way: they stay open until it is over.
    uploading: BTreeSet<PipelineId>,
    /// Pipelines that the present batch asked for, and that do not exist.
    absent: BTreeSet<PipelineId>,
}

impl Residency {
    /// Keeps at most `kept_max` finished families in memory.
    pub(crate) fn new(store: Arc<dyn Store>, places: Places, kept_max: usize) -> Self {
        let (kept, uploading, absent) = Default::default();
        Self { store, places, kept_max, kept, uploading, absent }
    }

    /// Reads a family into memory, unless it is there or does not exist.
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

    /// Whether a pipeline was asked for in this batch and does not exist.
    pub(crate) fn is_absent(&self, pipeline: PipelineId) -> bool {
        self.absent.contains(&pipeline)
    }

    /// Handles the end of an upload: checks the families that waited for it.
    pub(crate) fn upload_is_over(&mut self, world: &mut World) {
        for root in std::mem::take(&mut self.uploading) {
            self.look_at(world, root);
        }
    }

    /// Before a write: notes in the rows of each family that changed whether it is open.
    pub(crate) fn note_open(&mut self, world: &mut World) {
        for root in world.changed_families() {
            self.look_at(world, root);
        }
    }

    fn look_at(&mut self, world: &mut World, root: PipelineId) {
        let mut finished = world.is_finished(root);
        if finished && !world.family(root).all(|row| world.jobs_of(row.id).all(|job| self.places.is_free(job.id))) {
            // A process that is killed now leaves a file without a row, which only the start of open work looks for.
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

    /// After a batch: removes finished families from memory, the one that was used first of all. Those whose rows could
    /// not be written stay. Returned are the roots, before their rows are gone.
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
