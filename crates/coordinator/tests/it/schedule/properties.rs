//! Properties of the engine over generated pipelines, outcomes and orders of completion, against a slow reference.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_coordinator::schedule::{Event, JobRef, JobState, Outcome, Target};
use muster_job::{FailureReason, JobStatus, PipelineId};
use muster_pipeline::model::{AllowFailure, Need, Pipeline, When};
use proptest::collection::vec;
use proptest::prelude::*;

use super::reference::{Reference, rests};
use super::world::{World, job, pipeline, world};

const ONLY: PipelineId = PipelineId(1);

/// One generated job. A need is a position among the jobs before it in the list.
#[derive(Debug, Clone)]
struct Spec {
    stage: usize,
    when: When,
    allow_failure: AllowFailure,
    retries: u32,
    needs: Option<Vec<u16>>,
    group: Option<bool>,
}

fn spec() -> impl Strategy<Value = Spec> {
    let when = prop_oneof![
        8 => Just(When::OnSuccess),
        1 => Just(When::OnFailure),
        1 => Just(When::Always),
        1 => Just(When::Manual),
        1 => Just(When::Delayed),
    ];
    let allow_failure = prop_oneof![
        4 => Just(AllowFailure::No),
        1 => Just(AllowFailure::Yes),
        1 => Just(AllowFailure::ExitCodes(vec![42])),
    ];
    let retries = prop_oneof![4 => Just(0), 1 => 1..3_u32];
    let needs = proptest::option::weighted(0.5, vec(any::<u16>(), 0..4));
    let group = proptest::option::weighted(0.1, any::<bool>());
    (0..8_usize, when, allow_failure, retries, needs, group).prop_map(
        |(stage, when, allow_failure, retries, needs, group)| Spec {
            stage,
            when,
            allow_failure,
            retries,
            needs,
            group,
        },
    )
}

