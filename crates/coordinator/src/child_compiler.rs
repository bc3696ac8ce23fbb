//! Compiles the configurations of child pipelines for bridges (docs/spec/pipeline-yaml.md, section 5.9).
//!
//! Compilation runs outside the actor. After a crash, the engine requests the child pipeline again.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use muster_job::JobId;
use tokio::task::{self, JoinSet};

use crate::blobs::Blobs;
use crate::child::{ChildError, ChildPlan, ChildResult, failed};
use crate::options::Limits;

/// Message of a bridge whose compilation panicked.
const PANICKED: &str = "the compiler panicked on this configuration (this is a bug, please report it)";

pub(crate) struct ChildCompiler {
    blobs: Arc<dyn Blobs>,
    /// Bridges that requested a child pipeline in the actor's current batch. Compilation starts after the batch is
    /// written to the store.
    requested: Vec<JobId>,
    /// Bridges of an earlier process that wait for the files of their pipeline.
    waiting_for_sources: BTreeSet<JobId>,
    compiling: JoinSet<ChildResult>,
    /// Bridge of each task in `compiling`.
    bridges: HashMap<task::Id, JobId>,
}

impl ChildCompiler {
    pub(crate) fn new(blobs: Arc<dyn Blobs>) -> Self {
        let (requested, waiting_for_sources) = (Vec::new(), BTreeSet::new());
        Self { blobs, requested, waiting_for_sources, compiling: JoinSet::new(), bridges: HashMap::new() }
    }

    pub(crate) fn request(&mut self, bridge: JobId) {
        self.requested.push(bridge);
    }

    pub(crate) fn take_requested(&mut self) -> Vec<JobId> {
        std::mem::take(&mut self.requested)
    }

    pub(crate) fn wait_for_sources(&mut self, bridge: JobId) {
        self.waiting_for_sources.insert(bridge);
    }

    /// Requests the child pipelines of all waiting bridges again, because files were attached to a pipeline.
    pub(crate) fn sources_attached(&mut self) {
        self.requested.extend(std::mem::take(&mut self.waiting_for_sources));
    }

    /// Returns whether the bridge was waiting.
    pub(crate) fn stop_waiting(&mut self, bridge: JobId) -> bool {
        self.waiting_for_sources.remove(&bridge)
    }

    /// Starts to compile a plan. [`ChildCompiler::next`] returns the result, or the error of a failed plan.
    pub(crate) fn start(&mut self, bridge: JobId, plan: Result<ChildPlan, ChildError>, limits: Limits) {
        let blobs = Arc::clone(&self.blobs);
        self.spawn(bridge, async move { plan?.compile(limits, &*blobs).await });
    }

    fn spawn(&mut self, bridge: JobId, work: impl Future<Output = ChildResult> + Send + 'static) {
        let task = self.compiling.spawn(work);
        self.bridges.insert(task.id(), bridge);
    }

    /// Returns the next result. Waits indefinitely if nothing is being compiled. Cancel-safe.
    ///
    /// A panic becomes an error, because the bridge would otherwise wait indefinitely.
    pub(crate) async fn next(&mut self) -> (JobId, ChildResult) {
        loop {
            let (task, result) = match self.compiling.join_next_with_id().await {
                Some(Ok((task, result))) => (task, result),
                // Tasks are aborted only at shutdown, so the reason is a panic.
                Some(Err(error)) => (error.id(), Err(failed(PANICKED))),
                None => return std::future::pending().await,
            };
            if let Some(bridge) = self.bridges.remove(&task) {
                return (bridge, result);
            }
        }
    }

    /// Aborts all compilations. The engine requests them again after the next start.
    pub(crate) async fn stop(&mut self) {
        self.compiling.shutdown().await;
        self.bridges.clear();
    }
}

#[cfg(test)]
mod tests {
    use muster_job::FailureReason;

    use super::*;
    use crate::blobs::memory::MemoryBlobs;

    #[tokio::test]
    async fn panic_fails_the_bridge() {
        let mut compiler = ChildCompiler::new(Arc::new(MemoryBlobs::default()));
        compiler.spawn(JobId(7), async { panic!("a defect outside the compiler") });
        let (bridge, result) = compiler.next().await;
        let error = result.err().expect("an error");
        assert_eq!((bridge, error.reason), (JobId(7), FailureReason::DownstreamPipelineCreationFailed));
        assert!(error.message.contains("panicked"), "{error:?}");
    }
}
