//! A generated pipeline with its children, driven step by step, each step judged by the reference.

use std::collections::BTreeMap;

use muster_coordinator::schedule::{Event, JobRef, JobState, Outcome, Target};
use muster_job::{FailureReason, JobStatus, PipelineId};
use muster_pipeline::model::Pipeline;

use super::generate::{Step, child};
use super::reference::Reference;
use super::world::{World, world};

/// The pipeline that is nobody's child.
pub(super) const ROOT: PipelineId = PipelineId(1);

/// What a step does.
#[derive(Debug, Clone)]
enum Deed {
    Tell(Event),
    /// The pipeline that a bridge waits for is created, one of the kinds of [`child`].
    Create(JobRef, u16),
}

pub(super) struct Run {
    pub(super) world: World,
    pub(super) references: BTreeMap<PipelineId, Reference>,
    requeued: BTreeMap<JobRef, usize>,
    /// The last event, to be said again.
    last: Option<Event>,
    /// Jobs of the root pipeline, in the order of their end.
    pub(super) finished: Vec<usize>,
}

impl Run {
    pub(super) fn new(model: Pipeline) -> Self {
        let world = world(model.clone());
        let references = BTreeMap::from([(ROOT, Reference::new(model))]);
        Self { world, references, requeued: BTreeMap::new(), last: None, finished: Vec::new() }
    }

    pub(super) fn jobs(&self, pipeline: PipelineId) -> &[JobState] {
        self.world.engine.jobs(pipeline).expect("a known pipeline")
    }

    /// All pipelines with all their jobs.
    pub(super) fn all(&self) -> BTreeMap<PipelineId, Vec<JobState>> {
        self.references.keys().map(|&pipeline| (pipeline, self.jobs(pipeline).to_vec())).collect()
    }

