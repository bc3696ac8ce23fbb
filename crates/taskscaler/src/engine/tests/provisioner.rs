//! The provisioner's conformance cases (docs/spec/fleeting.md section 9), by number.

use std::num::NonZeroU32;
use std::time::Duration;

use super::fixture::{
    CloudBehavior, Fixture, G, MONDAY, assert_differs_from_upstream, config, fixture_with_adopted, id, idle_target, key,
};
use crate::decision::{DecisionKind, InstanceOrigin};
use crate::event::{Action, Event};
use crate::policy::Policies;
use crate::time::{Now, Time};
use crate::types::LossReason;
use muster_fleeting::model::InstanceState;

fn decreases(fixture: &Fixture) -> usize {
    fixture.count(|action| matches!(action, Action::Decrease { .. }))
}

fn lists(fixture: &Fixture) -> usize {
    fixture.count(|action| matches!(action, Action::List { .. }))
}

fn with_idle(max: u32, idle: u32) -> Fixture {
    let mut fixture = Fixture::new(config(max, 1));
    fixture.handle(Event::Policies(Policies::always(idle_target(idle, 3600))));
    fixture
}

/// Returns a fixture whose only instance is being deleted, because its only job has ended.
fn with_deleting_instance(deletions_work: bool) -> Fixture {
    let mut config = config(1, 1);
    config.max_uses = NonZeroU32::new(1);
    let mut fixture = Fixture::new(config);
    fixture.acquire("1");
    fixture.seconds(40);
    fixture.deletions_work = deletions_work;
    fixture.release("1");
    fixture
}

#[test]
fn v02_unlimited_group_creates_instances() {
    let fixture = with_idle(0, 7);
    assert_eq!(
        (fixture.created, fixture.engine.status(fixture.now).groups[0].max),
        (7, None),
        "all instances must be created, and the maximum must be unlimited"
    );
}

/// Unlike gitlab-runner, the engine starts anyway. It refuses reservations until a list succeeds.
#[test]
fn v03_failed_first_list_is_retried() {
    for failures in [4, 5, 50] {
        let mut engine = crate::engine::Engine::new(config(3, 1), Now::steady(Time::ZERO, MONDAY));
        let mut at = Time::ZERO;
        let mut event = Event::PluginUp { group: G, max_size: 0 };
        for _ in 0..failures {
            let now = Now::steady(at, MONDAY);
            engine.handle(now, event);
            let actions = engine.actions();
            let [Action::List { call, .. }] = actions[..] else { panic!("expected a single list: {actions:?}") };
            event = Event::Listed { group: G, call, result: Err("503 from the provider".to_owned()) };
            engine.handle(now, event);
            let refusal = engine.reserve(now, key("1")).unwrap_err().to_string();
            assert!(refusal.contains("failed to list its instances: 503 from the provider"), "{refusal}");
            at = engine.next_wake(now).expect("time of the next list");
            assert!(at.since(now.at) <= Duration::from_secs(75), "at most a minute with a jitter of a quarter: {at:?}");
            event = Event::Tick;
        }
        let mut fixture = Fixture::from_engine_at(Now::steady(at, MONDAY), engine, std::collections::BTreeMap::new());
        fixture.acquire("1");
        fixture.seconds(40);
        assert_eq!(fixture.slot_of("1"), "i1/0", "after {failures} failures; gitlab-runner gives up after five");
    }
}

#[test]
fn v04_instances_of_first_list_are_preexisting() {
    let fixture = fixture_with_adopted(config(3, 1), &["i1"]);
    assert!(fixture.decided(|kind| matches!(kind, DecisionKind::Discovered { origin: InstanceOrigin::Adopted, .. })));
    let fixture = Fixture::with_instances(config(3, 1), [(id("i1"), InstanceState::Running)].into());
    assert!(
        fixture.decided(|kind| matches!(kind, DecisionKind::Unmanaged { id: found, .. } if *found == id("i1"))),
        "the instance must not be adopted"
    );
}

#[test]
fn v05_request_is_limited_to_max_instances() {
    let mut fixture = Fixture::new(config(2, 1));
    fixture.engine.handle(fixture.now, Event::Policies(Policies::always(idle_target(3, 3600))));
    fixture.answer();
    assert_eq!((fixture.increases(), fixture.created), (vec![2], 2));
    (1..=3).for_each(|job| fixture.acquire(&job.to_string()));
    fixture.seconds(60);
    assert_eq!((fixture.created, fixture.engine.slot_counts().pending), (2, 1), "the third job waits for a slot");
}

