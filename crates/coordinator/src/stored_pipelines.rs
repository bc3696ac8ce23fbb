//! Reads pipelines that are not in memory: finished pipelines, and pipelines of a run whose coordinator is no longer running.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;

use muster_job::{JobId, PipelineId};

use crate::blobs::{ArtifactName, Blobs};
use crate::error::CoordinatorError;
use crate::state::CoordinatorState;
use crate::store::{JobRow, Member, Store};
use crate::upstream::{Obstacle, UpstreamOutputs, UpstreamResolver};
use crate::views::{self, JobView, PipelineSummary, PipelineView};

#[derive(Debug, Clone)]
pub(crate) struct StoredPipelines {
    store: Arc<dyn Store>,
    blobs: Arc<dyn Blobs>,
}

impl StoredPipelines {
    pub(crate) fn new(store: Arc<dyn Store>, blobs: Arc<dyn Blobs>) -> Self {
        Self { store, blobs }
    }

    pub(crate) async fn summaries(
        &self,
        after: PipelineId,
        limit: usize,
    ) -> Result<Vec<PipelineSummary>, CoordinatorError> {
        let rows = self.store.pipelines(after, limit).await?;
        Ok(rows.iter().map(|row| views::summary(row, None)).collect())
    }

    pub(crate) async fn pipeline(&self, id: PipelineId) -> Result<PipelineView, CoordinatorError> {
        self.hierarchy(Member::Pipeline(id)).await?.pipeline_view(id, None)
    }

    pub(crate) async fn job(&self, id: JobId) -> Result<JobView, CoordinatorError> {
        let view = self.hierarchy(Member::Job(id)).await?.job_view(id);
        view.ok_or_else(|| not_found(Member::Job(id)))
    }

    pub(crate) async fn hierarchy(&self, member: Member) -> Result<CoordinatorState, CoordinatorError> {
        let contents = self.store.hierarchy(member).await?;
        if contents.pipelines.is_empty() { Err(not_found(member)) } else { Ok(CoordinatorState::read_only(contents)) }
    }

    pub(crate) async fn open_artifact(&self, name: &ArtifactName) -> Result<File, CoordinatorError> {
        let missing = || CoordinatorError::NotFound(format!("file `{}` of job {}", name.filename, name.job));
        self.blobs.open(name).await?.ok_or_else(missing)
    }

    /// Returns the outputs that the job of `row` got from earlier jobs, and a message about each output that no longer
    /// exists.
    ///
    /// Reads the hierarchies of the earlier jobs into `state` if necessary.
    pub(crate) async fn upstream(
        &self,
        state: &mut CoordinatorState,
        row: &JobRow,
    ) -> Result<UpstreamOutputs, CoordinatorError> {
        let assigned_at = row.started_at.or(row.queued_at).unwrap_or(row.created_at);
        let mut absent = BTreeSet::new();
        loop {
            let is_loaded_or_absent = |pipeline| state.pipelines.contains_key(&pipeline) || absent.contains(&pipeline);
            let resolver = UpstreamResolver {
                state,
                blobs: &*self.blobs,
                now: assigned_at,
                skips_missing: true,
                is_loaded_or_absent: Box::new(is_loaded_or_absent),
            };
            let pipeline = match resolver.outputs_for(row) {
                Ok(upstream) => return Ok(upstream),
                // Missing outputs are skipped, so the pipeline or the configuration of the job itself is missing.
                Err(Obstacle::Undispatchable(failure)) => return Err(CoordinatorError::NotFound(failure.message)),
                Err(Obstacle::NotInMemory(pipeline)) => pipeline,
            };
            drop(resolver);
            let contents = self.store.hierarchy(Member::Pipeline(pipeline)).await?;
            if contents.pipelines.is_empty() {
                absent.insert(pipeline);
            }
            state.add_rows(contents);
        }
    }
}

pub(crate) fn not_found(member: Member) -> CoordinatorError {
    CoordinatorError::NotFound(match member {
        Member::Pipeline(id) => format!("pipeline {id}"),
        Member::Job(id) => format!("job {id}"),
    })
}
