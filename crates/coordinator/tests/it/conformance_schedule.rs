//! Conformance cases of scheduling and state (docs/spec/pipeline-yaml.md, section 8.7) that need only the engine.
//!
//! C188 to C191, C193 to C195, C197, and the other parts of C187 and C198 are in `conformance_bridges` and
//! `conformance_coordinator`. C192 and C196 are errors of the compiler. C200 is measured on the whole program.

use std::collections::BTreeMap;

use muster_coordinator::schedule::{Engine, Event, Outcome, RejectedEvent, ResourceMode, RestoreError, Target};
use muster_job::{FailureReason, PipelineId};
use muster_pipeline::model::{AllowFailure, OnNewCommit, Strategy, When};

use crate::schedule::harness::{Build, EngineHarness, engine_with, pipeline};

#[test]
fn c165_failure_lets_its_stage_finish_and_skips_the_next_stage() {
    let mut harness = engine_with(pipeline("b: b1 b2; t: t1"));
    harness.assign("b2");
    harness.fail("b1");
    harness.expect("b2:running t1:created @1:running");
    harness.pass("b2");
    harness.expect("b1:failed b2:success t1:skipped @1:failed");
}

#[test]
fn c166_allowed_failure_is_a_warning() {
    let mut harness = engine_with(pipeline("b: b1; t: t1").with("b1", |job| job.allow_failure = AllowFailure::Yes));
    harness.fail("b1");
    harness.expect("t1:pending");
    harness.pass("t1");
    harness.expect("b1:failed @1:success");
    assert!(harness.engine.has_warnings(PipelineId(1)));
}

#[test]
fn c167_on_failure_runs_only_after_a_failure() {
    let model = || pipeline("b: b1; t: t1").when("t1", When::OnFailure);
    let mut harness = engine_with(model());
    harness.pass("b1");
    harness.expect("t1:skipped @1:success");
    let mut harness = engine_with(model());
    harness.fail("b1");
    harness.expect("t1:pending");
    harness.pass("t1");
    harness.expect("t1:success @1:failed");
}

#[test]
fn c168_allowed_failure_does_not_start_an_on_failure_job() {
    let model = pipeline("b: b1; t: t1 t2").with("b1", |job| job.allow_failure = AllowFailure::Yes);
    let mut harness = engine_with(model.when("t1", When::OnFailure));
    harness.fail("b1");
    harness.expect("t1:skipped t2:pending");
}

#[test]
fn c169_job_with_when_always_runs_after_a_failure() {
    let mut harness = engine_with(pipeline("b: b1; t: t1; d: d1").when("d1", When::Always));
    harness.fail("b1");
    harness.expect("t1:skipped d1:pending");
    harness.pass("d1");
    harness.expect("@1:failed");
}

#[test]
fn c170_optional_manual_job_does_not_block() {
    let mut harness = engine_with(pipeline("b: b1; t: t1").when("b1", When::Manual));
    harness.expect("b1:manual t1:pending");
    harness.pass("t1");
    harness.expect("b1:manual @1:success");
}

#[test]
fn c171_blocking_manual_job_delays_the_next_stage() {
    let mut harness = engine_with(pipeline("b: b1; t: t1").with("b1", |job| job.when = When::Manual));
    harness.expect("b1:manual t1:created @1:manual");
    harness.play("b1");
    harness.expect("b1:pending t1:created");
    harness.pass("b1 t1");
    harness.expect("@1:success");
}

#[test]
fn c172_job_with_needs_does_not_wait_for_the_earlier_stage() {
    let mut harness = engine_with(pipeline("b: b1 b2; t: t1").needs("t1", &["b1"]));
    harness.assign("b2");
    harness.pass("b1");
    harness.expect("b2:running t1:pending");
}

#[test]
fn c173_job_is_skipped_if_its_need_fails() {
    let mut harness = engine_with(pipeline("b: b1 b2; t: t1").needs("t1", &["b1"]));
    harness.fail("b1");
    harness.pass("b2");
    harness.expect("t1:skipped @1:failed");
}

