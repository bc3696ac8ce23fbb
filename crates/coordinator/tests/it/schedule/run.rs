//! Runs a generated pipeline with its children step by step, and checks each step against the reference.

use std::collections::BTreeMap;

use muster_coordinator::schedule::{Event, JobRef, JobState, Outcome, Target};
use muster_job::{FailureReason, JobStatus, PipelineId};
use muster_pipeline::model::Pipeline;

use super::generate::{Step, child};
use super::harness::{EngineHarness, harness};
use super::reference::Reference;

/// The pipeline without a parent.
pub(super) const ROOT: PipelineId = PipelineId(1);

/// The action of a step.
#[derive(Debug, Clone)]
enum StepAction {
    Apply(Event),
    /// Creates the pipeline that a bridge waits for, one of the kinds of [`child`].
    CreateChild(JobRef, u16),
}

pub(super) struct Run {
    pub(super) harness: EngineHarness,
    pub(super) references: BTreeMap<PipelineId, Reference>,
    requeued: BTreeMap<JobRef, usize>,
    /// The last event, to be repeated.
    last: Option<Event>,
    /// Jobs of the root pipeline, in the order of their end.
    pub(super) finished: Vec<usize>,
}

impl Run {
    pub(super) fn new(model: Pipeline) -> Self {
        let harness = harness(model.clone());
        let references = BTreeMap::from([(ROOT, Reference::new(model))]);
        Self { harness, references, requeued: BTreeMap::new(), last: None, finished: Vec::new() }
    }

    pub(super) fn jobs(&self, pipeline: PipelineId) -> &[JobState] {
        self.harness.engine.jobs(pipeline).expect("a known pipeline")
    }

    /// Returns all pipelines with all their jobs.
    pub(super) fn all(&self) -> BTreeMap<PipelineId, Vec<JobState>> {
        self.references.keys().map(|&pipeline| (pipeline, self.jobs(pipeline).to_vec())).collect()
    }

    fn pick(&self, which: u16, wanted: impl Fn(&JobState, bool) -> bool) -> Option<JobRef> {
        let of_one = |&pipeline: &PipelineId| {
            let job_ref = move |(job_index, job): (usize, &JobState)| JobRef { pipeline, job_index, retry: job.retry };
            let fits = |(job_index, job): &(usize, &JobState)| {
                wanted(job, self.harness.is_bridge(job_ref((*job_index, *job))))
            };
            self.jobs(pipeline).iter().enumerate().filter(fits).map(job_ref).collect::<Vec<_>>()
        };
        let found: Vec<JobRef> = self.references.keys().flat_map(of_one).collect();
        found.get(usize::from(which).checked_rem(found.len())?).copied()
    }

    fn manual(&self, which: u16) -> Option<JobRef> {
        self.pick(which, |job, _| job.status == JobStatus::Manual && job.child.is_none())
    }

    fn scheduled(&self, which: u16) -> Option<JobRef> {
        self.pick(which, |job, _| job.status == JobStatus::Scheduled && job.child.is_none())
    }

    fn pending(&self, which: u16) -> Option<JobRef> {
        self.pick(which, |job, bridge| job.status == JobStatus::Pending && !bridge)
    }

    fn on_runner(&self, which: u16) -> Option<JobRef> {
        self.pick(which, |job, bridge| job.status.is_on_runner() && !bridge)
    }

    fn waiting_bridge(&self, which: u16) -> Option<JobRef> {
        self.pick(which, |job, bridge| job.status == JobStatus::Pending && bridge && job.child.is_none())
    }

    /// Returns the action of a step, if a job is in the right state for it.
    fn action(&self, step: &Step, with_users: bool) -> Option<StepAction> {
        let which = step.which;
        let failed =
            |reason, exit_code| move |job| Event::JobFinished { job, outcome: Outcome::Failed { reason, exit_code } };
        let script = FailureReason::ScriptFailure;
        let reason = FailureReason::DownstreamPipelineCreationFailed;
        let event = match step.kind {
            0..=3 if with_users => self.manual(which).map(|job| Event::Play { job }),
            4..=5 if with_users => self.scheduled(which).map(|job| Event::Unschedule { job }),
            6..=8 if with_users => self
                .pick(which, |job, _| job.status.is_complete() && job.status != JobStatus::Skipped)
                .map(|job| Event::RetryJob { job }),
            9..=10 if with_users => self
                .pick(which, |job, _| !job.status.is_complete())
                .map(|job| Event::Cancel { target: Target::Job(job) }),
            11 if with_users => Some(Event::Cancel { target: Target::Pipeline(ROOT) }),
            12 if with_users => Some(Event::ForceCancel { target: Target::Pipeline(ROOT) }),
            13 if with_users => Some(Event::NewerPipeline { older: ROOT }),
            14..=15 => self
                .pick(which, |job, bridge| job.status == JobStatus::Running && !bridge)
                .map(|job| Event::JobRequeued { job }),
            16..=30 => self.scheduled(which).map(|job| Event::TimerFired { job }),
            31..=100 => self
                .pending(which)
                .map(|job| Event::JobAssigned { job, supports_graceful_cancel: step.kind.is_multiple_of(2) }),
            101..=108 => return self.waiting_bridge(which).map(|bridge| StepAction::CreateChild(bridge, which)),
            109..=110 => self.waiting_bridge(which).map(|bridge| Event::ChildFailed { bridge, reason }),
            111..=130 => self.on_runner(which).map(failed(script, Some(1))),
            131..=140 => self.on_runner(which).map(failed(script, Some(42))),
            141..=143 => self.pending(which).map(failed(FailureReason::MissingDependencyFailure, None)),
            _ => self.on_runner(which).map(|job| Event::JobFinished { job, outcome: Outcome::Success }),
        };
        event.map(StepAction::Apply)
    }