    fn pick(&self, which: u16, wanted: impl Fn(&JobState, bool) -> bool) -> Option<JobRef> {
        let of_one = |&pipeline: &PipelineId| {
            let job_ref = move |(job_index, job): (usize, &JobState)| JobRef { pipeline, job_index, retry: job.retry };
            let fits =
                |(job_index, job): &(usize, &JobState)| wanted(job, self.world.is_bridge(job_ref((*job_index, *job))));
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

    /// What a step does, if some job is in the state for it.
    fn deed(&self, step: &Step, people: bool) -> Option<Deed> {
        let which = step.which;
        let failed =
            |reason, exit_code| move |job| Event::JobFinished { job, outcome: Outcome::Failed { reason, exit_code } };
        let script = FailureReason::ScriptFailure;
        let reason = FailureReason::DownstreamPipelineCreationFailed;
        let event = match step.kind {
            0..=3 if people => self.manual(which).map(|job| Event::Play { job }),
            4..=5 if people => self.scheduled(which).map(|job| Event::Unschedule { job }),
            6..=8 if people => self
                .pick(which, |job, _| job.status.is_complete() && job.status != JobStatus::Skipped)
                .map(|job| Event::RetryJob { job }),
            9..=10 if people => self
                .pick(which, |job, _| !job.status.is_complete())
                .map(|job| Event::Cancel { target: Target::Job(job) }),
            11 if people => Some(Event::Cancel { target: Target::Pipeline(ROOT) }),
            12 if people => Some(Event::ForceCancel { target: Target::Pipeline(ROOT) }),
            13 if people => Some(Event::NewerPipeline { older: ROOT }),
            14..=15 => self
                .pick(which, |job, bridge| job.status == JobStatus::Running && !bridge)
                .map(|job| Event::JobRequeued { job }),
            16..=30 => self.scheduled(which).map(|job| Event::TimerFired { job }),
            31..=100 => self
                .pending(which)
                .map(|job| Event::JobAssigned { job, supports_graceful_cancel: step.kind.is_multiple_of(2) }),
            101..=108 => return self.waiting_bridge(which).map(|bridge| Deed::Create(bridge, which)),
            109..=110 => self.waiting_bridge(which).map(|bridge| Event::ChildFailed { bridge, reason }),
            111..=130 => self.on_runner(which).map(failed(script, Some(1))),
            131..=140 => self.on_runner(which).map(failed(script, Some(42))),
            141..=143 => self.pending(which).map(failed(FailureReason::MissingDependencyFailure, None)),
            _ => self.on_runner(which).map(|job| Event::JobFinished { job, outcome: Outcome::Success }),
        };
        event.map(Deed::Tell)
    }

    pub(super) fn step(&mut self, step: &Step, people: bool, restarts: bool) {
        let Some(deed) = self.deed(step, people) else { return };
        self.carry_out(deed);
        if step.which.is_multiple_of(8) {
            self.say_last_again();
        }
        if step.restart && restarts {
            self.world.restart();
        }
    }

    fn carry_out(&mut self, deed: Deed) {
        self.world.now += 5_000;
        let before = self.all();
        match deed.clone() {
            Deed::Tell(event) => {
                self.world.apply(event.clone()).unwrap_or_else(|rejection| panic!("{event:?}: {rejection}"));
                self.note(event);
            }
            Deed::Create(bridge, kind) => {
                let id = self.world.add_child_of(bridge, child(kind)).expect("a waiting bridge");
                self.references.insert(id, Reference::new(child(kind)));
                self.last = None;
            }
        }
        for (&pipeline, reference) in &self.references {
            let after = self.jobs(pipeline);
            let created = |job: &JobState| JobState { status: JobStatus::Created, ..job.clone() };
            let new = || after.iter().map(created).collect();
            let before = before.get(&pipeline).cloned().unwrap_or_else(new);
            reference.check(&before, after, self.world.pipeline(pipeline.0));
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

    /// Whatever was said last is refused, or changes nothing, when it is said again.
    fn say_last_again(&mut self) {
        let Some(event) = self.last.take() else { return };
        let before = self.all();
        let repeated = self.world.engine.apply(event.clone(), self.world.now);
        match event {
            Event::Cancel { .. } | Event::ForceCancel { .. } | Event::NewerPipeline { .. } => {
                assert_eq!(repeated, Ok(Vec::new()), "{event:?}");
            }
            _ => assert!(repeated.is_err(), "{event:?} was taken twice: {repeated:?}"),
        }
        assert_eq!(before, self.all());
    }

    /// Goes on, all jobs ending well, until nothing runs, waits for a runner or a child, or has a timer.
    pub(super) fn drain(&mut self) {
        let limit = 20 * (self.all().values().map(Vec::len).sum::<usize>() + 1);
        for _ in 0..limit {
            let timer = || self.scheduled(0).map(|job| Event::TimerFired { job });
            let taken = || self.pending(0).map(|job| Event::JobAssigned { job, supports_graceful_cancel: false });
            let ended = || self.on_runner(0).map(|job| Event::JobFinished { job, outcome: Outcome::Success });
            let event = timer().or_else(taken).or_else(ended).map(Deed::Tell);
            let created = || self.waiting_bridge(0).map(|bridge| Deed::Create(bridge, 1));
            let Some(deed) = event.or_else(created) else { return };
            self.carry_out(deed);
        }
        panic!("the pipelines do not come to rest within {limit} events");
    }

    /// Nothing is stuck: what is not over waits for a person.
    pub(super) fn expect_at_rest(&self) {
        let all = self.all();
        let blocked = all.values().flatten().any(|job| job.status == JobStatus::Manual && !job.failure_allowed);
        for (pipeline, jobs) in &all {
            for (job_index, job) in jobs.iter().enumerate() {
                let waits = job.status == JobStatus::Created || job.child.is_some();
                let fine = job.status.is_complete() || job.status == JobStatus::Manual || blocked && waits;
                assert!(fine, "job {job_index} of {pipeline} is stuck as {}", job.status);
            }
        }
        for (job, times) in &self.world.enqueued {
            assert_eq!(*times, 1 + self.requeued.get(job).copied().unwrap_or(0), "{job} was offered");
        }
    }

    /// Plays whatever waits for a person; then everything ends.
    pub(super) fn play_all(&mut self) {
        while let Some(job) = self.manual(0) {
            self.carry_out(Deed::Tell(Event::Play { job }));
            self.drain();
        }
        assert!(self.all().values().flatten().all(|job| job.status.is_complete()));
    }
}
