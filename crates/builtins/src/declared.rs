//! What a job has declared, and what its lists of steps may therefore use.

use std::collections::BTreeSet;

use muster_agent_api::builtin::{ArtifactSource, ArtifactsDownload, CacheEntry, CacheRestore, CacheSave, Checkout};
use muster_agent_api::plan::{Call, JobPlan, Step};

/// Sources, caches and dependencies of a job, as its plan declares them.
#[derive(Debug, Clone, Default)]
pub struct Declared {
    /// Checkout of the job. `None` means that the job has no sources.
    pub checkout: Option<Checkout>,
    /// Caches to restore.
    pub restore: Vec<CacheEntry>,
    /// Caches to save, each once.
    pub save: Vec<CacheEntry>,
    /// Jobs whose artifacts this job may download.
    pub downloads: Vec<ArtifactSource>,
    /// Built-in steps that lists of steps must not call ([`JobPlan::reserved_builtins`]).
    pub reserved: Vec<String>,
}

impl Declared {
    /// Returns what a plan declares. Steps that run at another agent are not included.
    #[must_use]
    pub fn from_plan(plan: &JobPlan) -> Self {
        let mut declared = Self { reserved: plan.reserved_builtins.clone(), ..Self::default() };
        declared.add(&plan.steps);
        declared
    }

    fn add(&mut self, steps: &[Step]) {
        for step in steps {
            if let Call::Steps(inner) = &step.call {
                self.add(inner);
            } else if let Some(checkout) = step.call.inputs::<Checkout>() {
                self.checkout.get_or_insert(checkout);
            } else if let Some(CacheRestore { caches }) = step.call.inputs() {
                self.restore.extend(caches);
            } else if let Some(CacheSave { caches }) = step.call.inputs() {
                // A cache with `when: always` is in the step for success and in the step for failure.
                let mut known: BTreeSet<String> = self.save.iter().map(|cache| cache.key.clone()).collect();
                self.save.extend(caches.into_iter().filter(|cache| known.insert(cache.key.clone())));
            } else if let Some(ArtifactsDownload { from }) = step.call.inputs() {
                self.downloads.extend(from);
            }
        }
    }
}
