//! The scaler's conformance cases (docs/spec/fleeting.md section 9), by number.

use std::num::NonZeroU32;

use super::fixture::{
    CloudBehavior, Fixture, G, assert_differs_from_upstream, config, fixture_with_adopted, id, idle_target, key,
};
use crate::config::{Throttle, UnmanagedPolicy};
use crate::engine::{EnqueueError, NoCapacity};
use crate::event::{Action, Event};
use crate::policy::{Placement, Policies};
use crate::time::Time;
use crate::types::SlotRequest;
use muster_fleeting::model::InstanceState;

#[test]
fn s05_preemptive_policy_reserves_only_ready_slots() {
    let mut config = config(10, 1);
    config.policies = Policies::always(idle_target(0, 300));
    let mut on_demand = Fixture::new(config.clone());
    on_demand.reserve("a").unwrap();
    config.policies = Policies::always(idle_target(5, 300));
    let mut preemptive = Fixture::new(config);
    let refusal = preemptive.reserve("a").unwrap_err();
    assert!(matches!(refusal, NoCapacity::NoneAvailable { .. }), "five instances boot, and none is ready: {refusal}");
    // The instances run after 30 s, and are listed at most two seconds later.
    preemptive.seconds(33);
    preemptive.reserve("a").unwrap();
}

#[test]
fn s06_preemptive_policy_reserves_all_ready_slots() {
    let mut config = config(10, 1);
    config.policies = Policies::always(idle_target(5, 300));
    let mut fixture = Fixture::new(config);
    fixture.seconds(31);
    (1..=5).for_each(|n| fixture.reserve(&n.to_string()).unwrap());
    let refusal = fixture.reserve("6").unwrap_err().to_string();
    assert!(refusal.starts_with("no capacity: no immediately available capacity (idle:5,acquired:0"), "{refusal}");
}

#[test]
fn s07_on_demand_policy_reserves_slots_that_can_be_created() {
    let mut fixture = Fixture::new(config(3, 3));
    (1..=9).for_each(|n| fixture.reserve(&n.to_string()).unwrap());
    let refusal = fixture.reserve("10").unwrap_err().to_string();
    assert!(refusal.starts_with("no capacity: no immediately available or potential capacity"), "{refusal}");
}

#[test]
fn s08_acquire_requires_a_reservation() {
    let mut fixture = Fixture::new(config(3, 1));
    let error = fixture.engine.acquire(fixture.now, key("a"), &SlotRequest::default()).unwrap_err();
    assert_eq!(error, EnqueueError::NotReserved { key: key("a") });
    assert_eq!(error.to_string(), "reservation not found: a");
}

#[test]
fn s09_repeated_and_unknown_keys_are_ignored() {
    let mut fixture = Fixture::new(config(1, 1));
    fixture.reserve("a").unwrap();
    fixture.reserve("a").unwrap();
    assert_eq!(fixture.engine.slot_counts().reserved, 1);
    fixture.release("unknown");
    fixture.handle(Event::Unreserve { key: key("unknown") });
    fixture.handle(Event::Cancel { key: key("unknown") });
    assert_eq!(fixture.engine.slot_counts().reserved, 1);
}

#[test]
fn s10_oldest_of_equally_full_instances_is_filled_first() {
    let mut fixture = fixture_with_adopted(config(2, 2), &["a", "b"]);
    for job in ["1", "2", "3"] {
        fixture.acquire(job);
    }
    assert_eq!([fixture.slot_of("1"), fixture.slot_of("2"), fixture.slot_of("3")], ["a/0", "a/1", "b/0"]);
}

#[test]
fn s10_fullest_instance_is_filled_first() {
    let mut fixture = fixture_with_adopted(config(2, 2), &["a", "b"]);
    for job in ["1", "2", "3"] {
        fixture.acquire(job);
    }
    fixture.release("1");
    fixture.release("2");
    fixture.acquire("4");
    // `a` stays idle and can be deleted.
    assert_differs_from_upstream(
        "slot of the next job: on the oldest or on the fullest instance",
        ("a/0", "b/1"),
        fixture.slot_of("4").as_str(),
    );
}

#[test]
fn policy_can_spread_jobs_over_instances() {
    let mut config = config(2, 2);
    config.policies =
        Policies::always(crate::policy::IdleTarget { placement: Placement::Spread, ..idle_target(0, 300) });
    let mut fixture = fixture_with_adopted(config, &["a", "b"]);
    for job in ["1", "2", "3"] {
        fixture.acquire(job);
    }
    assert_eq!([fixture.slot_of("1"), fixture.slot_of("2"), fixture.slot_of("3")], ["a/0", "b/0", "a/1"]);
}

#[test]
fn s11_lowest_free_slot_is_assigned() {
    let mut fixture = fixture_with_adopted(config(1, 3), &["a"]);
    for job in ["1", "2", "3"] {
        fixture.acquire(job);
    }
    fixture.release("2");
    fixture.acquire("4");
    assert_eq!(fixture.slot_of("4"), "a/1");
}

#[test]
fn s12_single_use_instance_is_deleted_with_its_job() {
    let mut config = config(1, 1);
    config.max_uses = NonZeroU32::new(1);
    let mut fixture = fixture_with_adopted(config, &["a"]);
    fixture.acquire("1");
    fixture.release("1");
    assert!(fixture.clouds[0].is_empty(), "the instance is deleted immediately, without waiting for a periodic check");
}

#[test]
fn s13_slots_beyond_max_uses_are_unavailable() {
    let mut config = config(1, 4);
    config.max_uses = NonZeroU32::new(3);
    let mut fixture = fixture_with_adopted(config, &["a"]);
    for job in ["1", "2"] {
        fixture.acquire(job);
        fixture.release(job);
    }
    let slots = fixture.engine.slot_counts();
    assert_eq!((slots.unavailable, slots.idle), (3, 1));
}

