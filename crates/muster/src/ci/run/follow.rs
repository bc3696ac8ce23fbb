//! Follows the coordinator's events until nothing more can happen, and tells a [`Reporter`] what a person should see.

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

/// Number of pipelines of a run that are read: one, and its children.
const PIPELINES_MAX: usize = 1000;
/// How long a run waits for space on a full disk.
const STORAGE_PATIENCE: Duration = Duration::from_secs(3);

/// All that is known of a run.
#[derive(Debug, Default)]
pub(super) struct Picture {
    /// Pipelines by id: the root first, children after it.
    pub(super) pipelines: BTreeMap<PipelineId, Arc<PipelineSummary>>,
    /// Jobs by id, also those that a retry replaced.
    pub(super) jobs: BTreeMap<JobId, Arc<JobView>>,
}

impl Picture {
    /// Whether every pipeline has ended.
    pub(super) fn has_ended(&self) -> bool {
        !self.pipelines.is_empty()
            && self.pipelines.values().all(|found| found.status.is_complete())
            && !self.jobs.values().any(|job| job.status.is_on_runner())
    }

    /// Whether nothing more happens by itself: what has not ended waits for a person, or for a pipeline that does.
    /// In the middle of a batch of events this may look so for a moment: ask again after [`Follower::read_anew`].
    pub(super) fn is_still(&self) -> bool {
        !self.pipelines.is_empty() && !self.current_jobs().any(|job| self.goes_on(job))
    }

    /// Whether something will come of this job without a person. A job that waits for its turn or for a resource does
    /// so for another one.
    fn goes_on(&self, job: &JobView) -> bool {
        match job.status {
            JobStatus::Pending | JobStatus::Scheduled | JobStatus::Canceling => true,
            JobStatus::Running => match (job.kind, job.downstream.and_then(|child| self.pipelines.get(&child))) {
                // A bridge whose child has not ended is as alive as the child's jobs.
                (JobKind::Bridge, Some(child)) => child.status.is_complete(),
                _ => true,
            },
            _ => false,
        }
    }

    /// Whether a person has to go on: something has not ended, and nothing more happens by itself.
    pub(super) fn is_blocked(&self) -> bool {
        !self.has_ended() && self.is_still()
    }

    /// Whether a failure counts: of the root pipeline, or of a child whose bridge does not answer for it (C222). A
    /// pipeline that waits for a person has failed if one of its jobs has.
    pub(super) fn has_failed(&self) -> bool {
        self.pipelines.values().any(|pipeline| {
            let answered_for = pipeline.parent.and_then(|parent| self.jobs.get(&parent.bridge));
            let of_pipeline = |job: &&Arc<JobView>| job.pipeline == pipeline.id;
            let failed = pipeline.status == JobStatus::Failed
                || !pipeline.status.is_complete()
                    && self
                        .current_jobs()
                        .filter(of_pipeline)
                        .any(|job| job.status == JobStatus::Failed && !job.allow_failure);
            failed
                && answered_for.is_none_or(|bridge| bridge.status == JobStatus::Success || !bridge.status.is_complete())
        })
    }

    /// Whether an event tells of a state that lies behind the known one.
    fn is_past(&self, event: &Event) -> bool {
        let behind = |told: JobStatus, known: JobStatus| progress(told) < progress(known);
        match event {
            Event::JobChanged(told) => self.jobs.get(&told.id).is_some_and(|known| behind(told.status, known.status)),
            Event::PipelineChanged(told) => {
                self.pipelines.get(&told.id).is_some_and(|known| behind(told.status, known.status))
            }
            Event::TraceGrew { .. } | Event::StorageProblem(_) => false,
        }
    }

    /// The jobs that count: not those that a retry replaced.
    pub(super) fn current_jobs(&self) -> impl Iterator<Item = &Arc<JobView>> {
        self.jobs.values().filter(|job| !job.retried)
    }
}

/// How far a status is on the usual way from created to complete.
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

/// What comes from the coordinator.
pub(super) enum Step {
    /// An event.
    Event(Event),
    /// More events than could be kept: some are lost.
    Missed,
    /// The coordinator is gone.
    Closed,
}

/// Reads events and traces.
pub(super) struct Follower {
    coordinator: Arc<Coordinator>,
    events: broadcast::Receiver<Event>,
    logs: Logs,
    /// Since when the coordinator cannot store what happens, and why.
    storage_problem: Option<(Instant, String)>,
    /// Jobs run elsewhere.
    external: bool,
    /// What a job failed for whose agent could not write.
    starved: Option<String>,
    /// The folder of the run.
    folder: PathBuf,
    /// Events that were on their way while [`Follower::read_anew`] read: they may tell what has been overtaken.
    overtaken: usize,
    pub(super) picture: Picture,
}

