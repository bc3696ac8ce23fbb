//! Conformance cases of bridges and child pipelines (docs/spec/pipeline-yaml.md, section 8.7) that the engine alone decides.

use muster_coordinator::schedule::{Event, Outcome, RejectedEvent};
use muster_job::FailureReason;
use muster_pipeline::model::{Strategy, When};

use crate::schedule::harness::{Build, harness, pipeline};

#[test]
fn bridge_lends_its_resource_group_to_its_child() {
    let mut w = harness(pipeline("b: c").bridge("c", Strategy::Depend).group("c", "production"));
    w.add(pipeline("d: d1").group("d1", "production"));
    w.add_child("c", pipeline("d: d1 d2").group("d1", "production").group("d2", "production")).unwrap();
    w.expect("c:running 2.d1:waiting_for_resource 3.d1:pending 3.d2:waiting_for_resource");
    w.pass("3.d1");
    w.expect("c:running 2.d1:waiting_for_resource 3.d2:pending");
    w.pass("3.d2");
    w.expect("c:success 2.d1:pending");
}

#[test]
fn c188_bridge_without_strategy_ends_when_its_child_exists() {
    let mut w = harness(pipeline("b: c; t: t1").bridge("c", Strategy::None));
    w.expect("c:pending");
    assert_eq!(w.wanted_children, [w.job("c")]);
    w.add_child("c", pipeline("x: x1")).unwrap();
    w.expect("c:success t1:pending 2.x1:pending");
    w.fail("2.x1");
    w.expect("@2:failed c:success t1:pending");
}

#[test]
fn c189_a_dependent_bridge_fails_with_its_child() {
    let mut w = harness(pipeline("b: c; t: t1").bridge("c", Strategy::Depend));
    w.add_child("c", pipeline("x: x1")).unwrap();
    w.expect("c:running t1:created @1:running");
    w.fail("2.x1");
    w.expect("@2:failed c:failed t1:skipped @1:failed");
    // A retry inside the child revives the bridge and the jobs that were skipped after it.
    w.retry("2.x1");
    w.expect("c:running t1:created @1:running");
    w.pass("2.x1 t1");
    w.expect("c:success @1:success");
}

#[test]
fn c190_a_blocked_child_is_running_or_mirrored() {
    for (strategy, shown) in [(Strategy::Depend, "running"), (Strategy::Mirror, "manual")] {
        let mut w = harness(pipeline("b: c; t: t1").bridge("c", strategy));
        w.add_child("c", pipeline("x: x1; y: y1").with("x1", |job| job.when = When::Manual)).unwrap();
        w.expect(&format!("@2:manual c:{shown} t1:created"));
        if strategy == Strategy::Mirror {
            let c = w.job("c");
            assert_eq!(w.apply(Event::Play { job: c }), Err(RejectedEvent::FollowsChild(c)));
        }
        w.restart();
        w.play("2.x1");
        w.pass("2.x1 2.y1 t1");
        w.expect("c:success @1:success");
    }
}

#[test]
fn c190_an_optional_manual_job_does_not_hold_the_bridge() {
    let mut w = harness(pipeline("b: c").bridge("c", Strategy::Depend));
    w.add_child("c", pipeline("x: x1 x2").when("x1", When::Manual)).unwrap();
    w.pass("2.x2");
    w.expect("2.x1:manual @2:success c:success");
}

/// The part of C191 that the engine decides: the rules of the child left no job.
#[test]
fn c191_bridge_fails_if_its_child_cannot_be_created() {
    let mut w = harness(pipeline("b: gen; t: c").bridge("c", Strategy::None));
    w.pass("gen");
    let c = w.job("c");
    let reason = FailureReason::DownstreamPipelineCreationFailed;
    w.apply(Event::ChildFailed { bridge: c, reason }).unwrap();
    w.expect("c:failed @1:failed");
    assert_eq!(w.reasons[&c], reason);
    let again = w.apply(Event::ChildFailed { bridge: c, reason });
    assert_eq!(again, Err(RejectedEvent::BridgeNotWaiting { job: c, status: muster_job::JobStatus::Failed }));
}

/// The engine's part of C193 and C194, which are about a child's variables and source: it knows parent and child.
#[test]
fn c193_c194_a_child_belongs_to_its_bridge() {
    let mut w = harness(pipeline("b: b1 c").bridge("c", Strategy::Depend));
    assert_eq!(w.add_child("b1", pipeline("x: x1")), Err(RejectedEvent::NotABridge(w.job("b1"))));
    let mut w = harness(pipeline("b: c").bridge("c", Strategy::Depend));
    w.cancel(1);
    let c = w.job("c");
    let status = muster_job::JobStatus::Canceled;
    assert_eq!(w.add_child("c", pipeline("x: x1")), Err(RejectedEvent::BridgeNotWaiting { job: c, status }));
}

#[test]
fn c195_the_third_level_is_too_deep() {
    let nested = || pipeline("b: c").bridge("c", Strategy::Depend);
    let mut w = harness(nested());
    w.add_child("c", nested()).unwrap();
    w.add_child("2.c", nested()).unwrap();
    w.expect("3.c:failed @3:failed 2.c:failed 1.c:failed @1:failed");
    let deep = w.job("3.c");
    assert_eq!(w.reasons[&deep], FailureReason::ReachedMaxDescendantPipelinesDepth);
}

#[test]
fn canceling_a_pipeline_cancels_its_children() {
    for strategy in [Strategy::None, Strategy::Depend, Strategy::Mirror] {
        let mut w = harness(pipeline("b: c; t: t1").bridge("c", strategy));
        w.add_child("c", pipeline("x: x1; y: y1")).unwrap();
        w.take_with_graceful_cancel("2.x1");
        w.cancel(1);
        w.expect("2.x1:canceling 2.y1:canceled @2:canceling t1:canceled");
        let x1 = w.job("2.x1");
        w.restart();
        w.apply(Event::JobFinished { job: x1, outcome: Outcome::Success }).unwrap();
        w.expect("@2:canceled @1:canceled");
        w.expect(if strategy == Strategy::None { "c:success" } else { "c:canceled" });
    }
}

#[test]
fn retried_bridge_starts_a_new_pipeline() {
    let mut w = harness(pipeline("b: c").bridge("c", Strategy::Depend));
    w.add_child("c", pipeline("x: x1")).unwrap();
    w.fail("2.x1");
    w.retry("c");
    w.expect("c:pending");
    w.add_child("c", pipeline("x: x1")).unwrap();
    w.retry("2.x1");
    w.pass("2.x1");
    w.expect("@2:success c:running");
    w.pass("3.x1");
    w.expect("c:success");
}

#[test]
fn bridge_follows_a_pipeline_of_another_project() {
    use muster_job::JobStatus as S;
    let mut w = harness(pipeline("b: c; t: t1").bridge("c", Strategy::Depend));
    let bridge = w.job("c");
    for (status, shown) in [(S::Created, "running"), (S::Manual, "running"), (S::Success, "success")] {
        w.apply(Event::ChildStatusChanged { bridge, status }).unwrap();
        w.expect(&format!("c:{shown}"));
    }
    w.expect("t1:pending");
}

#[test]
fn runner_events_for_bridges_are_rejected() {
    let mut w = harness(pipeline("b: c").bridge("c", Strategy::Depend));
    let c = w.job("c");
    assert_eq!(
        w.apply(Event::JobAssigned { job: c, supports_graceful_cancel: false }),
        Err(RejectedEvent::IsBridge(c))
    );
}
