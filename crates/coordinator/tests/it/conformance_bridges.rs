//! Conformance cases of bridges and child pipelines (docs/spec/pipeline-yaml.md, section 8.7) that need only the engine.

use muster_coordinator::schedule::{Event, Outcome, RejectedEvent};
use muster_job::FailureReason;
use muster_pipeline::model::{Strategy, When};

use crate::schedule::harness::{Build, engine_with, pipeline};

#[test]
fn bridge_lends_its_resource_group_to_its_child() {
    let mut harness = engine_with(pipeline("b: c").bridge("c", Strategy::Depend).group("c", "production"));
    harness.add(pipeline("d: d1").group("d1", "production"));
    harness.add_child("c", pipeline("d: d1 d2").group("d1", "production").group("d2", "production")).unwrap();
    harness.expect("c:running 2.d1:waiting_for_resource 3.d1:pending 3.d2:waiting_for_resource");
    harness.pass("3.d1");
    harness.expect("c:running 2.d1:waiting_for_resource 3.d2:pending");
    harness.pass("3.d2");
    harness.expect("c:success 2.d1:pending");
}

#[test]
fn c188_bridge_without_strategy_ends_when_its_child_exists() {
    let mut harness = engine_with(pipeline("b: c; t: t1").bridge("c", Strategy::None));
    harness.expect("c:pending");
    assert_eq!(harness.requested_children, [harness.job("c")]);
    harness.add_child("c", pipeline("x: x1")).unwrap();
    harness.expect("c:success t1:pending 2.x1:pending");
    harness.fail("2.x1");
    harness.expect("@2:failed c:success t1:pending");
}

#[test]
fn c189_bridge_with_strategy_depend_fails_with_its_child() {
    let mut harness = engine_with(pipeline("b: c; t: t1").bridge("c", Strategy::Depend));
    harness.add_child("c", pipeline("x: x1")).unwrap();
    harness.expect("c:running t1:created @1:running");
    harness.fail("2.x1");
    harness.expect("@2:failed c:failed t1:skipped @1:failed");
    // A retry inside the child revives the bridge and the jobs that were skipped after it.
    harness.retry("2.x1");
    harness.expect("c:running t1:created @1:running");
    harness.pass("2.x1 t1");
    harness.expect("c:success @1:success");
}

#[test]
fn c190_bridge_of_a_blocked_child_is_running_or_mirrors_it() {
    for (strategy, bridge_status) in [(Strategy::Depend, "running"), (Strategy::Mirror, "manual")] {
        let mut harness = engine_with(pipeline("b: c; t: t1").bridge("c", strategy));
        harness.add_child("c", pipeline("x: x1; y: y1").with("x1", |job| job.when = When::Manual)).unwrap();
        harness.expect(&format!("@2:manual c:{bridge_status} t1:created"));
        if strategy == Strategy::Mirror {
            let c = harness.job("c");
            assert_eq!(harness.apply(Event::Play { job: c }), Err(RejectedEvent::FollowsChild(c)));
        }
        harness.restart();
        harness.play("2.x1");
        harness.pass("2.x1 2.y1 t1");
        harness.expect("c:success @1:success");
    }
}

#[test]
fn c190_optional_manual_job_of_the_child_does_not_block_the_bridge() {
    let mut harness = engine_with(pipeline("b: c").bridge("c", Strategy::Depend));
    harness.add_child("c", pipeline("x: x1 x2").when("x1", When::Manual)).unwrap();
    harness.pass("2.x2");
    harness.expect("2.x1:manual @2:success c:success");
}

/// The engine's part of C191. The engine only gets the message that the child could not be created, for example because
/// the rules of the child exclude all jobs.
#[test]
fn c191_bridge_fails_if_its_child_cannot_be_created() {
    let mut harness = engine_with(pipeline("b: gen; t: c").bridge("c", Strategy::None));
    harness.pass("gen");
    let c = harness.job("c");
    let reason = FailureReason::DownstreamPipelineCreationFailed;
    harness.apply(Event::ChildFailed { bridge: c, reason }).unwrap();
    harness.expect("c:failed @1:failed");
    assert_eq!(harness.reasons[&c], reason);
    let repeated = harness.apply(Event::ChildFailed { bridge: c, reason });
    assert_eq!(repeated, Err(RejectedEvent::BridgeNotWaiting { job: c, status: muster_job::JobStatus::Failed }));
}