#[test]
fn c174_playing_a_need_revives_skipped_jobs() {
    let mut harness =
        engine_with(pipeline("b: b1; t: t1; d: d1").when("b1", When::Manual).needs("t1", &["b1"]).needs("d1", &["t1"]));
    harness.expect("b1:manual t1:skipped d1:skipped @1:skipped");
    harness.play("b1");
    harness.expect("b1:pending t1:created d1:created");
    harness.pass("b1");
    harness.expect("t1:pending");
    harness.pass("t1 d1");
    harness.expect("@1:success");
}

#[test]
fn c175_job_in_stage_order_waits_for_all_earlier_stages() {
    let mut harness = engine_with(pipeline("b: b1; t: t1; d: d1").needs("t1", &[]));
    harness.fail("t1");
    harness.pass("b1");
    harness.expect("d1:skipped @1:failed");
}

#[test]
fn c176_on_failure_waits_for_all_its_needs() {
    let mut harness = engine_with(pipeline("b: b1 b2; t: t1").needs("t1", &["b1", "b2"]).when("t1", When::OnFailure));
    harness.fail("b1");
    harness.expect("t1:created");
    harness.pass("b2");
    harness.expect("t1:pending");
}

#[test]
fn c177_job_with_empty_needs_starts_together_with_pre() {
    let harness = engine_with(pipeline(".pre: p1; b: b1 b2; .post:").needs("b1", &[]));
    harness.expect("p1:pending b1:pending b2:created");
}

#[test]
fn c178_delay_starts_when_the_job_is_ready() {
    let mut harness = engine_with(pipeline("b: b1; t: t1").when("t1", When::Delayed));
    harness.pass("b1");
    harness.expect("t1:scheduled @1:scheduled");
    let t1 = harness.job("t1");
    assert_eq!(harness.timers[&t1], harness.now + 60_000);
    harness.now += 59_999;
    let early = harness.apply(Event::TimerFired { job: t1 });
    assert_eq!(early, Err(RejectedEvent::NotDue { job: t1, at: harness.now + 1 }));
    harness.now += 1;
    harness.apply(Event::TimerFired { job: t1 }).unwrap();
    harness.expect("t1:pending");
    assert!(harness.apply(Event::TimerFired { job: t1 }).is_err(), "a timer must fire only once");

    let mut harness = engine_with(pipeline("b: b1; t: t1").when("t1", When::Delayed));
    harness.fail("b1");
    harness.expect("t1:skipped");
}

#[test]
fn delayed_job_can_be_played_or_unscheduled_and_can_become_stale() {
    let model = pipeline("b: b1 b2 b3").when("b1", When::Delayed).when("b2", When::Delayed).when("b3", When::Delayed);
    let mut harness = engine_with(model);
    harness.play("b1");
    let (b1, b2, b3) = (harness.job("b1"), harness.job("b2"), harness.job("b3"));
    harness.apply(Event::Unschedule { job: b2 }).unwrap();
    harness.expect("b1:pending b2:manual b3:scheduled");
    harness.now += 60_000 + 3_600_001; // more than an hour after the jobs were due
    assert!(harness.apply(Event::TimerFired { job: b1 }).is_err());
    assert!(harness.apply(Event::TimerFired { job: b2 }).is_err());
    harness.apply(Event::TimerFired { job: b3 }).unwrap();
    harness.expect("b3:failed");
    assert_eq!(harness.reasons[&b3], FailureReason::StaleSchedule);
}

