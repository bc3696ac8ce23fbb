//! The index of `state.log`: the latest line about each job, runner and lane (one long-poll slot of a runner).

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use muster_config::settings::{RunnerKey, RunnerSettings};
use muster_runner_api::retry::{Backoff, Policy};

use super::log::{CompactedLog, Compactor, LineSpan, Log, line_bytes};
use super::record::{Content, Lane, Record, RecordHeader, VERSION};
use super::{JobRunId, StoreError, StoredJob};
use crate::state::JobState;

/// Sizes below which the file is not compacted: while jobs exist, and without jobs.
///
/// Without jobs, tokens of ended jobs should not remain on disk.
const MIN_COMPACTION_BYTES: [u64; 2] = [8 * 1024 * 1024, 64 * 1024];
/// The file is compacted when it is this many times longer than its live lines.
const GARBAGE_RATIO: u64 = 4;
/// Waits after failed attempts to compact the file. Each attempt copies all live lines.
pub(super) const COMPACTION_RETRY: Policy =
    Policy { first: Duration::from_secs(1), cap: Duration::from_secs(60), attempts: None };

#[derive(Debug)]
pub(super) struct StateIndex {
    log: Log,
    jobs: HashMap<JobRunId, Row>,
    runners: HashMap<String, LineSpan>,
    /// Key of the next request of each lane. `None` means that the lane was deleted: the line of a stored job may still
    /// contain it.
    lanes: HashMap<(RunnerKey, u32), Option<String>>,
    /// Whether written lines are not synced yet.
    pub(super) unsynced: bool,
    pub(super) has_sync_task: bool,
    /// Whether a sync failed. Some lines may then never reach the disk, even if the next sync of the same file succeeds,
    /// because the system has dropped them from its cache. Only a new file with all lines is reliable.
    pub(super) must_rewrite: bool,
    /// Failures since the last success, and the wait until the next attempt to compact the file.
    pub(super) compaction_backoff: Backoff,
    /// Replaces the file in the next sync.
    #[cfg(test)]
    pub(super) unsyncable: Option<std::fs::File>,
    /// [`MIN_COMPACTION_BYTES`], except in tests.
    pub(super) min_compaction_bytes: [u64; 2],
}

#[derive(Debug)]
struct Row {
    runner: Option<String>,
    received_ms: i64,
    job: LineSpan,
    /// `None` while the job is `received`.
    state: Option<LineSpan>,
}

