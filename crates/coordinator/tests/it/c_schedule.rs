//! Conformance cases of scheduling and state (docs/spec/pipeline-yaml.md, section 8.7) that the engine alone decides.
//!
//! Not here: the compiler or the event loop decides a part of C187, C191, C193, C194 and C198; C192 and C196 are compiler errors;
//! C197 is tested with the agent; C200 is measured on the whole program.

use std::collections::BTreeMap;

use muster_coordinator::schedule::{Engine, Event, Outcome, RejectedEvent, ResourceMode, RestoreError, Target};
use muster_job::{FailureReason, PipelineId};
use muster_pipeline::model::{AllowFailure, OnNewCommit, Strategy, When};

use crate::schedule::harness::{Build, EngineHarness, harness, pipeline};

#[test]
fn c165_a_failure_lets_its_stage_finish_and_skips_the_next() {
    let mut w = harness(pipeline("b: b1 b2; t: t1"));
    w.take("b2");
    w.fail("b1");
    w.expect("b2:running t1:created @1:running");
    w.pass("b2");
    w.expect("b1:failed b2:success t1:skipped @1:failed");
}

#[test]
fn c166_an_allowed_failure_is_a_warning() {
    let mut w = harness(pipeline("b: b1; t: t1").with("b1", |job| job.allow_failure = AllowFailure::Yes));
    w.fail("b1");
    w.expect("t1:pending");
    w.pass("t1");
    w.expect("b1:failed @1:success");
    assert!(w.engine.has_warnings(PipelineId(1)));
}

#[test]
fn c167_on_failure_runs_only_after_a_failure() {
    let built = || pipeline("b: b1; t: t1").when("t1", When::OnFailure);
    let mut w = harness(built());
    w.pass("b1");
    w.expect("t1:skipped @1:success");
    let mut w = harness(built());
    w.fail("b1");
    w.expect("t1:pending");
    w.pass("t1");
    w.expect("t1:success @1:failed");
}

#[test]
fn c168_warning_does_not_trigger_on_failure() {
    let mut w = harness(
        pipeline("b: b1; t: t1 t2").with("b1", |job| job.allow_failure = AllowFailure::Yes).when("t1", When::OnFailure),
    );
    w.fail("b1");
    w.expect("t1:skipped t2:pending");
}

#[test]
fn c169_always_runs_after_a_failure() {
    let mut w = harness(pipeline("b: b1; t: t1; d: d1").when("d1", When::Always));
    w.fail("b1");
    w.expect("t1:skipped d1:pending");
    w.pass("d1");
    w.expect("@1:failed");
}

#[test]
fn c170_an_optional_manual_job_blocks_nothing() {
    let mut w = harness(pipeline("b: b1; t: t1").when("b1", When::Manual));
    w.expect("b1:manual t1:pending");
    w.pass("t1");
    w.expect("b1:manual @1:success");
}

#[test]
fn c171_blocking_manual_job_holds_the_next_stage() {
    let mut w = harness(pipeline("b: b1; t: t1").with("b1", |job| job.when = When::Manual));
    w.expect("b1:manual t1:created @1:manual");
    w.play("b1");
    w.expect("b1:pending t1:created");
    w.pass("b1 t1");
    w.expect("@1:success");
}

#[test]
fn c172_needs_do_not_wait_for_the_stage() {
    let mut w = harness(pipeline("b: b1 b2; t: t1").needs("t1", &["b1"]));
    w.take("b2");
    w.pass("b1");
    w.expect("b2:running t1:pending");
}

#[test]
fn c173_a_failed_need_skips() {
    let mut w = harness(pipeline("b: b1 b2; t: t1").needs("t1", &["b1"]));
    w.fail("b1");
    w.pass("b2");
    w.expect("t1:skipped @1:failed");
}

#[test]
fn c174_playing_a_need_revives_skipped_jobs() {
    let mut w =
        harness(pipeline("b: b1; t: t1; d: d1").when("b1", When::Manual).needs("t1", &["b1"]).needs("d1", &["t1"]));
    w.expect("b1:manual t1:skipped d1:skipped @1:skipped");
    w.play("b1");
    w.expect("b1:pending t1:created d1:created");
    w.pass("b1");
    w.expect("t1:pending");
    w.pass("t1 d1");
    w.expect("@1:success");
}