impl Follower {
    /// Follows from now on; made before the pipeline is created, it misses nothing.
    /// What happens on the disk of an `external` runner is that runner's.
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
            starved: None,
            folder: run.folder.clone(),
            overtaken: 0,
            picture: Picture::default(),
        }
    }

    /// An error once a job has failed because its agent found no space: such a run says nothing about the pipeline.
    pub(super) fn has_space(&self) -> Result<(), CiError> {
        self.starved.as_ref().map_or(Ok(()), |problem| Err(self.no_storage(problem)))
    }

    /// The end of a run whose disk is full.
    pub(super) fn no_storage(&self, problem: &str) -> CiError {
        CiError::no_storage(&self.folder, problem)
    }

    /// Waits until the coordinator could not store for [`STORAGE_PATIENCE`]; says why. Safe to drop.
    pub(super) fn out_of_storage(&self) -> impl Future<Output = String> + use<> {
        let problem = self.storage_problem.clone();
        async move {
            let Some((since, problem)) = problem else { return std::future::pending().await };
            tokio::time::sleep_until(since + STORAGE_PATIENCE).await;
            problem
        }
    }

    /// Waits for the next thing to take. Safe to drop.
    pub(super) async fn next(&mut self) -> Step {
        match self.events.recv().await {
            Ok(event) => Step::Event(event),
            Err(broadcast::error::RecvError::Lagged(_)) => Step::Missed,
            Err(broadcast::error::RecvError::Closed) => Step::Closed,
        }
    }

    /// Brings the picture up to date and tells the reporter.
    ///
    /// # Errors
    /// [`CoordinatorError`] if the coordinator is gone.
    pub(super) async fn take(&mut self, step: Step, reporter: &mut dyn Reporter) -> Result<(), CoordinatorError> {
        match step {
            Step::Event(event) => {
                let overtaken = self.overtaken > 0;
                self.overtaken = self.overtaken.saturating_sub(1);
                if overtaken && self.picture.is_past(&event) {
                    return Ok(());
                }
                self.event(event, reporter).await
            }
            Step::Missed => self.read_anew(reporter).await,
            Step::Closed => Err(CoordinatorError::Closed),
        }
    }

    async fn event(&mut self, event: Event, reporter: &mut dyn Reporter) -> Result<(), CoordinatorError> {
        match event {
            Event::JobChanged(job) => self.job(job, reporter).await?,
            Event::PipelineChanged(pipeline) => self.pipeline(pipeline, reporter),
            Event::TraceGrew { job, .. } => {
                // Something could be written again.
                self.storage_problem = None;
                if let Some(job) = self.picture.jobs.get(&job) {
                    self.logs.grew(job, reporter).await?;
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
                reporter.warning("the coordinator can store again; jobs go on");
            }
        }
        Ok(())
    }

    /// What is there now, as if each event had come once more: after more events than could be kept, and where a
    /// decision needs the whole of a batch.
    ///
    /// # Errors
    /// [`CoordinatorError`] if the coordinator is gone.
    pub(super) async fn read_anew(&mut self, reporter: &mut dyn Reporter) -> Result<(), CoordinatorError> {
        self.events = self.coordinator.subscribe();
        for summary in self.coordinator.pipelines(None, PIPELINES_MAX).await? {
            let view = self.coordinator.pipeline(summary.id).await?;
            for job in view.jobs {
                self.job(Arc::new(job), reporter).await?;
            }
            self.pipeline(Arc::new(view.summary), reporter);
        }
        self.overtaken = self.events.len();
        Ok(())
    }

    fn pipeline(&mut self, pipeline: Arc<PipelineSummary>, reporter: &mut dyn Reporter) {
        let before = self.picture.pipelines.insert(pipeline.id, Arc::clone(&pipeline));
        let told = before.as_ref().map_or(0, |before| before.problems.len());
        for problem in pipeline.problems.iter().skip(told) {
            reporter.warning(problem);
        }
        if before.is_none_or(|before| before.status != pipeline.status) {
            reporter.pipeline(&pipeline);
        }
    }

    async fn job(&mut self, job: Arc<JobView>, reporter: &mut dyn Reporter) -> Result<(), CoordinatorError> {
        let before = self.picture.jobs.insert(job.id, Arc::clone(&job));
        if before.is_some_and(|before| before.status == job.status) {
            return Ok(());
        }
        if !self.external
            && job.failure_reason == Some(FailureReason::RunnerSystemFailure)
            && tree_of(&job).and_then(|tree| tree.cause) == Some(TerminationCause::ResourceExhausted)
        {
            self.starved = Some(format!("job `{}` has failed, because there is no space left for its log", job.name));
        }
        let ended = job.status.is_complete() && job.started_at.is_some();
        if ended {
            self.logs.ended(&job, reporter).await?;
        }
        reporter.job(&job);
        Ok(())
    }
}