#[test]
fn v06_rest_of_partially_accepted_request_is_requested_again() {
    let mut fixture = Fixture::new(config(3, 1));
    fixture.behaviors[0] = CloudBehavior::Partial(1);
    fixture.engine.handle(fixture.now, Event::Policies(Policies::always(idle_target(3, 3600))));
    fixture.answer();
    assert_eq!((fixture.increases(), fixture.created), (vec![3], 1));
    fixture.behaviors[0] = CloudBehavior::Accept;
    fixture.seconds(2);
    assert_eq!((fixture.increases(), fixture.created), (vec![3, 2], 3));
}

#[test]
fn v07_backoff_grows_exponentially_after_failures() {
    let mut fixture = Fixture::new(config(3, 1));
    fixture.behaviors[0] = CloudBehavior::Reject("quota");
    fixture.acquire("1");
    fixture.seconds(600);
    let pauses: Vec<Duration> = (fixture.decisions.iter())
        .filter_map(|decision| match decision.kind {
            DecisionKind::CreationFailed { pause, .. } => Some(pause),
            _ => None,
        })
        .collect();
    // The pauses have a jitter of a quarter.
    for (failures, pause) in pauses.iter().enumerate() {
        let seconds = (1_u64 << failures.min(10)).min(60);
        let (least, most) = (Duration::from_millis(seconds * 750), Duration::from_millis(seconds * 1250));
        assert!((least..=most).contains(pause), "pause {failures} is {pause:?} instead of about {seconds} s");
    }
    assert_eq!(pauses.len(), fixture.increases().len());
    assert!(
        (13..=18).contains(&pauses.len()),
        "expected 13 to 18 requests in ten minutes (gitlab-runner makes 300): {pauses:?}"
    );
}

#[test]
fn v08_appearing_instance_is_requested_or_unmanaged() {
    let mut fixture = Fixture::new(config(3, 1));
    fixture.acquire("1");
    fixture.seconds(40);
    assert!(fixture.decided(|kind| matches!(kind, DecisionKind::Discovered { origin: InstanceOrigin::Requested, .. })));
    assert_eq!(fixture.engine.status(fixture.now).groups[0].requested, 0);
    fixture.clouds[0].insert(id("unexpected"), InstanceState::Creating);
    fixture.seconds(60);
    assert!(
        fixture.decided(|kind| matches!(kind, DecisionKind::Unmanaged { id: found, .. } if *found == id("unexpected")))
    );
    assert_eq!(fixture.instances(), 1, "the unexpected instance must not be used");
}

#[test]
fn v09_accepted_deletion_is_repeated_after_interval() {
    let mut fixture = with_deleting_instance(false);
    assert_eq!(decreases(&fixture), 1);
    fixture.seconds(59);
    assert_eq!(decreases(&fixture), 1, "the deletion is not repeated before its interval of a minute");
    let counts = fixture.engine.totals().by_state;
    assert!(counts.contains(&("deleting", 1)) && counts.contains(&("running", 0)), "{counts:?}");
    fixture.seconds(2);
    assert_eq!(decreases(&fixture), 2);
}

#[test]
fn v10_rejected_deletion_is_repeated_soon() {
    let mut fixture = with_deleting_instance(true);
    fixture.acquire("2");
    fixture.seconds(40);
    let before = decreases(&fixture);
    // The provider accepts no deletion.
    fixture.engine.handle(fixture.now, Event::Release { key: key("2") });
    let actions = fixture.engine.actions();
    let deletion = actions.iter().find_map(|action| match action {
        Action::Decrease { ids, .. } => Some(ids.clone()),
        _ => None,
    });
    fixture.handle(Event::Decreased { group: G, ids: deletion.expect("a deletion"), result: Ok(Vec::new()) });
    assert_eq!(decreases(&fixture), before, "the deletion is not repeated immediately");
    fixture.seconds(2);
    assert_eq!(decreases(&fixture), before + 1, "the deletion is repeated within two seconds, as by gitlab-runner");
    assert!(fixture.clouds[0].is_empty());
}

/// Number of lists without an instance after which it counts as lost: in gitlab-runner (after about six minutes) and in
/// Muster (after one second).
const MISSES: (u32, u32) = (6, 2);

