//! Passes changes from the coordinator's events to a [`Reporter`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_coordinator::JobKind;
use muster_coordinator::views::{Event, JobView, PipelineSummary};
use muster_coordinator::{Coordinator, CoordinatorError};
use muster_job::{FailureReason, JobId, JobStatus, PipelineId, TerminationCause};
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::super::args::LogMode;
use super::super::error::CiError;
use super::super::state::Run;
use super::logs::Logs;
use super::report::{Reporter, tree_of};

/// Maximum number of pipelines of a run: the root and its children.
const MAX_PIPELINES: usize = 1000;
/// Time to wait for space on a full disk before the run fails.
const STORAGE_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(super) struct RunView {
    /// The root comes first.
    pub(super) pipelines: BTreeMap<PipelineId, Arc<PipelineSummary>>,
    /// Includes jobs that a retry replaced.
    pub(super) jobs: BTreeMap<JobId, Arc<JobView>>,
}

impl RunView {
    /// Returns whether every pipeline has finished, and no job is on a runner.
    pub(super) fn is_finished(&self) -> bool {
        !self.pipelines.is_empty()
            && self.pipelines.values().all(|found| found.status.is_complete())
            && !self.jobs.values().any(|job| job.status.is_on_runner())
    }

    /// Returns whether no job will proceed without the user.
    ///
    /// May be wrong in the middle of a batch of events. Check again after [`Follower::resync`].
    pub(super) fn is_idle(&self) -> bool {
        !self.pipelines.is_empty() && !self.current_jobs().any(|job| self.will_proceed(job))
    }

    /// Returns whether a job will proceed without the user, and without the end of another job.
    fn will_proceed(&self, job: &JobView) -> bool {
        match job.status {
            JobStatus::Pending | JobStatus::Scheduled | JobStatus::Canceling => true,
            JobStatus::Running => match (job.kind, job.downstream.and_then(|child| self.pipelines.get(&child))) {
                // A bridge with an unfinished child pipeline proceeds only if the child's jobs do.
                (JobKind::Bridge, Some(child)) => child.status.is_complete(),
                _ => true,
            },
            _ => false,
        }
    }

    /// Returns whether the run is unfinished, and proceeds only if the user starts a manual job.
    pub(super) fn is_blocked(&self) -> bool {
        !self.is_finished() && self.is_idle()
    }

    /// Returns whether the run has failed: either its root pipeline has failed, or a child pipeline has failed and its
    /// bridge is successful or unfinished. A failed bridge counts like any failed job of the parent pipeline.
    ///
    /// An unfinished pipeline has failed if one of its jobs has failed without `allow_failure`.
    pub(super) fn has_failed(&self) -> bool {
        self.pipelines.values().any(|pipeline| {
            let bridge = pipeline.parent.and_then(|parent| self.jobs.get(&parent.bridge));
            let of_pipeline = |job: &&Arc<JobView>| job.pipeline == pipeline.id;
            let failed = pipeline.status == JobStatus::Failed
                || !pipeline.status.is_complete()
                    && self
                        .current_jobs()
                        .filter(of_pipeline)
                        .any(|job| job.status == JobStatus::Failed && !job.allow_failure);
            failed && bridge.is_none_or(|bridge| bridge.status == JobStatus::Success || !bridge.status.is_complete())
        })
    }

    fn is_outdated(&self, event: &Event) -> bool {
        let is_older = |reported: JobStatus, known: JobStatus| progress(reported) < progress(known);
        match event {
            Event::JobChanged(job) => self.jobs.get(&job.id).is_some_and(|known| is_older(job.status, known.status)),
            Event::PipelineChanged(pipeline) => {
                self.pipelines.get(&pipeline.id).is_some_and(|known| is_older(pipeline.status, known.status))
            }
            Event::TraceGrew { .. } | Event::StorageProblem(_) => false,
        }
    }

    pub(super) fn current_jobs(&self) -> impl Iterator<Item = &Arc<JobView>> {
        self.jobs.values().filter(|job| !job.retried)
    }
}

/// Returns the position of a status between 0 (created) and 5 (complete).
fn progress(status: JobStatus) -> u8 {
    match status {
        JobStatus::Created => 0,
        JobStatus::WaitingForResource | JobStatus::Manual | JobStatus::Scheduled => 1,
        JobStatus::Pending => 2,
        JobStatus::Running => 3,
        JobStatus::Canceling => 4,
        JobStatus::Success | JobStatus::Failed | JobStatus::Canceled | JobStatus::Skipped => 5,
    }
}

pub(super) enum NextEvent {
    Event(Event),
    /// Too many events were queued, so some were lost.
    Missed,
    /// The coordinator has stopped.
    Closed,
}

pub(super) struct Follower {
    coordinator: Arc<Coordinator>,
    events: broadcast::Receiver<Event>,
    logs: Logs,
    /// Time of the first failure to store data, and its message. `None` while the coordinator can store data.
    storage_problem: Option<(Instant, String)>,
    external: bool,
    /// Message if a job has failed because of a full disk.
    disk_problem: Option<String>,
    directory: PathBuf,
    /// Number of queued events that arrived while the last [`Follower::resync`] read the state, and may be older than
    /// that state.
    stale_events: usize,
    pub(super) view: RunView,
}