/// The engine's part of C193 and C194 (variables and source of a child): the engine accepts a child only for a bridge
/// that waits for one.
#[test]
fn c193_c194_child_is_only_created_for_a_waiting_bridge() {
    let mut harness = engine_with(pipeline("b: b1 c").bridge("c", Strategy::Depend));
    assert_eq!(harness.add_child("b1", pipeline("x: x1")), Err(RejectedEvent::NotABridge(harness.job("b1"))));
    let mut harness = engine_with(pipeline("b: c").bridge("c", Strategy::Depend));
    harness.cancel(1);
    let c = harness.job("c");
    let status = muster_job::JobStatus::Canceled;
    assert_eq!(harness.add_child("c", pipeline("x: x1")), Err(RejectedEvent::BridgeNotWaiting { job: c, status }));
}

#[test]
fn c195_third_level_of_child_pipelines_is_rejected() {
    let nested = || pipeline("b: c").bridge("c", Strategy::Depend);
    let mut harness = engine_with(nested());
    harness.add_child("c", nested()).unwrap();
    harness.add_child("2.c", nested()).unwrap();
    harness.expect("3.c:failed @3:failed 2.c:failed 1.c:failed @1:failed");
    let deep = harness.job("3.c");
    assert_eq!(harness.reasons[&deep], FailureReason::ReachedMaxDescendantPipelinesDepth);
}

#[test]
fn canceling_a_pipeline_cancels_its_children() {
    for strategy in [Strategy::None, Strategy::Depend, Strategy::Mirror] {
        let mut harness = engine_with(pipeline("b: c; t: t1").bridge("c", strategy));
        harness.add_child("c", pipeline("x: x1; y: y1")).unwrap();
        harness.assign_with_graceful_cancel("2.x1");
        harness.cancel(1);
        harness.expect("2.x1:canceling 2.y1:canceled @2:canceling t1:canceled");
        let x1 = harness.job("2.x1");
        harness.restart();
        harness.apply(Event::JobFinished { job: x1, outcome: Outcome::Success }).unwrap();
        harness.expect("@2:canceled @1:canceled");
        harness.expect(if strategy == Strategy::None { "c:success" } else { "c:canceled" });
    }
}

#[test]
fn retried_bridge_starts_a_new_pipeline() {
    let mut harness = engine_with(pipeline("b: c").bridge("c", Strategy::Depend));
    harness.add_child("c", pipeline("x: x1")).unwrap();
    harness.fail("2.x1");
    harness.retry("c");
    harness.expect("c:pending");
    harness.add_child("c", pipeline("x: x1")).unwrap();
    harness.retry("2.x1");
    harness.pass("2.x1");
    harness.expect("@2:success c:running");
    harness.pass("3.x1");
    harness.expect("c:success");
}

#[test]
fn bridge_follows_a_pipeline_of_another_project() {
    use muster_job::JobStatus as S;
    let mut harness = engine_with(pipeline("b: c; t: t1").bridge("c", Strategy::Depend));
    let bridge = harness.job("c");
    for (status, bridge_status) in [(S::Created, "running"), (S::Manual, "running"), (S::Success, "success")] {
        harness.apply(Event::ChildStatusChanged { bridge, status }).unwrap();
        harness.expect(&format!("c:{bridge_status}"));
    }
    harness.expect("t1:pending");
}

#[test]
fn runner_events_for_bridges_are_rejected() {
    let mut harness = engine_with(pipeline("b: c").bridge("c", Strategy::Depend));
    let c = harness.job("c");
    assert_eq!(
        harness.apply(Event::JobAssigned { job: c, supports_graceful_cancel: false }),
        Err(RejectedEvent::IsBridge(c))
    );
}
