//! Generated pipelines and events.

use std::time::Duration;

use muster_coordinator::schedule::{Event, JobRef, Outcome, Target};
use muster_job::{FailureReason, JobStatus, PipelineId};
use muster_pipeline::model::{AllowFailure, AutoCancel, Need, OnNewCommit, Pipeline, Strategy as Follow, When};
use proptest::collection::vec;
use proptest::prelude::*;

use super::harness::{Build, bridge_work, job, pipeline};

/// A generated job. Each need, modulo the job's own index, is the index of an earlier job.
#[derive(Debug, Clone)]
pub(super) struct JobSpec {
    stage: usize,
    when: When,
    allow_failure: AllowFailure,
    retries: u32,
    needs: Option<Vec<u16>>,
    resource_group: Option<&'static str>,
    interruptible: bool,
    bridge: Option<Follow>,
}

pub(super) fn spec() -> impl Strategy<Value = JobSpec> {
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
    let resource_group = proptest::option::weighted(0.1, proptest::sample::select(vec!["one", "two"]));
    let strategy = prop_oneof![Just(Follow::None), Just(Follow::Depend), Just(Follow::Mirror)];
    let bridge = proptest::option::weighted(0.1, strategy);
    (0..8_usize, when, allow_failure, retries, needs, resource_group, any::<bool>(), bridge).prop_map(
        |(stage, when, allow_failure, retries, needs, resource_group, interruptible, bridge)| JobSpec {
            stage,
            when,
            allow_failure,
            retries,
            needs,
            resource_group,
            interruptible,
            bridge,
        },
    )
}

pub(super) fn specs(jobs: std::ops::Range<usize>) -> impl Strategy<Value = Vec<JobSpec>> {
    vec(spec(), jobs)
}

pub(super) fn auto_cancel() -> impl Strategy<Value = AutoCancel> {
    let modes = [OnNewCommit::Conservative, OnNewCommit::Interruptible, OnNewCommit::None];
    (proptest::sample::select(modes.to_vec()), proptest::bool::weighted(0.3))
        .prop_map(|(on_new_commit, on_job_failure)| AutoCancel { on_new_commit, on_job_failure })
}

pub(super) fn build(specs: &[JobSpec], auto_cancel: AutoCancel) -> Pipeline {
    let mut model = pipeline("s0:; s1:; s2:; s3:; s4:; s5:; s6:; s7:");
    model.auto_cancel = auto_cancel;
    let mut specs = specs.to_vec();
    specs.sort_by_key(|spec| spec.stage);
    for (job_index, spec) in specs.iter().enumerate() {
        let mut generated = job(&format!("j{job_index}"), &format!("s{}", spec.stage), spec.stage);
        generated.when = spec.when;
        generated.start_in = Some(Duration::from_secs(5));
        generated.allow_failure = spec.allow_failure.clone();
        generated.retry.max = spec.retries;
        generated.interruptible = spec.interruptible;
        match spec.bridge {
            Some(strategy) => generated.work = bridge_work(strategy),
            None => generated.resource_group = spec.resource_group.map(str::to_owned),
        }
        generated.needs = spec.needs.as_ref().map(|needs| {
            let earlier = needs.iter().filter(|_| job_index > 0).map(|need| usize::from(*need) % job_index);
            let need = |earlier| Need::Job { name: format!("j{earlier}"), artifacts: true, optional: false };
            earlier.map(need).collect()
        });
        model.jobs.push(generated);
    }
    model
}

pub(super) fn child(kind: u16) -> Pipeline {
    match kind % 4 {
        0 => pipeline("x: x1; y: y1"),
        1 => pipeline("x: x1; y: y1").with("x1", |job| job.when = When::Manual),
        2 => pipeline("x: x1 x2").when("x1", When::Manual),
        _ => pipeline("x: x1").when("x1", When::OnFailure),
    }
}

/// A step of a run: `kind` determines an event, and `selector` one of the jobs for which the event is valid.
///
/// `restart` is whether the engine is restarted after the step.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) selector: u16,
    pub(super) kind: u8,
    pub(super) restart: bool,
}

pub(super) fn steps(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Step>> {
    let step = (any::<u16>(), any::<u8>(), proptest::bool::weighted(0.02));
    vec(step.prop_map(|(selector, kind, restart)| Step { selector, kind, restart }), count)
}

pub(super) fn any_event() -> impl Strategy<Value = Event> {
    let statuses = [
        JobStatus::Created,
        JobStatus::WaitingForResource,
        JobStatus::Pending,
        JobStatus::Running,
        JobStatus::Success,
        JobStatus::Failed,
        JobStatus::Canceling,
        JobStatus::Canceled,
        JobStatus::Skipped,
        JobStatus::Manual,
        JobStatus::Scheduled,
    ];
    let job = (0..3_i64, 0..20_usize, 0..3_u32).prop_map(|(pipeline, job_index, retry)| JobRef {
        pipeline: PipelineId(pipeline),
        job_index,
        retry,
    });
    let status = proptest::sample::select(statuses.to_vec());
    let reason = proptest::sample::select(FailureReason::ALL);
    (job, status, reason, any::<bool>(), 0..15_u8).prop_map(|(job, status, reason, flag, kind)| match kind {
        0 | 1 => Event::JobAssigned { job, supports_graceful_cancel: flag },
        2 => Event::JobRequeued { job },
        3 | 4 => Event::JobFinished { job, outcome: Outcome::Success },
        5 => Event::JobFinished { job, outcome: Outcome::Failed { reason, exit_code: flag.then_some(42) } },
        6 => Event::Cancel { target: Target::Job(job) },
        7 => Event::ForceCancel { target: Target::Job(job) },
        8 => Event::Play { job },
        9 => Event::Unschedule { job },
        10 => Event::RetryJob { job },
        11 => Event::TimerFired { job },
        12 => Event::ChildStatusChanged { bridge: job, status },
        13 => Event::ChildFailed { bridge: job, reason },
        _ if flag => Event::Cancel { target: Target::Pipeline(job.pipeline) },
        _ => Event::NewerPipeline { older: job.pipeline },
    })
}