    pub(super) fn step(&mut self, step: &Step, with_users: bool, restarts: bool) {
        let Some(action) = self.action(step, with_users) else { return };
        self.carry_out(action);
        if step.which.is_multiple_of(8) {
            self.repeat_last_event();
        }
        if step.restart && restarts {
            self.harness.restart();
        }
    }

    fn carry_out(&mut self, action: StepAction) {
        self.harness.now += 5_000;
        let before = self.all();
        match action.clone() {
            StepAction::Apply(event) => {
                self.harness.apply(event.clone()).unwrap_or_else(|rejection| panic!("{event:?}: {rejection}"));
                self.note(event);
            }
            StepAction::CreateChild(bridge, kind) => {
                let id = self.harness.add_child_of(bridge, child(kind)).expect("a waiting bridge");
                self.references.insert(id, Reference::new(child(kind)));
                self.last = None;
            }
        }
        for (&pipeline, reference) in &self.references {
            let after = self.jobs(pipeline);
            let created = |job: &JobState| JobState { status: JobStatus::Created, ..job.clone() };
            let new = || after.iter().map(created).collect();
            let before = before.get(&pipeline).cloned().unwrap_or_else(new);
            reference.check(&before, after, self.harness.pipeline(pipeline.0));
        }
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::JobRequeued { job } => *self.requeued.entry(job).or_default() += 1,
            Event::JobFinished { job, .. }
                if job.pipeline == ROOT && self.jobs(ROOT)[job.job_index].status.is_complete() =>
            {
                self.finished.push(job.job_index);
            }
            _ => {}
        }
        self.last = Some(event);
    }

    /// Repeats the last event, which is rejected or changes nothing.
    fn repeat_last_event(&mut self) {
        let Some(event) = self.last.take() else { return };
        let before = self.all();
        let repeated = self.harness.engine.apply(event.clone(), self.harness.now);
        match event {
            Event::Cancel { .. } | Event::ForceCancel { .. } | Event::NewerPipeline { .. } => {
                assert_eq!(repeated, Ok(Vec::new()), "{event:?}");
            }
            _ => assert!(repeated.is_err(), "{event:?} was taken twice: {repeated:?}"),
        }
        assert_eq!(before, self.all());
    }

    /// Continues with success until no job is running, pending or scheduled and no bridge waits for its child.
    pub(super) fn drain(&mut self) {
        let limit = 20 * (self.all().values().map(Vec::len).sum::<usize>() + 1);
        for _ in 0..limit {
            let timer = || self.scheduled(0).map(|job| Event::TimerFired { job });
            let taken = || self.pending(0).map(|job| Event::JobAssigned { job, supports_graceful_cancel: false });
            let ended = || self.on_runner(0).map(|job| Event::JobFinished { job, outcome: Outcome::Success });
            let event = timer().or_else(taken).or_else(ended).map(StepAction::Apply);
            let created = || self.waiting_bridge(0).map(|bridge| StepAction::CreateChild(bridge, 1));
            let Some(action) = event.or_else(created) else { return };
            self.carry_out(action);
        }
        panic!("the pipelines do not come to rest within {limit} events");
    }

    /// Checks that no job is stuck: unfinished jobs wait for a manual start.
    pub(super) fn expect_finished_or_manual(&self) {
        let all = self.all();
        let blocked = all.values().flatten().any(|job| job.status == JobStatus::Manual && !job.failure_allowed);
        for (pipeline, jobs) in &all {
            for (job_index, job) in jobs.iter().enumerate() {
                let waits = job.status == JobStatus::Created || job.child.is_some();
                let fine = job.status.is_complete() || job.status == JobStatus::Manual || blocked && waits;
                assert!(fine, "job {job_index} of {pipeline} is stuck as {}", job.status);
            }
        }
        for (job, times) in &self.harness.enqueued {
            assert_eq!(*times, 1 + self.requeued.get(job).copied().unwrap_or(0), "{job} was offered");
        }
    }

    /// Starts all manual jobs and lets them run; then all jobs have ended.
    pub(super) fn play_all(&mut self) {
        while let Some(job) = self.manual(0) {
            self.carry_out(StepAction::Apply(Event::Play { job }));
            self.drain();
        }
        assert!(self.all().values().flatten().all(|job| job.status.is_complete()));
    }
}