#[test]
fn c175_stage_order_counts_all_earlier_stages() {
    let mut w = harness(pipeline("b: b1; t: t1; d: d1").needs("t1", &[]));
    w.fail("t1");
    w.pass("b1");
    w.expect("d1:skipped @1:failed");
}

#[test]
fn c176_on_failure_waits_for_all_its_needs() {
    let mut w = harness(pipeline("b: b1 b2; t: t1").needs("t1", &["b1", "b2"]).when("t1", When::OnFailure));
    w.fail("b1");
    w.expect("t1:created");
    w.pass("b2");
    w.expect("t1:pending");
}

#[test]
fn c177_empty_needs_start_beside_pre() {
    let w = harness(pipeline(".pre: p1; b: b1 b2; .post:").needs("b1", &[]));
    w.expect("p1:pending b1:pending b2:created");
}

#[test]
fn c178_delay_starts_when_the_job_is_ready() {
    let mut w = harness(pipeline("b: b1; t: t1").when("t1", When::Delayed));
    w.pass("b1");
    w.expect("t1:scheduled @1:scheduled");
    let t1 = w.job("t1");
    assert_eq!(w.timers[&t1], w.now + 60_000);
    w.now += 59_999;
    assert_eq!(w.apply(Event::TimerFired { job: t1 }), Err(RejectedEvent::NotDue { job: t1, at: w.now + 1 }));
    w.now += 1;
    w.apply(Event::TimerFired { job: t1 }).unwrap();
    w.expect("t1:pending");
    assert!(w.apply(Event::TimerFired { job: t1 }).is_err(), "a second shot is late");

    let mut w = harness(pipeline("b: b1; t: t1").when("t1", When::Delayed));
    w.fail("b1");
    w.expect("t1:skipped");
}

#[test]
fn delayed_job_can_be_played_unscheduled_or_stale() {
    let mut w =
        harness(pipeline("b: b1 b2 b3").when("b1", When::Delayed).when("b2", When::Delayed).when("b3", When::Delayed));
    w.play("b1");
    let (b1, b2, b3) = (w.job("b1"), w.job("b2"), w.job("b3"));
    w.apply(Event::Unschedule { job: b2 }).unwrap();
    w.expect("b1:pending b2:manual b3:scheduled");
    w.now += 60_000 + 3_600_001;
    assert!(w.apply(Event::TimerFired { job: b1 }).is_err());
    assert!(w.apply(Event::TimerFired { job: b2 }).is_err());
    w.apply(Event::TimerFired { job: b3 }).unwrap();
    w.expect("b3:failed");
    assert_eq!(w.reasons[&b3], FailureReason::StaleSchedule);
}

#[test]
fn c179_each_retry_is_a_separate_record() {
    let mut w = harness(pipeline("b: b1; t: t1").retry("b1", 2, &[], &[]));
    w.fail("b1");
    w.expect("b1:pending t1:created");
    w.fail("b1");
    w.fail("b1");
    w.expect("b1:failed t1:skipped @1:failed");
    assert_eq!(w.job("b1").retry, 2, "three attempts");

    let mut w = harness(pipeline("b: b1; t: t1").retry("b1", 2, &[], &[]));
    let first = w.job("b1");
    w.fail("b1");
    w.pass("b1 t1");
    w.expect("b1:success @1:success");
    assert_eq!(w.job("b1").retry, 1, "two records");
    let late = w.apply(Event::JobFinished { job: first, outcome: Outcome::Success });
    assert_eq!(late, Err(RejectedEvent::Replaced { job: first, newest: 1 }));
}

#[test]
fn c180_retries_look_at_reason_and_exit_code() {
    use FailureReason::{RunnerSystemFailure as System, ScriptFailure as Script};
    let retried = |max, when: &[FailureReason], codes: &[i32], reason, code| {
        let mut w = harness(pipeline("b: b1").retry("b1", max, when, codes));
        w.fail_with("b1", reason, code);
        w.job("b1").retry == 1
    };
    assert!(!retried(1, &[System], &[], Script, Some(1)));
    assert!(retried(1, &[], &[137], Script, Some(137)));
    assert!(!retried(1, &[], &[137], Script, Some(1)));
    assert!(retried(2, &[System], &[137], System, None));
    assert!(retried(2, &[System], &[137], Script, Some(137)));
}