#[test]
fn c179_each_retry_is_a_separate_record() {
    let mut harness = engine_with(pipeline("b: b1; t: t1").retry("b1", 2, &[], &[]));
    harness.fail("b1");
    harness.expect("b1:pending t1:created");
    harness.fail("b1");
    harness.fail("b1");
    harness.expect("b1:failed t1:skipped @1:failed");
    assert_eq!(harness.job("b1").retry, 2, "three attempts");

    let mut harness = engine_with(pipeline("b: b1; t: t1").retry("b1", 2, &[], &[]));
    let first = harness.job("b1");
    harness.fail("b1");
    harness.pass("b1 t1");
    harness.expect("b1:success @1:success");
    assert_eq!(harness.job("b1").retry, 1, "two records");
    let late_report = harness.apply(Event::JobFinished { job: first, outcome: Outcome::Success });
    assert_eq!(late_report, Err(RejectedEvent::Replaced { job: first, newest: 1 }));
}

#[test]
fn c180_retries_depend_on_reason_and_exit_code() {
    use FailureReason::{RunnerSystemFailure as System, ScriptFailure as Script};
    let retried = |max, when: &[FailureReason], codes: &[i32], reason, code| {
        let mut harness = engine_with(pipeline("b: b1").retry("b1", max, when, codes));
        harness.fail_with("b1", reason, code);
        harness.job("b1").retry == 1
    };
    assert!(!retried(1, &[System], &[], Script, Some(1)));
    assert!(retried(1, &[], &[137], Script, Some(137)));
    assert!(!retried(1, &[], &[137], Script, Some(1)));
    assert!(retried(2, &[System], &[137], System, None));
    assert!(retried(2, &[System], &[137], Script, Some(137)));
}

#[test]
fn c181_listed_exit_codes_make_a_failure_a_warning() {
    let model = || pipeline("b: b1; t: t1").with("b1", |job| job.allow_failure = AllowFailure::ExitCodes(vec![42]));
    let mut harness = engine_with(model());
    harness.fail_with("b1", FailureReason::ScriptFailure, Some(42));
    harness.pass("t1");
    harness.expect("b1:failed t1:success @1:success");
    let mut harness = engine_with(model());
    harness.fail_with("b1", FailureReason::ScriptFailure, Some(7));
    harness.expect("b1:failed t1:skipped @1:failed");
}

#[test]
fn c182_resource_group_runs_one_job_at_a_time() {
    for end in ["success", "failed", "canceled"] {
        let mut harness = engine_with(pipeline("d: d1").group("d1", "production"));
        harness.add(pipeline("d: d1").group("d1", "production"));
        harness.expect("1.d1:pending 2.d1:waiting_for_resource @2:waiting_for_resource");
        match end {
            "success" => harness.pass("1.d1"),
            "failed" => harness.fail("1.d1"),
            _ => harness.cancel(1),
        }
        harness.expect(&format!("1.d1:{end} 2.d1:pending"));
    }
}

#[test]
fn c182_resource_mode_selects_the_next_job() {
    let member = || pipeline("b: b1; d: d1").group("d1", "production");
    let run = |mode, ready: [&str; 3]| {
        let mut harness = EngineHarness::empty();
        harness.apply(Event::SetResourceMode { group: "production".to_owned(), mode }).unwrap();
        // Pipeline 1 holds the group while pipelines 2 to 4 start to wait in the given order.
        harness.add(pipeline("d: d1").group("d1", "production"));
        harness.assign("1.d1");
        for _ in 0..3 {
            harness.add(member());
        }
        ready.iter().filter(|number| !number.is_empty()).for_each(|number| harness.pass(&format!("{number}.b1")));
        harness.pass("1.d1");
        (2..5).filter(|number| harness.status(&format!("{number}.d1")).as_str() == "pending").collect::<Vec<_>>()
    };
    assert_eq!(run(ResourceMode::Unordered, ["4", "3", ""]), [3]);
    assert_eq!(run(ResourceMode::OldestFirst, ["4", "2", "3"]), [2]);
    assert_eq!(run(ResourceMode::OldestFirst, ["4", "3", ""]), [] as [i32; 0], "pipeline 2 is not ready yet");
    assert_eq!(run(ResourceMode::NewestFirst, ["2", "4", "3"]), [4]);
    assert_eq!(run(ResourceMode::NewestFirst, ["2", "3", ""]), [] as [i32; 0], "pipeline 4 is not ready yet");
    assert_eq!(run(ResourceMode::NewestReadyFirst, ["2", "3", ""]), [3]);
}