#[test]
fn v11_reappearing_instance_resets_its_miss_count() {
    let mut fixture = fixture_with_adopted(config(3, 1), &["a"]);
    fixture.acquire("1");
    for _ in 0..3 {
        let before = fixture
            .decisions
            .iter()
            .filter(|decision| matches!(decision.kind, DecisionKind::MissingFromList { .. }))
            .count();
        let removed = std::mem::take(&mut fixture.clouds[0]);
        for _ in 0..61 {
            fixture.seconds(1);
            if fixture
                .decisions
                .iter()
                .filter(|decision| matches!(decision.kind, DecisionKind::MissingFromList { .. }))
                .count()
                > before
            {
                break;
            }
        }
        fixture.clouds[0] = removed;
        fixture.seconds(120);
        assert!(fixture.lost.is_empty(), "no two lists in a row are without the instance, so it is not lost");
    }
    assert_eq!(fixture.slot_of("1"), "a/0");
}

#[test]
fn v12_missing_instance_is_lost_and_deleting_instance_is_removed() {
    let mut fixture = Fixture::new(config(3, 1));
    fixture.acquire("1");
    fixture.seconds(40);
    fixture.clouds[0].clear();
    let before = lists(&fixture);
    while fixture.lost.is_empty() {
        fixture.seconds(1);
        assert!(lists(&fixture) - before <= 2, "two lists without the instance are enough");
    }
    assert_differs_from_upstream(
        "V12: lists without a running instance until it is lost",
        MISSES,
        u32::try_from(lists(&fixture) - before).unwrap(),
    );
    assert!(fixture.decided(|kind| matches!(kind, DecisionKind::Lost { reason: LossReason::Missing, .. })));

    let mut fixture = with_deleting_instance(false);
    fixture.clouds[0].clear();
    let before = lists(&fixture);
    while fixture.instances() > 0 {
        fixture.seconds(1);
        assert!(lists(&fixture) - before <= 1, "the first list without the instance completes its deletion");
    }
    assert!(fixture.decided(|kind| matches!(kind, DecisionKind::Deleted { deletion: Some(_), .. })));
}

/// The plugin host reports a broken list as failed (`v13_...` in crate `muster-fleeting`).
#[test]
fn v13_failed_list_removes_no_instance() {
    let mut fixture = fixture_with_adopted(config(3, 1), &["a", "b"]);
    fixture.acquire("1");
    fixture.now = Now::steady(fixture.now.at + Duration::from_secs(60), MONDAY);
    fixture.engine.handle(fixture.now, Event::Tick);
    let actions = fixture.engine.actions();
    let [Action::List { call, .. }] = actions[..] else { panic!("{actions:?}") };
    fixture.handle(Event::Listed { group: G, call, result: Err("the stream broke after 1 of 2".to_owned()) });
    assert_eq!((fixture.instances(), fixture.lost.len(), decreases(&fixture)), (2, 0, 0));
    assert!(
        !fixture.decided(|kind| matches!(kind, DecisionKind::MissingFromList { .. })),
        "no instance counts as missing"
    );
    assert!(fixture.decided(|kind| matches!(kind, DecisionKind::ListFailed { failures: 1, .. })));
}

#[test]
fn v15_lists_are_rare_until_a_change_is_expected() {
    let mut fixture = with_idle(3, 1);
    fixture.seconds(120);
    let before = lists(&fixture);
    fixture.seconds(600);
    assert_eq!(lists(&fixture) - before, 10, "expected one list per minute");
    fixture.boot = Duration::from_secs(3600);
    fixture.handle(Event::Policies(Policies::always(idle_target(2, 3600))));
    fixture.seconds(2);
    let before = lists(&fixture);
    fixture.seconds(60);
    assert_eq!(lists(&fixture) - before, 30, "expected one list per two seconds");
}

#[test]
fn v16_request_whose_instances_never_appear_expires() {
    let mut config = config(2, 1);
    config.create_timeout = Duration::from_secs(600);
    let mut fixture = Fixture::new(config);
    fixture.behaviors[0] = CloudBehavior::AcceptOnly;
    fixture.acquire("1");
    fixture.acquire("2");
    fixture.seconds(599);
    assert_eq!(
        (fixture.engine.status(fixture.now).groups[0].requested, fixture.increases().len()),
        (2, 2),
        "both instances are still expected"
    );
    fixture.behaviors[0] = CloudBehavior::Accept;
    fixture.seconds(200);
    assert_differs_from_upstream(
        "V16: jobs that run after accepted instances never appeared",
        (0, 2),
        fixture.assignments.len(),
    );
}