#[test]
fn s14_unhealthy_idle_instance_is_deleted() {
    let mut config = config(2, 1);
    config.policies = Policies::always(idle_target(0, 3600));
    let mut fixture = fixture_with_adopted(config, &["a"]);
    for _ in 0..3 {
        fixture.handle(Event::Health { group: G, id: id("a"), result: Err("no answer".to_owned()) });
    }
    let remaining = fixture.clouds[0].len();
    assert_differs_from_upstream("unhealthy idle instances before the next scale-down", (1, 0), remaining);
    fixture.acquire("1");
    assert_eq!(fixture.slot_of("1"), "none", "the job waits for another instance");
}

#[test]
fn s14_unhealthy_instance_keeps_its_running_job() {
    let mut fixture = fixture_with_adopted(config(1, 2), &["a"]);
    fixture.acquire("1");
    for _ in 0..3 {
        fixture.handle(Event::Health { group: G, id: id("a"), result: Err("no answer".to_owned()) });
    }
    fixture.acquire("2");
    assert_eq!(
        (fixture.slot_of("2").as_str(), fixture.clouds[0].len()),
        ("none", 1),
        "the instance must get no new job, and remain while a job runs"
    );
    fixture.release("1");
    fixture.seconds(60);
    assert_eq!(fixture.slot_of("2"), "i1/0");
}

#[test]
fn s15_canceled_request_keeps_its_reservation() {
    let mut fixture = Fixture::new(config(1, 1));
    fixture.reserve("1").unwrap();
    fixture.engine.acquire(fixture.now, key("1"), &SlotRequest::default()).unwrap();
    fixture.handle(Event::Cancel { key: key("1") });
    let slots = fixture.engine.slot_counts();
    assert_eq!((slots.pending, slots.reserved), (0, 1));
    fixture.handle(Event::Unreserve { key: key("1") });
    assert_eq!(fixture.engine.slot_counts().reserved, 0);
}

#[test]
fn s16_lost_connection_detects_missing_instance() {
    let mut fixture = fixture_with_adopted(config(2, 1), &["a"]);
    fixture.acquire("1");
    fixture.clouds[0].clear();
    let before = fixture.count(|action| matches!(action, Action::List { .. }));
    fixture.handle(Event::ConnectionLost { key: key("1") });
    assert!(fixture.lost.is_empty(), "a single list without the instance must not end its job");
    fixture.seconds(2);
    assert_eq!(fixture.lost, [key("1")]);
    let lists = fixture.count(|action| matches!(action, Action::List { .. })) - before;
    assert_differs_from_upstream("lists without an instance until its job is lost", (6, 2), lists);
}

#[test]
fn s16_missing_instance_is_detected_by_two_lists() {
    let mut fixture = fixture_with_adopted(config(2, 1), &["a"]);
    fixture.acquire("1");
    fixture.clouds[0].clear();
    fixture.seconds(63);
    assert_eq!(fixture.lost, [key("1")], "a minute to the next list, and another list to be sure");
    let most = fixture.now.at.since(Time::ZERO).as_secs().div_ceil(60);
    assert_differs_from_upstream("maximum minutes until a missing instance is detected", (6, 2), most);
}

#[test]
fn s17_preexisting_instances_are_ignored() {
    // gitlab-runner deletes preexisting instances unless state storage is enabled. Muster always has a ledger, so an
    // instance that the ledger does not contain is unmanaged.
    let mut config = config(3, 1);
    config.policies = Policies::always(idle_target(0, 0));
    let existing = || [(id("old"), InstanceState::Running)].into_iter().collect();
    let mut fixture = Fixture::with_instances(config.clone(), existing());
    fixture.seconds(600);
    assert_eq!(fixture.engine.status(fixture.now).groups[0].unmanaged, ["old"]);
    assert_differs_from_upstream(
        "preexisting instances that are kept without state storage",
        (0, 1),
        fixture.clouds[0].len(),
    );
    config.unmanaged = UnmanagedPolicy::Delete;
    let fixture = Fixture::with_instances(config, existing());
    assert!(fixture.clouds[0].is_empty(), "the unmanaged instance is deleted as by gitlab-runner, if configured");
}

#[test]
fn s17_unmanaged_instance_stays_unmanaged_after_a_miss() {
    let mut fixture =
        Fixture::with_instances(config(3, 1), [(id("old"), InstanceState::Running)].into_iter().collect());
    fixture.clouds[0].clear();
    fixture.seconds(60);
    fixture.behaviors[0] = CloudBehavior::AcceptOnly;
    fixture.acquire("1");
    fixture.clouds[0].insert(id("old"), InstanceState::Running);
    fixture.seconds(60);
    assert_eq!(fixture.slot_of("1"), "none", "the unmanaged instance is not matched to the request");
    assert_eq!(fixture.engine.status(fixture.now).groups[0].unmanaged, ["old"]);
}

#[test]
fn s18_scale_throttle_limits_creations() {
    let mut config = config(10, 1);
    config.groups[0].throttle = Throttle { limit: 1, burst: 2 };
    let mut fixture = Fixture::new(config);
    for job in 1..=5 {
        fixture.acquire(&job.to_string());
    }
    assert_eq!(fixture.created, 2);
    for additional in 1..=3 {
        fixture.advance(std::time::Duration::from_millis(1010));
        assert_eq!(fixture.created, 2 + additional);
    }
    fixture.seconds(10);
    assert_eq!(fixture.created, 5);
}