#[test]
fn c182_oldest_first_continues_after_an_older_job_failed() {
    let member = || pipeline("b: b1; d: d1").group("d1", "production");
    let mut harness = EngineHarness::empty();
    let mode = ResourceMode::OldestFirst;
    harness.apply(Event::SetResourceMode { group: "production".to_owned(), mode }).unwrap();
    harness.add(member());
    harness.add(member());
    harness.pass("2.b1");
    harness.expect("1.d1:created 2.d1:waiting_for_resource");
    harness.fail("1.b1");
    harness.expect("1.d1:skipped 2.d1:pending");
}

#[test]
fn c183_different_expanded_names_are_different_groups() {
    let harness = engine_with(pipeline("d: d1 d2").group("d1", "env-a").group("d2", "env-b"));
    harness.expect("d1:pending d2:pending");
}

#[test]
fn c184_conservative_cancels_all_jobs_or_none() {
    let model = || pipeline("b: b1; t: t1").with("b1", |job| job.interruptible = true);
    let newer_pipeline = Event::NewerPipeline { older: PipelineId(1) };
    let mut harness = engine_with(model());
    harness.assign("b1");
    harness.apply(newer_pipeline.clone()).unwrap();
    harness.expect("b1:canceled t1:canceled @1:canceled");

    let mut harness = engine_with(model());
    harness.pass("b1");
    harness.assign("t1");
    harness.apply(newer_pipeline.clone()).unwrap();
    harness.expect("b1:success t1:running");

    let mut harness = engine_with(model());
    harness.pass("b1");
    harness.apply(newer_pipeline).unwrap();
    harness.expect("t1:canceled @1:canceled");
}

#[test]
fn c184_interruptible_cancels_only_interruptible_jobs() {
    let model = |mode| {
        let mut model = pipeline("b: b1 b2; t: t1 t2");
        model.auto_cancel.on_new_commit = mode;
        model.with("b1", |job| job.interruptible = true).with("t1", |job| job.interruptible = true)
    };
    let newer_pipeline = Event::NewerPipeline { older: PipelineId(1) };
    let mut harness = engine_with(model(OnNewCommit::Interruptible));
    harness.assign("b1");
    harness.assign("b2");
    harness.apply(newer_pipeline.clone()).unwrap();
    harness.expect("b1:canceled b2:running t1:canceled t2:created");
    let mut harness = engine_with(model(OnNewCommit::None));
    harness.assign("b1");
    harness.apply(newer_pipeline).unwrap();
    harness.expect("b1:running b2:pending t1:created t2:created");
}

#[test]
fn c184_child_with_an_uninterruptible_job_continues() {
    let parent = || {
        pipeline("b: b1 c; t: t1")
            .bridge("c", Strategy::Depend)
            .with("b1", |job| job.interruptible = true)
            .with("c", |job| job.interruptible = true)
    };
    let newer_pipeline = Event::NewerPipeline { older: PipelineId(1) };
    let mut harness = engine_with(parent());
    harness.add_child("c", pipeline("x: x1")).unwrap();
    harness.assign("2.x1");
    harness.apply(newer_pipeline.clone()).unwrap();
    harness.expect("b1:canceled c:running 2.x1:running t1:canceled");

    let mut harness = engine_with(parent());
    harness.add_child("c", pipeline("x: x1")).unwrap();
    harness.apply(newer_pipeline).unwrap();
    harness.expect("b1:canceled 2.x1:canceled @2:canceled c:canceled t1:canceled @1:canceled");
}

