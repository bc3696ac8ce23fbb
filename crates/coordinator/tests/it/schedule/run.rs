use std::collections::BTreeMap;

use muster_coordinator::schedule::{Event, JobRef, JobState, Outcome, Target};
use muster_job::{FailureReason, JobStatus, PipelineId};
use muster_pipeline::model::Pipeline;

use super::generate::{Step, child};
use super::harness::{EngineHarness, engine_with};
use super::reference::Reference;

pub(super) const ROOT: PipelineId = PipelineId(1);

#[derive(Debug, Clone)]
enum StepAction {
    Apply(Event),
    /// Creates the pipeline that a bridge waits for, one of the kinds of [`child`].
    CreateChild(JobRef, u16),
}

pub(super) struct Run {
    pub(super) harness: EngineHarness,
    pub(super) reference_models: BTreeMap<PipelineId, Reference>,
    requeued: BTreeMap<JobRef, usize>,
    last: Option<Event>,
    /// Jobs of the root pipeline, in the order of their end.
    pub(super) finished: Vec<usize>,
}

impl Run {
    pub(super) fn new(model: Pipeline) -> Self {
        let harness = engine_with(model.clone());
        let reference_models = BTreeMap::from([(ROOT, Reference::new(model))]);
        Self { harness, reference_models, requeued: BTreeMap::new(), last: None, finished: Vec::new() }
    }

    pub(super) fn jobs(&self, pipeline: PipelineId) -> &[JobState] {
        self.harness.engine.jobs(pipeline).expect("the pipeline is unknown")
    }

    pub(super) fn all_jobs(&self) -> BTreeMap<PipelineId, Vec<JobState>> {
        self.reference_models.keys().map(|&pipeline| (pipeline, self.jobs(pipeline).to_vec())).collect()
    }

    /// Returns the job that `selector` chooses among the jobs for which `predicate` is true.
    ///
    /// The second argument of `predicate` is whether the job is a bridge.
    fn pick(&self, selector: u16, predicate: impl Fn(&JobState, bool) -> bool) -> Option<JobRef> {
        let jobs_of = |&pipeline: &PipelineId| {
            let job_ref = move |(job_index, job): (usize, &JobState)| JobRef { pipeline, job_index, retry: job.retry };
            let matches = |(job_index, job): &(usize, &JobState)| {
                predicate(job, self.harness.is_bridge(job_ref((*job_index, *job))))
            };
            self.jobs(pipeline).iter().enumerate().filter(matches).map(job_ref).collect::<Vec<_>>()
        };
        let found: Vec<JobRef> = self.reference_models.keys().flat_map(jobs_of).collect();
        found.get(usize::from(selector).checked_rem(found.len())?).copied()
    }

    fn manual(&self, selector: u16) -> Option<JobRef> {
        self.pick(selector, |job, _| job.status == JobStatus::Manual && job.child.is_none())
    }

    fn scheduled(&self, selector: u16) -> Option<JobRef> {
        self.pick(selector, |job, _| job.status == JobStatus::Scheduled && job.child.is_none())
    }

    fn pending(&self, selector: u16) -> Option<JobRef> {
        self.pick(selector, |job, bridge| job.status == JobStatus::Pending && !bridge)
    }

    fn on_runner(&self, selector: u16) -> Option<JobRef> {
        self.pick(selector, |job, bridge| job.status.is_on_runner() && !bridge)
    }

    fn waiting_bridge(&self, selector: u16) -> Option<JobRef> {
        self.pick(selector, |job, bridge| job.status == JobStatus::Pending && bridge && job.child.is_none())
    }

    fn action(&self, step: &Step, with_user_actions: bool) -> Option<StepAction> {
        let selector = step.selector;
        let failed =
            |reason, exit_code| move |job| Event::JobFinished { job, outcome: Outcome::Failed { reason, exit_code } };
        let script = FailureReason::ScriptFailure;
        let reason = FailureReason::DownstreamPipelineCreationFailed;
        let event = match step.kind {
            0..=3 if with_user_actions => self.manual(selector).map(|job| Event::Play { job }),
            4..=5 if with_user_actions => self.scheduled(selector).map(|job| Event::Unschedule { job }),
            6..=8 if with_user_actions => self
                .pick(selector, |job, _| job.status.is_complete() && job.status != JobStatus::Skipped)
                .map(|job| Event::RetryJob { job }),
            9..=10 if with_user_actions => self
                .pick(selector, |job, _| !job.status.is_complete())
                .map(|job| Event::Cancel { target: Target::Job(job) }),
            11 if with_user_actions => Some(Event::Cancel { target: Target::Pipeline(ROOT) }),
            12 if with_user_actions => Some(Event::ForceCancel { target: Target::Pipeline(ROOT) }),
            13 if with_user_actions => Some(Event::NewerPipeline { older: ROOT }),
            14..=15 => self
                .pick(selector, |job, bridge| job.status == JobStatus::Running && !bridge)
                .map(|job| Event::JobRequeued { job }),
            16..=30 => self.scheduled(selector).map(|job| Event::TimerFired { job }),
            31..=100 => self
                .pending(selector)
                .map(|job| Event::JobAssigned { job, supports_graceful_cancel: step.kind.is_multiple_of(2) }),
            101..=108 => return self.waiting_bridge(selector).map(|bridge| StepAction::CreateChild(bridge, selector)),
            109..=110 => self.waiting_bridge(selector).map(|bridge| Event::ChildFailed { bridge, reason }),
            111..=130 => self.on_runner(selector).map(failed(script, Some(1))),
            131..=140 => self.on_runner(selector).map(failed(script, Some(42))),
            141..=143 => self.pending(selector).map(failed(FailureReason::MissingDependencyFailure, None)),
            _ => self.on_runner(selector).map(|job| Event::JobFinished { job, outcome: Outcome::Success }),
        };
        event.map(StepAction::Apply)
    }

