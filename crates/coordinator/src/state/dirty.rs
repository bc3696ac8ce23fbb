//! Changes that are not in the store yet: changed rows, and events.

use std::collections::BTreeSet;

use muster_job::{JobId, PipelineId};

use super::CoordinatorState;
use crate::clock::Timestamp;
use crate::outbox::{JobChange, NewJobEvent};
use crate::store::{Changes, JobRow};

#[derive(Debug, Default)]
pub(crate) struct Dirty {
    pub(crate) new_pipelines: BTreeSet<PipelineId>,
    pub(crate) pipelines: BTreeSet<PipelineId>,
    pub(crate) jobs: BTreeSet<JobId>,
    pub(crate) artifacts: BTreeSet<(JobId, String)>,
    pub(crate) deleted_artifacts: BTreeSet<(JobId, String)>,
    pub(crate) events: Vec<NewJobEvent>,
}

impl Dirty {
    pub(super) fn add_event(&mut self, at: Timestamp, row: &JobRow, change: JobChange) {
        self.events.push(NewJobEvent { at, pipeline: row.pipeline, job: row.id, change });
    }

    /// Adds the exit code to the newest event about the end of the job.
    pub(crate) fn set_exit_code(&mut self, job: JobId, code: Option<i64>) {
        let changes = self.events.iter_mut().rev().filter(|event| event.job == job).map(|event| &mut event.change);
        for change in changes {
            if let JobChange::Ended { exit_code, .. } = change {
                *exit_code = code;
                return;
            }
        }
    }
}

impl CoordinatorState {
    pub(crate) fn changes(&self) -> Changes<'_> {
        let dirty = &self.dirty;
        let artifact = |(job, kind): &(JobId, String)| self.artifact(*job, kind);
        let mut changes = Changes {
            new_pipelines: dirty.new_pipelines.iter().filter_map(|id| self.pipelines.get(id)).collect(),
            pipelines: dirty
                .pipelines
                .difference(&dirty.new_pipelines)
                .filter_map(|id| self.pipelines.get(id))
                .collect(),
            jobs: dirty.jobs.iter().filter_map(|id| self.jobs.get(id)).collect(),
            artifacts: dirty.artifacts.iter().filter_map(artifact).collect(),
            deleted_artifacts: dirty.deleted_artifacts.iter().collect(),
            events: &dirty.events,
            ..Changes::default()
        };
        self.registry.add_changes(&mut changes);
        changes
    }

    pub(crate) fn mark_written(&mut self) -> Dirty {
        self.registry.mark_written();
        std::mem::take(&mut self.dirty)
    }
}