impl Follower {
    /// Creates a follower of all later events. Must be called before the pipeline is created.
    ///
    /// `external` means that jobs run on an external runner, whose full disk does not end the run.
    pub(super) fn new(
        coordinator: Arc<Coordinator>,
        run: &Run,
        log: LogMode,
        timestamps: bool,
        external: bool,
    ) -> Self {
        Self {
            external,
            events: coordinator.subscribe(),
            logs: Logs::new(Arc::clone(&coordinator), log, timestamps, run.number),
            coordinator,
            storage_problem: None,
            disk_problem: None,
            directory: run.directory.clone(),
            stale_events: 0,
            view: RunView::default(),
        }
    }

    /// Fails if a job has failed because of a full disk.
    pub(super) fn check_disk_problem(&self) -> Result<(), CiError> {
        self.disk_problem.as_ref().map_or(Ok(()), |problem| Err(self.no_storage(problem)))
    }

    pub(super) fn no_storage(&self, problem: &str) -> CiError {
        CiError::no_storage(&self.directory, problem)
    }

    /// Waits until the coordinator has been unable to store data during the whole [`STORAGE_TIMEOUT`], and returns its
    /// message. Cancel-safe.
    pub(super) fn out_of_storage(&self) -> impl Future<Output = String> + use<> {
        let problem = self.storage_problem.clone();
        async move {
            let Some((since, problem)) = problem else { return std::future::pending().await };
            tokio::time::sleep_until(since + STORAGE_TIMEOUT).await;
            problem
        }
    }

    /// Cancel-safe.
    pub(super) async fn next(&mut self) -> NextEvent {
        match self.events.recv().await {
            Ok(event) => NextEvent::Event(event),
            Err(broadcast::error::RecvError::Lagged(_)) => NextEvent::Missed,
            Err(broadcast::error::RecvError::Closed) => NextEvent::Closed,
        }
    }

    /// Updates the view, and notifies the reporter.
    ///
    /// # Errors
    /// [`CoordinatorError`] if the coordinator has stopped.
    pub(super) async fn handle(
        &mut self,
        next_event: NextEvent,
        reporter: &mut dyn Reporter,
    ) -> Result<(), CoordinatorError> {
        match next_event {
            NextEvent::Event(event) => {
                let is_stale = self.stale_events > 0;
                self.stale_events = self.stale_events.saturating_sub(1);
                if is_stale && self.view.is_outdated(&event) {
                    return Ok(());
                }
                self.handle_event(event, reporter).await
            }
            NextEvent::Missed => self.resync(reporter).await,
            NextEvent::Closed => Err(CoordinatorError::Closed),
        }
    }

    async fn handle_event(&mut self, event: Event, reporter: &mut dyn Reporter) -> Result<(), CoordinatorError> {
        match event {
            Event::JobChanged(job) => self.update_job(job, reporter).await?,
            Event::PipelineChanged(pipeline) => self.update_pipeline(pipeline, reporter),
            Event::TraceGrew { job, .. } => {
                // A trace grew, so storing works again.
                self.storage_problem = None;
                if let Some(job) = self.view.jobs.get(&job) {
                    self.logs.trace_grew(job, reporter).await?;
                }
            }
            Event::StorageProblem(Some(problem)) => {
                if self.storage_problem.is_none() {
                    reporter.warning(&problem);
                    self.storage_problem = Some((Instant::now(), problem));
                }
            }
            Event::StorageProblem(None) => {
                self.storage_problem = None;
                reporter.warning("the coordinator can store data again; jobs continue");
            }
        }
        Ok(())
    }

    /// Reads the complete state from the coordinator, and reports all changes.
    ///
    /// Call this after events were lost, and before a decision that requires the complete state.
    ///
    /// # Errors
    /// [`CoordinatorError`] if the coordinator has stopped.
    pub(super) async fn resync(&mut self, reporter: &mut dyn Reporter) -> Result<(), CoordinatorError> {
        self.events = self.coordinator.subscribe();
        for summary in self.coordinator.pipelines(None, MAX_PIPELINES).await? {
            let view = self.coordinator.pipeline(summary.id).await?;
            for job in view.jobs {
                self.update_job(Arc::new(job), reporter).await?;
            }
            self.update_pipeline(Arc::new(view.summary), reporter);
        }
        self.stale_events = self.events.len();
        Ok(())
    }

    fn update_pipeline(&mut self, pipeline: Arc<PipelineSummary>, reporter: &mut dyn Reporter) {
        let previous = self.view.pipelines.insert(pipeline.id, Arc::clone(&pipeline));
        let reported = previous.as_ref().map_or(0, |previous| previous.problems.len());
        for problem in pipeline.problems.iter().skip(reported) {
            reporter.warning(problem);
        }
        if previous.is_none_or(|previous| previous.status != pipeline.status) {
            reporter.pipeline(&pipeline);
        }
    }

    async fn update_job(&mut self, job: Arc<JobView>, reporter: &mut dyn Reporter) -> Result<(), CoordinatorError> {
        let previous = self.view.jobs.insert(job.id, Arc::clone(&job));
        if previous.is_some_and(|previous| previous.status == job.status) {
            return Ok(());
        }
        if !self.external
            && job.failure_reason == Some(FailureReason::RunnerSystemFailure)
            && tree_of(&job).and_then(|tree| tree.cause) == Some(TerminationCause::ResourceExhausted)
        {
            self.disk_problem = Some(format!("job `{}` failed because there is no space left for its log", job.name));
        }
        let finished = job.status.is_complete() && job.started_at.is_some();
        if finished {
            self.logs.finished(&job, reporter).await?;
        }
        reporter.job(&job);
        Ok(())
    }
}
