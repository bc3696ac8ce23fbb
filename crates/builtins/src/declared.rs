//! Sources, caches and dependencies that a job declares, and that its lists of steps may therefore use.

use std::collections::BTreeSet;

use muster_agent_api::builtin::{ArtifactSource, ArtifactsDownload, CacheEntry, CacheRestore, CacheSave, Checkout};
use muster_agent_api::plan::{Call, JobPlan, Step};

/// Declarations in the plan of a job.
#[derive(Debug, Clone, Default)]
pub struct Declared {
    /// Checkout of the job. `None` means no sources.
    pub checkout: Option<Checkout>,
    /// Caches to restore.
    pub restore: Vec<CacheEntry>,
    /// Caches to save, without duplicates.
    pub save: Vec<CacheEntry>,
    /// Jobs whose artifacts this job may download.
    pub downloads: Vec<ArtifactSource>,
    /// Built-in steps that lists of steps must not call ([`JobPlan::reserved_builtins`]).
    pub reserved: Vec<String>,
}

impl Declared {
    /// Returns the declarations of a plan, without steps that run at another agent.
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
                // A cache with `when: always` is in two steps.
                let mut known: BTreeSet<String> = self.save.iter().map(|cache| cache.key.clone()).collect();
                self.save.extend(caches.into_iter().filter(|cache| known.insert(cache.key.clone())));
            } else if let Some(ArtifactsDownload { from }) = step.call.inputs() {
                self.downloads.extend(from);
            }
        }
    }
}