    pub(super) fn step(&mut self, step: &Step, with_user_actions: bool, restarts: bool) {
        let Some(action) = self.action(step, with_user_actions) else { return };
        self.carry_out(action);
        if step.selector.is_multiple_of(8) {
            self.repeat_last_event();
        }
        if step.restart && restarts {
            self.harness.restart();
        }
    }

    fn carry_out(&mut self, action: StepAction) {
        self.harness.now += 5_000;
        let before = self.all_jobs();
        match action.clone() {
            StepAction::Apply(event) => {
                self.harness.apply(event.clone()).unwrap_or_else(|rejection| panic!("{event:?}: {rejection}"));
                self.record(event);
            }
            StepAction::CreateChild(bridge, kind) => {
                let id = self.harness.add_child_of(bridge, child(kind)).expect("no waiting bridge");
                self.reference_models.insert(id, Reference::new(child(kind)));
                self.last = None;
            }
        }
        for (&pipeline, reference) in &self.reference_models {
            let after = self.jobs(pipeline);
            let created = |job: &JobState| JobState { status: JobStatus::Created, ..job.clone() };
            let new = || after.iter().map(created).collect();
            let before = before.get(&pipeline).cloned().unwrap_or_else(new);
            reference.check(&before, after, self.harness.pipeline_status(pipeline.0));
        }
    }

    fn record(&mut self, event: Event) {
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

    /// Applies the last event again. It must be rejected or change nothing.
    fn repeat_last_event(&mut self) {
        let Some(event) = self.last.take() else { return };
        let before = self.all_jobs();
        let repeated = self.harness.engine.apply(event.clone(), self.harness.now);
        match event {
            Event::Cancel { .. } | Event::ForceCancel { .. } | Event::NewerPipeline { .. } => {
                assert_eq!(repeated, Ok(Vec::new()), "{event:?}");
            }
            _ => assert!(repeated.is_err(), "the repeated {event:?} must be rejected: {repeated:?}"),
        }
        assert_eq!(before, self.all_jobs());
    }

    /// Ends jobs with success until no job is running, pending or scheduled and no bridge waits for its child.
    pub(super) fn drain(&mut self) {
        let limit = 20 * (self.all_jobs().values().map(Vec::len).sum::<usize>() + 1);
        for _ in 0..limit {
            let timer = || self.scheduled(0).map(|job| Event::TimerFired { job });
            let assigned = || self.pending(0).map(|job| Event::JobAssigned { job, supports_graceful_cancel: false });
            let ended = || self.on_runner(0).map(|job| Event::JobFinished { job, outcome: Outcome::Success });
            let event = timer().or_else(assigned).or_else(ended).map(StepAction::Apply);
            let created = || self.waiting_bridge(0).map(|bridge| StepAction::CreateChild(bridge, 1));
            let Some(action) = event.or_else(created) else { return };
            self.carry_out(action);
        }
        panic!("the pipelines do not finish within {limit} events");
    }

    /// Checks that no job is stuck: an unfinished job must wait for a manual start, or for other jobs or a child that
    /// wait for one.
    ///
    /// Also checks that each attempt of a job was added to the queue once, and again each time that it was requeued.
    pub(super) fn expect_finished_or_manual(&self) {
        let all = self.all_jobs();
        let blocked = all.values().flatten().any(|job| job.status == JobStatus::Manual && !job.failure_allowed);
        for (pipeline, jobs) in &all {
            for (job_index, job) in jobs.iter().enumerate() {
                let waits_for_others = job.status == JobStatus::Created || job.child.is_some();
                let is_expected =
                    job.status.is_complete() || job.status == JobStatus::Manual || blocked && waits_for_others;
                assert!(is_expected, "job {job_index} of {pipeline} is stuck as {}", job.status);
            }
        }
        for (job, times) in &self.harness.enqueued {
            assert_eq!(
                *times,
                1 + self.requeued.get(job).copied().unwrap_or(0),
                "number of times that {job} was added to the queue"
            );
        }
    }

    pub(super) fn play_all(&mut self) {
        while let Some(job) = self.manual(0) {
            self.carry_out(StepAction::Apply(Event::Play { job }));
            self.drain();
        }
        assert!(self.all_jobs().values().flatten().all(|job| job.status.is_complete()));
    }
}