impl StateIndex {
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let (mut jobs, mut runners, mut lanes) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut newer = None;
        let read = |span: LineSpan, text: &str| match serde_json::from_str::<RecordHeader>(text) {
            Ok(RecordHeader::Version(version)) => newer = (version > VERSION).then_some(version),
            Ok(RecordHeader::Runner { digest }) => drop(runners.insert(digest, span)),
            Ok(RecordHeader::Lane(lane)) => drop(lanes.insert((lane.runner, lane.lane), Some(lane.key))),
            Ok(RecordHeader::RemovedLane { runner, lane }) => drop(lanes.insert((runner, lane), None)),
            Ok(RecordHeader::Job { run, runner, received_ms, lane }) => {
                jobs.insert(run, Row { runner, received_ms, job: span, state: None });
                if let Some(lane) = lane {
                    lanes.insert((lane.runner, lane.lane), Some(lane.key));
                }
            }
            Ok(RecordHeader::State { run }) => match jobs.get_mut(&run) {
                Some(row) => row.state = Some(span),
                None => tracing::warn!(job = %run, "ignoring the state of a job that is not in state.log"),
            },
            Ok(RecordHeader::Removed { run }) => drop(jobs.remove(&run)),
            Err(error) => tracing::error!(%error, "ignoring an invalid line of state.log"),
        };
        let failed = |source| StoreError::File { path: path.to_owned(), source };
        let log = Log::open(path, &encode(&Record::Version(VERSION))?, read).map_err(failed)?;
        match newer {
            Some(version) => Err(StoreError::Newer { path: path.to_owned(), version }),
            None => Ok(Self {
                log,
                jobs,
                runners,
                lanes,
                unsynced: false,
                has_sync_task: false,
                must_rewrite: false,
                compaction_backoff: Backoff::new(COMPACTION_RETRY),
                #[cfg(test)]
                unsyncable: None,
                min_compaction_bytes: MIN_COMPACTION_BYTES,
            }),
        }
    }

    pub(super) fn contains(&self, run: &JobRunId) -> bool {
        self.jobs.contains_key(run)
    }

    /// Returns all jobs, the oldest first. An unreadable job is left out and logged, and keeps its lines.
    pub(super) fn jobs(&self) -> Vec<StoredJob> {
        let mut runners = HashMap::new();
        for (digest, span) in &self.runners {
            match self.content(*span) {
                Ok(Content::Runner { settings }) => drop(runners.insert(digest.as_str(), Arc::from(settings))),
                Ok(_) => tracing::error!("invalid settings of a runner in state.log"),
                Err(error) => tracing::error!(%error, "failed to read the settings of a runner in state.log"),
            }
        }
        let mut rows: Vec<_> = self.jobs.iter().collect();
        rows.sort_by_key(|(run, row)| (row.received_ms, *run));
        let read = rows.into_iter().filter_map(|(run, row)| {
            let runner = row.runner.as_deref().and_then(|digest| runners.get(digest).cloned());
            let job = self.job_of(run, row, runner);
            job.inspect_err(|error| {
                tracing::error!(
                    error = error as &dyn std::error::Error,
                    "failed to read a job in state.log, keeping its lines"
                )
            })
            .ok()
        });
        read.collect()
    }

    /// Returns a job that `runner` received.
    pub(super) fn job(&self, run: &JobRunId, runner: &Arc<RunnerSettings>) -> Result<Option<StoredJob>, StoreError> {
        self.jobs.get(run).map(|row| self.job_of(run, row, Some(Arc::clone(runner)))).transpose()
    }

    /// Returns the token of a job's assignment. `None` if the job is not stored.
    pub(super) fn token(&self, run: &JobRunId) -> Option<Result<String, StoreError>> {
        self.jobs.get(run).map(|row| Ok(self.job_of(run, row, None)?.payload.token))
    }

    fn job_of(&self, run: &JobRunId, row: &Row, runner: Option<Arc<RunnerSettings>>) -> Result<StoredJob, StoreError> {
        let unreadable = |source| StoreError::Row { job: run.clone(), source };
        let misplaced = || unreadable(io::Error::other("the line has a record of another kind"));
        let Content::Job { payload } = self.content(row.job).map_err(unreadable)? else { return Err(misplaced()) };
        let state = match row.state.map(|span| self.content(span)).transpose().map_err(unreadable)? {
            None => JobState::received(),
            Some(Content::State { state }) => *state,
            Some(_) => return Err(misplaced()),
        };
        Ok(StoredJob { run: run.clone(), runner, payload: *payload, state, received_ms: row.received_ms })
    }

    fn content(&self, span: LineSpan) -> io::Result<Content> {
        Ok(serde_json::from_str(&self.log.read(span)?)?)
    }

    pub(super) fn has_runner(&self, digest: &str) -> bool {
        self.runners.contains_key(digest)
    }

    pub(super) fn lane_key(&self, runner: &RunnerKey, lane: u32) -> Option<&str> {
        self.lanes.get(&(runner.clone(), lane))?.as_deref()
    }

    /// Returns the numbers of the runner's lanes that have a key.
    pub(super) fn lanes_of(&self, runner: &RunnerKey) -> BTreeSet<u32> {
        let existing = self.lanes.iter().filter(|((owner, _), key)| owner == runner && key.is_some());
        existing.map(|((_, lane), _)| *lane).collect()
    }

    /// Checks that the next start will find the written lines.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.log.check().map_err(|source| self.failed(source))
    }

    pub(super) fn add(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let text = encode(record)?;
        let span = self.log.append(&text).map_err(|source| self.failed(source))?;
        self.unsynced = true;
        match *record {
            Record::Version(_) => {}
            Record::Runner { digest, .. } => drop(self.runners.insert(digest.to_owned(), span)),
            Record::Lane(lane) => self.put(lane),
            Record::RemovedLane { runner, lane } => drop(self.lanes.insert((runner.clone(), lane), None)),
            Record::Job { run, runner, received_ms, lane, .. } => {
                let row = Row { runner: runner.map(str::to_owned), received_ms, job: span, state: None };
                self.jobs.insert(run.clone(), row);
                if let Some(lane) = lane {
                    self.put(lane);
                }
            }
            Record::State { run, .. } => {
                if let Some(row) = self.jobs.get_mut(run) {
                    row.state = Some(span);
                }
            }
            Record::Removed { run } => drop(self.jobs.remove(run)),
        }
        Ok(())
    }

    fn put(&mut self, lane: &Lane) {
        self.lanes.insert((lane.runner.clone(), lane.lane), Some(lane.key.clone()));
    }

    pub(super) fn limit(&self) -> Arc<AtomicU64> {
        self.log.limit()
    }

    /// Returns a handle for a thread that syncs the file.
    pub(super) fn file_handle(&mut self) -> Result<std::fs::File, StoreError> {
        #[cfg(test)]
        if let Some(file) = self.unsyncable.take() {
            return Ok(file);
        }
        self.log.file_handle().map_err(|source| self.failed(source))
    }

    /// `None` means that the file need not be rewritten, and is too small, or not enough of it is obsolete.
    pub(super) fn compactor(&mut self) -> Result<Option<Compactor>, StoreError> {
        let [busy, idle] = self.min_compaction_bytes;
        if !self.must_rewrite && self.log.bytes() < if self.jobs.is_empty() { idle } else { busy } {
            return Ok(None);
        }
        let used: Vec<&str> = self.jobs.values().filter_map(|row| row.runner.as_deref()).collect();
        // The settings are stored again when the runner gets a job.
        self.runners.retain(|digest, _| used.contains(&digest.as_str()));
        let rows = self.jobs.values().flat_map(|row| [Some(row.job), row.state]).flatten();
        let spans: Vec<LineSpan> = self.runners.values().copied().chain(rows).collect();
        // The copy gets new lines with the current keys of all lanes: a key may be in the line of a removed job, and the
        // copy does not have this line. These keys follow the lines of the remaining jobs, which may have older keys.
        let has_jobs = !self.jobs.is_empty();
        self.lanes.retain(|_, key| key.is_some() || has_jobs);
        let lanes = self.lanes.iter().map(|((runner, lane), key)| match key {
            Some(key) => encode(&Record::Lane(&Lane { runner: runner.clone(), lane: *lane, key: key.clone() })),
            None => encode(&Record::RemovedLane { runner, lane: *lane }),
        });
        let lanes = lanes.collect::<Result<Vec<_>, _>>()?;
        let lane_bytes = lanes.iter().map(|text| line_bytes(text));
        let live_bytes: u64 = spans.iter().map(|span| span.bytes()).chain(lane_bytes).sum();
        if !self.must_rewrite && self.log.bytes() < live_bytes * GARBAGE_RATIO {
            return Ok(None);
        }
        self.log.compactor(spans, lanes).map(Some).map_err(|source| self.failed(source))
    }

    pub(super) fn replace_with(&mut self, copied: CompactedLog) -> Result<(), StoreError> {
        let offsets = self.log.replace_with(copied).map_err(|source| self.failed(source))?;
        let rows = self.jobs.values_mut().flat_map(|row| [Some(&mut row.job), row.state.as_mut()]).flatten();
        for span in self.runners.values_mut().chain(rows) {
            *span = span.relocated(&offsets);
        }
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        self.log.path()
    }

    fn failed(&self, source: io::Error) -> StoreError {
        StoreError::File { path: self.log.path().to_owned(), source }
    }
}

pub(super) fn encode(record: &Record<'_>) -> Result<String, StoreError> {
    serde_json::to_string(record).map_err(StoreError::Encode)
}
