//! A store in the memory of this process: for tests, and for a coordinator that writes no files.

use std::collections::BTreeMap;

use async_trait::async_trait;
use muster_job::{JobId, PipelineId, RunnerId};
use parking_lot::Mutex;

use super::{ArtifactRow, Changes, Contents, JobRow, LastIds, ManagerRow, Member, PipelineRow, RunnerRow, Store};
use crate::clock::Timestamp;
use crate::error::StoreError;
use crate::outbox::JobEvent;

#[derive(Debug, Default)]
pub(crate) struct MemoryStore(Mutex<Option<Tables>>);

#[derive(Debug, Default, Clone)]
struct Tables {
    runners: BTreeMap<RunnerId, RunnerRow>,
    managers: BTreeMap<(RunnerId, String), ManagerRow>,
    pipelines: BTreeMap<PipelineId, PipelineRow>,
    jobs: BTreeMap<JobId, JobRow>,
    artifacts: BTreeMap<(JobId, String), ArtifactRow>,
    events: BTreeMap<u64, JobEvent>,
    last_event: u64,
    last_runner: Option<RunnerId>,
}

impl MemoryStore {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Some(Tables::default())))
    }

    fn with<T>(&self, work: impl FnOnce(&mut Tables) -> T) -> Result<T, StoreError> {
        self.0.lock().as_mut().map(work).ok_or(StoreError::Closed)
    }
}

impl Tables {
    fn apply(&mut self, changes: &Changes<'_>) {
        for id in &changes.removed_runners {
            self.runners.remove(id);
            self.managers.retain(|(runner, _), _| runner != id);
        }
        for key in &changes.removed_managers {
            self.managers.remove(*key);
        }
        self.last_runner = self.last_runner.max(changes.runners.iter().map(|row| row.id).max());
        self.runners.extend(changes.runners.iter().map(|row| (row.id, (*row).clone())));
        for row in &changes.managers {
            self.managers.insert((row.runner, row.system_id.clone()), (*row).clone());
        }
        let pipelines = changes.new_pipelines.iter().chain(&changes.pipelines);
        self.pipelines.extend(pipelines.map(|row| (row.id, (*row).clone())));
        self.jobs.extend(changes.jobs.iter().map(|row| (row.id, (*row).clone())));
        for row in &changes.artifacts {
            self.artifacts.insert((row.job, row.kind.clone()), (*row).clone());
        }
        for key in &changes.deleted_artifacts {
            if let Some(row) = self.artifacts.get_mut(*key) {
                row.deleted = true;
            }
        }
        for event in changes.events {
            self.last_event += 1;
            self.events.insert(self.last_event, event.numbered(self.last_event));
        }
    }

    fn check(&self, changes: &Changes<'_>) -> Result<(), StoreError> {
        let rejected = |message: &str| {
            StoreError::Failed(std::sync::Arc::from(Box::<dyn std::error::Error + Send + Sync>::from(message)))
        };
        let runner_exists =
            |id: &RunnerId| self.runners.contains_key(id) || changes.runners.iter().any(|row| row.id == *id);
        if !changes.managers.iter().all(|row| runner_exists(&row.runner)) {
            return Err(rejected("a manager has no runner"));
        }
        if changes.new_pipelines.iter().any(|row| self.pipelines.contains_key(&row.id)) {
            return Err(rejected("two pipelines have the same ID"));
        }
        Ok(())
    }

    fn select(&self, predicate: impl Fn(&PipelineRow) -> bool) -> Contents {
        let pipelines: Vec<_> = self.pipelines.values().filter(|row| predicate(row)).cloned().collect();
        let is_selected = |id: &PipelineId| pipelines.binary_search_by_key(id, |row| row.id).is_ok();
        let jobs: Vec<_> = self.jobs.values().filter(|row| is_selected(&row.pipeline)).cloned().collect();
        let of_job = |row: &&ArtifactRow| jobs.binary_search_by_key(&row.job, |job| job.id).is_ok();
        let artifacts = self.artifacts.values().filter(of_job).cloned().collect();
        Contents { runners: Vec::new(), managers: Vec::new(), pipelines, jobs, artifacts }
    }

    fn undeleted_artifacts(&self) -> impl Iterator<Item = &ArtifactRow> {
        self.artifacts.values().filter(|row| !row.deleted)
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn write(&self, changes: &Changes<'_>) -> Result<(), StoreError> {
        self.with(|tables| {
            tables.check(changes)?;
            tables.apply(changes);
            Ok(())
        })?
    }

    async fn unfinished_work(&self) -> Result<Contents, StoreError> {
        self.with(|tables| Contents {
            runners: tables.runners.values().cloned().collect(),
            managers: tables.managers.values().cloned().collect(),
            ..tables.select(|row| row.open)
        })
    }

    async fn last_ids(&self) -> Result<LastIds, StoreError> {
        self.with(|tables| LastIds {
            pipeline: tables.pipelines.keys().next_back().copied(),
            job: tables.jobs.keys().next_back().copied(),
            runner: tables.last_runner,
        })
    }

    async fn hierarchy(&self, member: Member) -> Result<Contents, StoreError> {
        self.with(|tables| {
            let pipeline = match member {
                Member::Pipeline(id) => Some(id),
                Member::Job(id) => tables.jobs.get(&id).map(|row| row.pipeline),
            };
            let Some(root) = pipeline.and_then(|id| tables.pipelines.get(&id)).map(|row| row.root) else {
                return Contents::default();
            };
            let mut contents = tables.select(|row| row.root == root);
            let is_used = |id: &RunnerId| contents.jobs.iter().any(|row| row.runner == Some(*id));
            contents.runners = tables.runners.values().filter(|row| is_used(&row.id)).cloned().collect();
            contents
        })
    }

    async fn pipelines(&self, after: PipelineId, limit: usize) -> Result<Vec<PipelineRow>, StoreError> {
        self.with(|tables| tables.pipelines.values().filter(|row| row.id > after).take(limit).cloned().collect())
    }

    async fn expired(&self, now: Timestamp, limit: usize) -> Result<Vec<ArtifactRow>, StoreError> {
        self.with(|tables| {
            let matching = tables.undeleted_artifacts().filter(|row| row.expires_at.is_some_and(|at| at <= now));
            let mut expired: Vec<_> = matching.cloned().collect();
            expired.sort_by_key(|row| row.expires_at);
            expired.truncate(limit);
            expired
        })
    }

    async fn next_expiry(&self) -> Result<Option<Timestamp>, StoreError> {
        self.with(|tables| tables.undeleted_artifacts().filter_map(|row| row.expires_at).min())
    }

    async fn events_after(&self, sequence: u64, limit: usize) -> Result<Vec<JobEvent>, StoreError> {
        self.with(|tables| {
            let after = tables.events.range(sequence.saturating_add(1)..);
            after.take(limit).map(|(_, event)| event.clone()).collect()
        })
    }

    async fn prune_events(&self, sequence: u64) -> Result<(), StoreError> {
        self.with(|tables| tables.events = tables.events.split_off(&sequence.saturating_add(1)))
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.0.lock().take();
        Ok(())
    }
}
