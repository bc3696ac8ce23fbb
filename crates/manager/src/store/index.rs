//! The index of `state.log`: the position of the last valid line about each job, runner and lane.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use muster_config::settings::{RunnerKey, RunnerSettings};

use super::log::{CompactedLog, Compactor, LineSpan, Log};
use super::record::{Content, Lane, Record, RecordHeader, VERSION};
use super::{JobRunId, StoreError, StoredJob};
use crate::state::JobState;

/// Size in bytes below which the file is not compacted: while there are jobs, and without jobs, when it only has expired tokens.
const SMALL_BYTES: [u64; 2] = [8 * 1024 * 1024, 64 * 1024];
/// The file is compacted when it is this many times as long as its valid lines.
const GARBAGE_RATIO: u64 = 4;

/// The file and the positions of its valid lines.
#[derive(Debug)]
pub(super) struct StateIndex {
    log: Log,
    jobs: HashMap<JobRunId, Row>,
    runners: HashMap<String, LineSpan>,
    lanes: HashMap<(RunnerKey, u32), (String, LineSpan)>,
    /// Whether something was written that is not synced yet.
    pub(super) unsynced: bool,
    /// Whether a task runs that syncs what is written.
    pub(super) kept: bool,
    pub(super) small_bytes: [u64; 2],
}