#[test]
fn c185_first_failure_cancels_the_other_jobs_if_configured() {
    let mut model = pipeline("b: b1 b2 b3; t: t1").with("b3", |job| job.allow_failure = AllowFailure::Yes);
    model.auto_cancel.on_job_failure = true;
    let mut harness = engine_with(model.retry("b1", 1, &[], &[]));
    harness.assign("b2");
    harness.fail("b3");
    harness.expect("b2:running");
    harness.fail("b1");
    harness.expect("b1:pending b2:running");
    harness.fail("b1");
    harness.expect("b1:failed b2:canceled t1:canceled @1:failed");
    assert_eq!(harness.cancels_on_runners, [(harness.job("b2"), false)]);
}

#[test]
fn c186_graceful_cancel_waits_for_the_final_report() {
    for outcome in [Outcome::Success, Outcome::Failed { reason: FailureReason::JobCanceled, exit_code: None }] {
        let mut harness = engine_with(pipeline("b: b1; t: t1").retry("b1", 2, &[], &[]));
        harness.assign_with_graceful_cancel("b1");
        harness.cancel(1);
        harness.expect("b1:canceling t1:canceled @1:canceling");
        assert_eq!(harness.cancels_on_runners, [(harness.job("b1"), true)]);
        let b1 = harness.job("b1");
        harness.apply(Event::JobFinished { job: b1, outcome }).unwrap();
        harness.expect("b1:canceled @1:canceled");
        assert_eq!(harness.job("b1").retry, 0, "a canceled job must not be retried");
    }
}

#[test]
fn c186_force_cancel_ends_the_job_immediately() {
    let mut harness = engine_with(pipeline("b: b1 b2"));
    harness.assign_with_graceful_cancel("b1");
    harness.assign_with_graceful_cancel("b2");
    harness.cancel(1);
    harness.cancel(1);
    assert_eq!(harness.cancels_on_runners.len(), 2, "each job must be canceled on its runner only once");
    harness.apply(Event::ForceCancel { target: Target::Job(harness.job("b1")) }).unwrap();
    harness.expect("b1:canceled b2:canceling");
    harness.apply(Event::ForceCancel { target: Target::Pipeline(PipelineId(1)) }).unwrap();
    harness.expect("b2:canceled @1:canceled");
    let b1 = harness.job("b1");
    assert!(harness.apply(Event::JobFinished { job: b1, outcome: Outcome::Success }).is_err());
}

/// The engine's part of C187: the engine accepts the failure of a job that was never assigned to a runner.
#[test]
fn c187_pending_job_can_fail_without_a_runner() {
    let mut harness = engine_with(pipeline("b: b1; t: t1").retry("t1", 2, &[], &[]));
    harness.pass("b1");
    let t1 = harness.job("t1");
    let outcome = Outcome::Failed { reason: FailureReason::MissingDependencyFailure, exit_code: None };
    harness.apply(Event::JobFinished { job: t1, outcome }).unwrap();
    harness.expect("t1:failed @1:failed");
}

#[test]
fn c198_stuck_job_does_not_block_other_jobs() {
    let mut harness = engine_with(pipeline("b: gpu b1; t: t1").needs("t1", &["b1"]));
    harness.pass("b1 t1");
    harness.expect("gpu:pending t1:success @1:running");
}

#[test]
fn c199_manual_retry_revives_skipped_jobs() {
    let mut harness = engine_with(pipeline("b: b1; t: t1; d: d1"));
    harness.fail("b1");
    harness.expect("t1:skipped d1:skipped @1:failed");
    harness.retry("b1");
    harness.expect("b1:pending t1:created d1:created");
    harness.pass("b1");
    harness.expect("t1:pending");
    harness.pass("t1 d1");
    harness.expect("@1:success");
}