fn specs(jobs: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Spec>> {
    vec(spec(), jobs)
}

fn build(specs: &[Spec], cancel_on_failure: bool) -> Pipeline {
    let mut built = pipeline("s0:; s1:; s2:; s3:; s4:; s5:; s6:; s7:");
    built.auto_cancel.on_job_failure = cancel_on_failure;
    let mut specs = specs.to_vec();
    specs.sort_by_key(|spec| spec.stage);
    for (place, spec) in specs.iter().enumerate() {
        let mut made = job(&format!("j{place}"), &format!("s{}", spec.stage), spec.stage);
        made.when = spec.when;
        made.start_in = Some(Duration::from_secs(5));
        made.allow_failure = spec.allow_failure.clone();
        made.retry.max = spec.retries;
        made.resource_group = spec.group.map(|one| if one { "one".to_owned() } else { "two".to_owned() });
        made.needs = spec.needs.as_ref().map(|needs| {
            let earlier = needs.iter().filter(|_| place > 0).map(|need| usize::from(*need) % place);
            let need = |earlier| Need::Job { name: format!("j{earlier}"), artifacts: true, optional: false };
            earlier.map(need).collect()
        });
        built.jobs.push(made);
    }
    built
}

/// What happens next, to be read against the jobs that are in the right state for it.
#[derive(Debug, Clone)]
struct Step {
    which: u16,
    kind: u8,
    restart: bool,
}

fn steps(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Step>> {
    let step = (any::<u16>(), any::<u8>(), proptest::bool::weighted(0.02));
    vec(step.prop_map(|(which, kind, restart)| Step { which, kind, restart }), count)
}

struct Run {
    world: World,
    reference: Reference,
    given_back: BTreeMap<JobRef, usize>,
    /// The last event, to be said again.
    last: Option<Event>,
    /// In the order of their end, with all that rested then.
    finished: Vec<usize>,
}

impl Run {
    fn new(model: Pipeline) -> Self {
        let world = world(model.clone());
        Self { world, reference: Reference::new(model), given_back: BTreeMap::new(), last: None, finished: Vec::new() }
    }

    fn jobs(&self) -> &[JobState] {
        self.world.engine.jobs(ONLY).expect("the pipeline")
    }

    fn pick(&self, which: u16, wanted: impl Fn(JobStatus) -> bool) -> Option<JobRef> {
        let fits = |(_, job): &(usize, &JobState)| wanted(job.status);
        let places: Vec<usize> = self.jobs().iter().enumerate().filter(fits).map(|(place, _)| place).collect();
        let place = *places.get(usize::from(which).checked_rem(places.len())?)?;
        self.world.engine.newest(ONLY, place)
    }

    /// The event of a step, if some job is in the state for it.
    fn event(&self, step: &Step, people: bool) -> Option<Event> {
        let pick = |wanted: fn(JobStatus) -> bool| self.pick(step.which, wanted);
        let running = || pick(JobStatus::is_on_runner);
        let pending = || pick(|status| status == JobStatus::Pending);
        let failed =
            |reason, exit_code| move |job| Event::JobFinished { job, outcome: Outcome::Failed { reason, exit_code } };
        let script = FailureReason::ScriptFailure;
        match step.kind {
            0..=3 if people => pick(|status| status == JobStatus::Manual).map(|job| Event::Play { job }),
            4..=5 if people => pick(|status| status == JobStatus::Scheduled).map(|job| Event::Unschedule { job }),
            6..=8 if people => {
                pick(|status| status.is_complete() && status != JobStatus::Skipped).map(|job| Event::RetryJob { job })
            }
            9..=10 if people => {
                pick(|status| !status.is_complete()).map(|job| Event::Cancel { target: Target::Job(job) })
            }
            11 if people => Some(Event::Cancel { target: Target::Pipeline(ONLY) }),
            12 if people => Some(Event::ForceCancel { target: Target::Pipeline(ONLY) }),
            13..=15 => pick(|status| status == JobStatus::Running).map(|job| Event::JobGivenBack { job }),
            16..=30 => pick(|status| status == JobStatus::Scheduled).map(|job| Event::TimerFired { job }),
            31..=110 => pending().map(|job| Event::JobTaken { job, winds_down: step.kind % 2 == 0 }),
            111..=130 => running().map(failed(script, Some(1))),
            131..=140 => running().map(failed(script, Some(42))),
            141..=143 => pending().map(failed(FailureReason::MissingDependencyFailure, None)),
            _ => running().map(|job| Event::JobFinished { job, outcome: Outcome::Success }),
        }
    }

    fn step(&mut self, step: &Step, people: bool, restarts: bool) {
        let Some(event) = self.event(step, people) else { return };
        self.world.now += 5_000;
        self.apply(event);
        if step.which % 8 == 0 {
            self.say_last_again();
        }
        if step.restart && restarts {
            self.world.restart();
        }
    }

    fn apply(&mut self, event: Event) {
        let before = self.jobs().to_vec();
        self.world.apply(event.clone()).unwrap_or_else(|refusal| panic!("{event:?}: {refusal}"));
        self.reference.check(&before, self.jobs(), self.world.pipeline(1));
        if let Event::JobGivenBack { job } = event {
            *self.given_back.entry(job).or_default() += 1;
        }
        if let Event::JobFinished { job, .. } = event
            && self.jobs()[job.place].status.is_complete()
        {
            self.finished.push(job.place);
        }
        self.last = Some(event);
    }

    /// Whatever was said last is refused, or changes nothing, when it is said again.
    fn say_last_again(&mut self) {
        let Some(event) = self.last.take() else { return };
        let before = (self.jobs().to_vec(), self.world.pipeline(1));
        let repeated = self.world.engine.apply(event.clone(), self.world.now);
        match event {
            Event::Cancel { .. } | Event::ForceCancel { .. } => assert_eq!(repeated, Ok(Vec::new())),
            _ => assert!(repeated.is_err(), "{event:?} was taken twice: {repeated:?}"),
        }
        assert_eq!(before, (self.jobs().to_vec(), self.world.pipeline(1)));
    }

    /// Goes on, all jobs ending well, until nothing runs, waits for a runner, or has a timer.
    fn drain(&mut self) {
        let limit = 20 * (self.jobs().len() + 1);
        for _ in 0..limit {
            let first = |wanted: fn(JobStatus) -> bool| self.pick(0, wanted);
            let timer = || first(|status| status == JobStatus::Scheduled).map(|job| Event::TimerFired { job });
            let taken =
                || first(|status| status == JobStatus::Pending).map(|job| Event::JobTaken { job, winds_down: false });
            let ended =
                || first(JobStatus::is_on_runner).map(|job| Event::JobFinished { job, outcome: Outcome::Success });
            let Some(event) = timer().or_else(taken).or_else(ended) else { return };
            self.world.now += 5_000;
            self.apply(event);
        }
        panic!("the pipeline does not come to rest within {limit} events");
    }

    /// Nothing is stuck: what is not over waits for a person.
    fn expect_at_rest(&self) {
        let blocked = self.jobs().iter().any(|job| job.status == JobStatus::Manual && !job.allowed);
        for (place, job) in self.jobs().iter().enumerate() {
            let waits = job.status == JobStatus::Manual || blocked && job.status == JobStatus::Created;
            assert!(job.status.is_complete() || waits, "job {place} is stuck as {}", job.status);
        }
        for (job, times) in &self.world.enqueued {
            assert_eq!(*times, 1 + self.given_back.get(job).copied().unwrap_or(0), "{job} was offered");
        }
    }

    /// Plays whatever waits for a person; then everything ends.
    fn play_all(&mut self) {
        while let Some(job) = self.pick(0, |status| status == JobStatus::Manual) {
            self.apply(Event::Play { job });
            self.drain();
        }
        assert!(self.jobs().iter().all(|job| job.status.is_complete()));
    }
}

fn run(model: &Pipeline, steps: &[Step], people: bool, restarts: bool) -> Run {
    let mut run = Run::new(model.clone());
    steps.iter().for_each(|step| run.step(step, people, restarts));
    run
}

fn comes_to_an_end(model: &Pipeline, steps: &[Step]) {
    let mut run = run(model, steps, true, true);
    run.drain();
    run.expect_at_rest();
    run.play_all();
    run.expect_at_rest();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// With people, failures and restarts at any time, each event is judged by the reference, and all jobs end.
    #[test]
    fn every_job_comes_to_an_end(specs in specs(1..40), steps in steps(0..200), cancel in any::<bool>()) {
        comes_to_an_end(&build(&specs, cancel), &steps);
    }

    /// A restart at any point changes nothing.
    #[test]
    fn restarts_leave_no_trace(specs in specs(1..40), steps in steps(0..200), cancel in any::<bool>()) {
        let model = build(&specs, cancel);
        let mut with = run(&model, &steps, true, true);
        let mut without = run(&model, &steps, true, false);
        prop_assert_eq!(with.jobs(), without.jobs());
        with.drain();
        without.drain();
        prop_assert_eq!(with.jobs(), without.jobs());
        prop_assert_eq!(with.world.pipeline(1), without.world.pipeline(1));
        prop_assert_eq!(with.finished, without.finished);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn every_job_of_a_large_pipeline_comes_to_an_end(specs in specs(200..500), steps in steps(500..1500)) {
        comes_to_an_end(&build(&specs, false), &steps);
    }

    /// Without people, jobs end after all that they had to wait for.
    #[test]
    fn the_order_of_finished_jobs_respects_needs_and_stages(specs in specs(1..500), steps in steps(0..1500)) {
        let model = build(&specs, false);
        let mut run = run(&model, &steps, false, false);
        run.drain();
        let mut ended = vec![None; model.jobs.len()];
        run.finished.iter().enumerate().for_each(|(order, &place)| ended[place] = Some(order));
        for place in &run.finished {
            for before in run.reference.waits_for(*place) {
                prop_assert!(rests(&run.jobs()[before]), "job {} ended before job {before} rested", place);
                prop_assert!(ended[before] <= ended[*place], "job {} ended before job {before}", place);
            }
        }
    }
}