/// Positions of one job's lines.
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
        let mut put = |lane: Lane, place| drop(lanes.insert((lane.runner, lane.lane), (lane.key, place)));
        let read = |place: LineSpan, text: &str| match serde_json::from_str::<RecordHeader>(text) {
            Ok(RecordHeader::Version(version)) => newer = (version > VERSION).then_some(version),
            Ok(RecordHeader::Runner { digest }) => drop(runners.insert(digest, place)),
            Ok(RecordHeader::Lane(lane)) => put(lane, place),
            Ok(RecordHeader::Job { run, runner, received_ms, lane }) => {
                jobs.insert(run, Row { runner, received_ms, job: place, state: None });
                if let Some(lane) = lane {
                    put(lane, place);
                }
            }
            Ok(RecordHeader::State { run }) => match jobs.get_mut(&run) {
                Some(row) => row.state = Some(place),
                None => tracing::warn!(job = %run, "ignoring the state of a job that is not in state.log"),
            },
            Ok(RecordHeader::Removed { run }) => drop(jobs.remove(&run)),
            Err(error) => tracing::error!(%error, "ignoring an invalid line of state.log"),
        };
        let failed = |source| StoreError::File { path: path.to_owned(), source };
        let log = Log::open(path, &encode(&Record::Version(VERSION))?, read).map_err(failed)?;
        match newer {
            Some(version) => Err(StoreError::Newer { path: path.to_owned(), version }),
            None => Ok(Self { log, jobs, runners, lanes, unsynced: false, kept: false, small_bytes: SMALL_BYTES }),
        }
    }

    pub(super) fn knows(&self, run: &JobRunId) -> bool {
        self.jobs.contains_key(run)
    }

    /// Returns every job, oldest first. A job that cannot be read is logged and keeps its lines.
    pub(super) fn jobs(&self) -> Vec<StoredJob> {
        let mut runners = HashMap::new();
        for (digest, place) in &self.runners {
            match self.content(*place) {
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
                    "failed to read a job in state.log, leaving its row"
                )
            })
            .ok()
        });
        read.collect()
    }

    /// Returns one job with the `runner` that received it.
    pub(super) fn job(&self, run: &JobRunId, runner: &Arc<RunnerSettings>) -> Result<Option<StoredJob>, StoreError> {
        self.jobs.get(run).map(|row| self.job_of(run, row, Some(Arc::clone(runner)))).transpose()
    }

    fn job_of(&self, run: &JobRunId, row: &Row, runner: Option<Arc<RunnerSettings>>) -> Result<StoredJob, StoreError> {
        let unreadable = |source| StoreError::Row { job: run.clone(), source };
        let misplaced = || unreadable(io::Error::other("the line is of another kind"));
        let Content::Job { payload } = self.content(row.job).map_err(unreadable)? else { return Err(misplaced()) };
        let state = match row.state.map(|place| self.content(place)).transpose().map_err(unreadable)? {
            None => JobState::received(),
            Some(Content::State { state }) => state,
            Some(_) => return Err(misplaced()),
        };
        Ok(StoredJob { run: run.clone(), runner, payload: *payload, state, received_ms: row.received_ms })
    }

    fn content(&self, place: LineSpan) -> io::Result<Content> {
        Ok(serde_json::from_str(&self.log.read(place)?)?)
    }

    pub(super) fn has_runner(&self, digest: &str) -> bool {
        self.runners.contains_key(digest)
    }

    pub(super) fn lane_key(&self, runner: &RunnerKey, lane: u32) -> Option<&str> {
        self.lanes.get(&(runner.clone(), lane)).map(|(key, _)| key.as_str())
    }

    /// Checks that the next start will find what is written.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.log.check().map_err(|source| self.failed(source))
    }

    /// Writes a record and then indexes it.
    pub(super) fn add(&mut self, record: &Record<'_>) -> Result<(), StoreError> {
        let text = encode(record)?;
        let place = self.log.append(&text).map_err(|source| self.failed(source))?;
        self.unsynced = true;
        match *record {
            Record::Version(_) => {}
            Record::Runner { digest, .. } => drop(self.runners.insert(digest.to_owned(), place)),
            Record::Lane(lane) => self.put(lane, place),
            Record::Job { run, runner, received_ms, lane, .. } => {
                let row = Row { runner: runner.map(str::to_owned), received_ms, job: place, state: None };
                self.jobs.insert(run.clone(), row);
                if let Some(lane) = lane {
                    self.put(lane, place);
                }
            }
            Record::State { run, .. } => {
                if let Some(row) = self.jobs.get_mut(run) {
                    row.state = Some(place);
                }
            }
            Record::Removed { run } => drop(self.jobs.remove(run)),
        }
        Ok(())
    }

    fn put(&mut self, lane: &Lane, place: LineSpan) {
        self.lanes.insert((lane.runner.clone(), lane.lane), (lane.key.clone(), place));
    }

    pub(super) fn limit(&self) -> Arc<AtomicU64> {
        self.log.limit()
    }

    /// Returns a handle of the file, for a thread that syncs it.
    pub(super) fn handle(&self) -> Result<std::fs::File, StoreError> {
        self.log.handle().map_err(|source| self.failed(source))
    }

    /// Returns what another thread needs to compact the file. `None` if most of its lines are valid.
    pub(super) fn compactor(&mut self) -> Result<Option<Compactor>, StoreError> {
        let used: Vec<&str> = self.jobs.values().filter_map(|row| row.runner.as_deref()).collect();
        // The next job of a runner that is unused now stores its settings again.
        self.runners.retain(|digest, _| used.contains(&digest.as_str()));
        let rows = self.jobs.values().flat_map(|row| [Some(row.job), row.state]).flatten();
        let mut places: Vec<LineSpan> = self.runners.values().copied().chain(rows).collect();
        let counts: u64 = places.iter().map(|place| place.bytes()).sum();
        let [busy, idle] = self.small_bytes;
        let small_bytes = if self.jobs.is_empty() { idle } else { busy };
        if self.log.bytes() < (counts * GARBAGE_RATIO).max(small_bytes) {
            return Ok(None);
        }
        // Lanes come last, because the lines of jobs have older keys. They get lines of their own, because those of ended jobs are dropped.
        let lanes: Vec<_> =
            self.lanes.iter().map(|((runner, lane), (key, _))| (runner.clone(), *lane, key.clone())).collect();
        for (runner, lane, key) in lanes {
            self.add(&Record::Lane(&Lane { runner, lane, key }))?;
        }
        places.extend(self.lanes.values().map(|(_, place)| *place));
        self.log.compactor(places).map(Some).map_err(|source| self.failed(source))
    }

    /// Continues with the compacted file.
    pub(super) fn copied(&mut self, copied: CompactedLog) -> Result<(), StoreError> {
        let offsets = self.log.copied(copied).map_err(|source| self.failed(source))?;
        let rows = self.jobs.values_mut().flat_map(|row| [Some(&mut row.job), row.state.as_mut()]).flatten();
        let lanes = self.lanes.values_mut().map(|(_, place)| place);
        for place in self.runners.values_mut().chain(rows).chain(lanes) {
            *place = place.moved(&offsets);
        }
        Ok(())
    }

    fn failed(&self, source: io::Error) -> StoreError {
        StoreError::File { path: self.log.path().to_owned(), source }
    }
}

pub(super) fn encode(record: &Record<'_>) -> Result<String, StoreError> {
    serde_json::to_string(record).map_err(StoreError::Encode)
}