#[test]
fn only_finished_jobs_that_ran_can_be_retried() {
    let mut harness = engine_with(pipeline("b: b1; t: t1"));
    let (b1, t1) = (harness.job("b1"), harness.job("t1"));
    assert!(harness.apply(Event::RetryJob { job: b1 }).is_err());
    harness.fail("b1");
    assert!(harness.apply(Event::RetryJob { job: t1 }).is_err(), "a skipped job must not be retried");
    harness.retry("b1");
    assert_eq!(harness.apply(Event::RetryJob { job: b1 }), Err(RejectedEvent::Replaced { job: b1, newest: 1 }));
}

#[test]
fn retry_of_a_manual_or_delayed_job_starts_immediately() {
    let mut harness = engine_with(pipeline("b: b1 b2").when("b1", When::Manual).when("b2", When::Delayed));
    harness.play("b1");
    harness.play("b2");
    harness.fail("b1");
    harness.pass("b2");
    harness.retry("b1");
    harness.retry("b2");
    harness.expect("b1:pending b2:pending");
}

#[test]
fn restored_jobs_are_scheduled_by_the_resource_modes_passed_at_the_restart() {
    let member = || pipeline("b: b1; d: d1").group("d1", "production");
    let mut harness = EngineHarness::empty();
    let mode = ResourceMode::OldestFirst;
    harness.apply(Event::SetResourceMode { group: "production".to_owned(), mode }).unwrap();
    harness.add(member());
    harness.add(member());
    harness.pass("2.b1");
    harness.expect("2.d1:waiting_for_resource");
    // No mode is passed for the group, so it is unordered: the second pipeline need not wait for the first one.
    let (engine, _) = Engine::restore(harness.rows(), &BTreeMap::new(), harness.now).unwrap();
    assert_eq!(engine.job(harness.job("2.d1")).unwrap().status, muster_job::JobStatus::Pending);
}

#[test]
fn inconsistent_rows_are_rejected() {
    let harness = engine_with(pipeline("b: b1"));
    let twice = [harness.rows(), harness.rows()].concat();
    assert_eq!(Engine::restore(twice, &BTreeMap::new(), 0).err(), Some(RestoreError::Duplicate(PipelineId(1))));
    let mut short = harness.rows();
    short[0].jobs.clear();
    let missing = RestoreError::JobCount { pipeline: PipelineId(1), expected: 1, stored: 0 };
    assert_eq!(Engine::restore(short, &BTreeMap::new(), 0).err(), Some(missing));
}

#[test]
fn c218_manual_jobs_run_only_when_named() {
    let model = || pipeline("b: b1 b2; t: t1").when("b1", When::Manual).when("b2", When::Manual);
    let mut harness = EngineHarness::empty();
    harness.add_with_requested_jobs(model(), &["b2"]);
    harness.expect("b1:manual b2:pending t1:created");
    harness.pass("b2 t1");
    harness.expect("b1:manual @1:success");
}

#[test]
fn requeued_job_is_added_to_the_queue_again() {
    let mut harness = engine_with(pipeline("b: b1"));
    harness.assign("b1");
    let b1 = harness.job("b1");
    harness.apply(Event::JobRequeued { job: b1 }).unwrap();
    harness.expect("b1:pending");
    assert_eq!(harness.enqueued[&b1], 2);
    assert!(harness.apply(Event::JobRequeued { job: b1 }).is_err());
    harness.pass("b1");
}

/// Differs from the literal text of docs/spec/pipeline-yaml.md, section 5.3, which would start the job as soon as one need is skipped.
#[test]
fn job_with_when_always_waits_for_all_its_needs() {
    let mut harness = engine_with(
        pipeline("b: b1 b2; t: t1; d: d1 d2")
            .needs("t1", &["b1"])
            .needs("d1", &["t1", "b2"])
            .when("d1", When::Always)
            .needs("d2", &["t1", "b2"]),
    );
    harness.assign("b2");
    harness.fail("b1");
    harness.expect("t1:skipped d1:created d2:skipped");
    harness.pass("b2");
    harness.expect("d1:pending");
}