#[test]
fn c181_listed_exit_codes_make_a_failure_a_warning() {
    let built = || pipeline("b: b1; t: t1").with("b1", |job| job.allow_failure = AllowFailure::ExitCodes(vec![42]));
    let mut w = harness(built());
    w.fail_with("b1", FailureReason::ScriptFailure, Some(42));
    w.pass("t1");
    w.expect("b1:failed t1:success @1:success");
    let mut w = harness(built());
    w.fail_with("b1", FailureReason::ScriptFailure, Some(7));
    w.expect("b1:failed t1:skipped @1:failed");
}

#[test]
fn c182_one_job_of_a_resource_group_at_a_time() {
    for end in ["success", "failed", "canceled"] {
        let mut w = harness(pipeline("d: d1").group("d1", "production"));
        w.add(pipeline("d: d1").group("d1", "production"));
        w.expect("1.d1:pending 2.d1:waiting_for_resource @2:waiting_for_resource");
        match end {
            "success" => w.pass("1.d1"),
            "failed" => w.fail("1.d1"),
            _ => w.cancel(1),
        }
        w.expect(&format!("1.d1:{end} 2.d1:pending"));
    }
}

#[test]
fn c182_process_modes_choose_the_next_job() {
    let member = || pipeline("b: b1; d: d1").group("d1", "production");
    let run = |mode, ready: [&str; 3]| {
        let mut w = EngineHarness::empty();
        w.apply(Event::SetResourceMode { group: "production".to_owned(), mode }).unwrap();
        // Pipeline 1 holds the group while pipelines 2 to 4 start to wait in the given order.
        w.add(pipeline("d: d1").group("d1", "production"));
        w.take("1.d1");
        for _ in 0..3 {
            w.add(member());
        }
        ready.iter().filter(|number| !number.is_empty()).for_each(|number| w.pass(&format!("{number}.b1")));
        w.pass("1.d1");
        (2..5).filter(|number| w.status(&format!("{number}.d1")).as_str() == "pending").collect::<Vec<_>>()
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
    let mut w = EngineHarness::empty();
    let mode = ResourceMode::OldestFirst;
    w.apply(Event::SetResourceMode { group: "production".to_owned(), mode }).unwrap();
    w.add(member());
    w.add(member());
    w.pass("2.b1");
    w.expect("1.d1:created 2.d1:waiting_for_resource");
    w.fail("1.b1");
    w.expect("1.d1:skipped 2.d1:pending");
}

#[test]
fn c183_different_expansions_are_different_groups() {
    let w = harness(pipeline("d: d1 d2").group("d1", "env-a").group("d2", "env-b"));
    w.expect("d1:pending d2:pending");
}

#[test]
fn c184_conservative_cancels_all_or_nothing() {
    let built = || pipeline("b: b1; t: t1").with("b1", |job| job.interruptible = true);
    let newer = Event::NewerPipeline { older: PipelineId(1) };
    let mut w = harness(built());
    w.take("b1");
    w.apply(newer.clone()).unwrap();
    w.expect("b1:canceled t1:canceled @1:canceled");

    let mut w = harness(built());
    w.pass("b1");
    w.take("t1");
    w.apply(newer.clone()).unwrap();
    w.expect("b1:success t1:running");

    let mut w = harness(built());
    w.pass("b1");
    w.apply(newer).unwrap();
    w.expect("t1:canceled @1:canceled");
}

#[test]
fn c184_interruptible_cancels_only_interruptible_jobs() {
    let built = |mode| {
        let mut made = pipeline("b: b1 b2; t: t1 t2");
        made.auto_cancel.on_new_commit = mode;
        made.with("b1", |job| job.interruptible = true).with("t1", |job| job.interruptible = true)
    };
    let newer = Event::NewerPipeline { older: PipelineId(1) };
    let mut w = harness(built(OnNewCommit::Interruptible));
    w.take("b1");
    w.take("b2");
    w.apply(newer.clone()).unwrap();
    w.expect("b1:canceled b2:running t1:canceled t2:created");
    let mut w = harness(built(OnNewCommit::None));
    w.take("b1");
    w.apply(newer).unwrap();
    w.expect("b1:running b2:pending t1:created t2:created");
}

#[test]
fn c184_child_with_an_uninterruptible_job_continues() {
    let parent = || {
        pipeline("b: b1 c; t: t1")
            .bridge("c", Strategy::Depend)
            .with("b1", |job| job.interruptible = true)
            .with("c", |job| job.interruptible = true)
    };
    let newer = Event::NewerPipeline { older: PipelineId(1) };
    let mut w = harness(parent());
    w.add_child("c", pipeline("x: x1")).unwrap();
    w.take("2.x1");
    w.apply(newer.clone()).unwrap();
    w.expect("b1:canceled c:running 2.x1:running t1:canceled");

    let mut w = harness(parent());
    w.add_child("c", pipeline("x: x1")).unwrap();
    w.apply(newer).unwrap();
    w.expect("b1:canceled 2.x1:canceled @2:canceled c:canceled t1:canceled @1:canceled");
}

#[test]
fn c185_the_first_failure_can_cancel_the_rest() {
    let mut built = pipeline("b: b1 b2 b3; t: t1").with("b3", |job| job.allow_failure = AllowFailure::Yes);
    built.auto_cancel.on_job_failure = true;
    let mut w = harness(built.retry("b1", 1, &[], &[]));
    w.take("b2");
    w.fail("b3");
    w.expect("b2:running");
    w.fail("b1");
    w.expect("b1:pending b2:running");
    w.fail("b1");
    w.expect("b1:failed b2:canceled t1:canceled @1:failed");
    assert_eq!(w.cancels_on_runners, [(w.job("b2"), false)]);
}

#[test]
fn c186_graceful_cancel_waits_for_the_final_report() {
    for outcome in [Outcome::Success, Outcome::Failed { reason: FailureReason::JobCanceled, exit_code: None }] {
        let mut w = harness(pipeline("b: b1; t: t1").retry("b1", 2, &[], &[]));
        w.take_with_graceful_cancel("b1");
        w.cancel(1);
        w.expect("b1:canceling t1:canceled @1:canceling");
        assert_eq!(w.cancels_on_runners, [(w.job("b1"), true)]);
        let b1 = w.job("b1");
        w.apply(Event::JobFinished { job: b1, outcome }).unwrap();
        w.expect("b1:canceled @1:canceled");
        assert_eq!(w.job("b1").retry, 0, "a canceled job is not tried again");
    }
}

#[test]
fn c186_force_cancel_ends_the_job_at_once() {
    let mut w = harness(pipeline("b: b1 b2"));
    w.take_with_graceful_cancel("b1");
    w.take_with_graceful_cancel("b2");
    w.cancel(1);
    w.cancel(1);
    assert_eq!(w.cancels_on_runners.len(), 2, "said once");
    w.apply(Event::ForceCancel { target: Target::Job(w.job("b1")) }).unwrap();
    w.expect("b1:canceled b2:canceling");
    w.apply(Event::ForceCancel { target: Target::Pipeline(PipelineId(1)) }).unwrap();
    w.expect("b2:canceled @1:canceled");
    let b1 = w.job("b1");
    assert!(w.apply(Event::JobFinished { job: b1, outcome: Outcome::Success }).is_err());
}

/// The engine's part of C187: the coordinator drops the job before it starts.
#[test]
fn c187_a_dropped_job_fails_without_a_runner() {
    let mut w = harness(pipeline("b: b1; t: t1").retry("t1", 2, &[], &[]));
    w.pass("b1");
    let t1 = w.job("t1");
    let outcome = Outcome::Failed { reason: FailureReason::MissingDependencyFailure, exit_code: None };
    w.apply(Event::JobFinished { job: t1, outcome }).unwrap();
    w.expect("t1:failed @1:failed");
}

#[test]
fn c198_stuck_job_does_not_block_other_jobs() {
    let mut w = harness(pipeline("b: gpu b1; t: t1").needs("t1", &["b1"]));
    w.pass("b1 t1");
    w.expect("gpu:pending t1:success @1:running");
}

#[test]
fn c199_manual_retry_revives_skipped_jobs() {
    let mut w = harness(pipeline("b: b1; t: t1; d: d1"));
    w.fail("b1");
    w.expect("t1:skipped d1:skipped @1:failed");
    w.retry("b1");
    w.expect("b1:pending t1:created d1:created");
    w.pass("b1");
    w.expect("t1:pending");
    w.pass("t1 d1");
    w.expect("@1:success");
}

#[test]
fn only_finished_jobs_that_ran_can_be_retried() {
    let mut w = harness(pipeline("b: b1; t: t1"));
    let (b1, t1) = (w.job("b1"), w.job("t1"));
    assert!(w.apply(Event::RetryJob { job: b1 }).is_err());
    w.fail("b1");
    assert!(w.apply(Event::RetryJob { job: t1 }).is_err(), "skipped");
    w.retry("b1");
    assert_eq!(w.apply(Event::RetryJob { job: b1 }), Err(RejectedEvent::Replaced { job: b1, newest: 1 }));
}

#[test]
fn retry_of_a_manual_or_delayed_job_starts_at_once() {
    let mut w = harness(pipeline("b: b1 b2").when("b1", When::Manual).when("b2", When::Delayed));
    w.play("b1");
    w.play("b2");
    w.fail("b1");
    w.pass("b2");
    w.retry("b1");
    w.retry("b2");
    w.expect("b1:pending b2:pending");
}

#[test]
fn resource_group_mode_change_applies_after_a_restart() {
    let member = || pipeline("b: b1; d: d1").group("d1", "production");
    let mut w = EngineHarness::empty();
    let mode = ResourceMode::OldestFirst;
    w.apply(Event::SetResourceMode { group: "production".to_owned(), mode }).unwrap();
    w.add(member());
    w.add(member());
    w.pass("2.b1");
    w.expect("2.d1:waiting_for_resource");
    let (engine, _) = Engine::restore(w.rows(), &BTreeMap::new(), w.now).unwrap();
    assert_eq!(engine.job(w.job("2.d1")).unwrap().status, muster_job::JobStatus::Pending);
}

#[test]
fn inconsistent_rows_are_rejected() {
    let w = harness(pipeline("b: b1"));
    let twice = [w.rows(), w.rows()].concat();
    assert_eq!(Engine::restore(twice, &BTreeMap::new(), 0).err(), Some(RestoreError::Twice(PipelineId(1))));
    let mut short = w.rows();
    short[0].jobs.clear();
    let missing = RestoreError::JobCount { pipeline: PipelineId(1), expected: 1, stored: 0 };
    assert_eq!(Engine::restore(short, &BTreeMap::new(), 0).err(), Some(missing));
}

#[test]
fn c218_manual_jobs_run_only_when_named() {
    let built = || pipeline("b: b1 b2; t: t1").when("b1", When::Manual).when("b2", When::Manual);
    let mut w = EngineHarness::empty();
    w.add_playing(built(), &["b2"]);
    w.expect("b1:manual b2:pending t1:created");
    w.pass("b2 t1");
    w.expect("b1:manual @1:success");
}

#[test]
fn requeued_job_is_offered_again() {
    let mut w = harness(pipeline("b: b1"));
    w.take("b1");
    let b1 = w.job("b1");
    w.apply(Event::JobRequeued { job: b1 }).unwrap();
    w.expect("b1:pending");
    assert_eq!(w.enqueued[&b1], 2);
    assert!(w.apply(Event::JobRequeued { job: b1 }).is_err());
    w.pass("b1");
}

/// Literally, docs/spec/pipeline-yaml.md, section 5.3, would start a job with `when: always` as soon as one need is skipped.
#[test]
fn always_waits_for_all_its_needs() {
    let mut w = harness(
        pipeline("b: b1 b2; t: t1; d: d1 d2")
            .needs("t1", &["b1"])
            .needs("d1", &["t1", "b2"])
            .when("d1", When::Always)
            .needs("d2", &["t1", "b2"]),
    );
    w.take("b2");
    w.fail("b1");
    w.expect("t1:skipped d1:created d2:skipped");
    w.pass("b2");
    w.expect("d1:pending");
}
