//! Compiles the configurations of child pipelines for bridges (docs/spec/pipeline-yaml.md, section 5.9).
//!
//! A configuration is read and compiled on a separate thread. The result returns to the actor, which creates the pipeline or fails the
//! bridge. After a crash in between, the engine requests the child pipeline again.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_job::JobId;
use tokio::task::JoinSet;

use crate::blobs::Blobs;
use crate::child::{ChildError, ChildPlan, ChildResult};
use crate::options::Limits;

/// The bridges that wait for their child pipelines.
pub(crate) struct ChildCompiler {
    blobs: Arc<dyn Blobs>,
    /// Bridges whose child configuration is compiled after the batch is written.
    requested: Vec<JobId>,
    /// Bridges of an earlier process that wait for the files of their pipeline.
    waiting_for_sources: BTreeSet<JobId>,
    /// Configurations that are being compiled, with their bridges.
    compiling: JoinSet<(JobId, ChildResult)>,
}

impl ChildCompiler {
    /// Creates a compiler that reads the archives of jobs from `blobs`.
    pub(crate) fn new(blobs: Arc<dyn Blobs>) -> Self {
        let (requested, waiting_for_sources) = (Vec::new(), BTreeSet::new());
        Self { blobs, requested, waiting_for_sources, compiling: JoinSet::new() }
    }

    /// Requests the child pipeline of a bridge.
    pub(crate) fn request(&mut self, bridge: JobId) {
        self.requested.push(bridge);
    }

    /// Removes and returns the bridges whose child pipeline was requested.
    pub(crate) fn take_requested(&mut self) -> Vec<JobId> {
        std::mem::take(&mut self.requested)
    }

    /// Makes a bridge wait until the files of its pipeline are attached.
    pub(crate) fn wait_for_sources(&mut self, bridge: JobId) {
        self.waiting_for_sources.insert(bridge);
    }

    /// Requests the child pipelines of all bridges that waited for files.
    pub(crate) fn sources_attached(&mut self) {
        self.requested.extend(std::mem::take(&mut self.waiting_for_sources));
    }

    /// Stops waiting for the files of a bridge's pipeline. Returns whether the bridge was waiting.
    pub(crate) fn stop_waiting(&mut self, bridge: JobId) -> bool {
        self.waiting_for_sources.remove(&bridge)
    }

    /// Starts to compile the child configuration of a bridge. [`ChildCompiler::next`] returns the result, also for a failed plan.
    pub(crate) fn start(&mut self, bridge: JobId, plan: Result<ChildPlan, ChildError>, limits: Limits) {
        let blobs = Arc::clone(&self.blobs);
        self.compiling.spawn(async move {
            let result = match plan {
                Ok(plan) => plan.compile(limits, &*blobs).await,
                Err(error) => Err(error),
            };
            (bridge, result)
        });
    }

    /// Returns the next result. Waits indefinitely if nothing is being compiled. Cancel-safe.
    pub(crate) async fn next(&mut self) -> (JobId, ChildResult) {
        loop {
            match self.compiling.join_next().await {
                Some(Ok(compiled)) => return compiled,
                // Tasks are aborted only at shutdown.
                Some(Err(error)) => tracing::error!(%error, "compilation of a child pipeline was aborted"),
                None => return std::future::pending().await,
            }
        }
    }

    /// Aborts all compilations. The engine requests them again after the next start.
    pub(crate) async fn stop(&mut self) {
        self.compiling.shutdown().await;
    }
}
