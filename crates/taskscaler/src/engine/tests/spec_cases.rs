//! The scaler's conformance cases (fleeting.md section 9), by number. S1-S4 stand with the code that they are about.

use std::num::NonZeroU32;

use super::fixture::{G, Mood, Rig, adopted, config, differs, id, key, wanted};
use crate::config::{Throttle, UnmanagedPolicy};
use crate::engine::{EnqueueError, NoCapacity};
use crate::event::{Action, Event};
use crate::policy::{Placement, Policies};
use crate::time::Time;
use crate::types::SlotRequest;
use muster_fleeting::model::InstanceState;

#[test]
fn s05_jobs_are_requested_ahead_only_without_an_idle_floor() {
    let mut config = config(10, 1);
    config.policies = Policies::always(wanted(0, 300));
    let mut on_demand = Rig::new(config.clone());
    on_demand.reserve("a").unwrap();
    config.policies = Policies::always(wanted(5, 300));
    let mut preemptive = Rig::new(config);
    let refused = preemptive.reserve("a").unwrap_err();
    assert!(matches!(refused, NoCapacity::NoneAvailable { .. }), "five boot, none is ready: {refused}");
    // They run after 30 s, and are seen at the latest two seconds later.
    preemptive.seconds(33);
    preemptive.reserve("a").unwrap();
}

#[test]
fn s06_a_preemptive_policy_promises_what_is_ready() {
    let mut config = config(10, 1);
    config.policies = Policies::always(wanted(5, 300));
    let mut rig = Rig::new(config);
    rig.seconds(31);
    (1..=5).for_each(|n| rig.reserve(&n.to_string()).unwrap());
    let refused = rig.reserve("6").unwrap_err().to_string();
    assert!(refused.starts_with("no capacity: no immediately available capacity (idle:5,acquired:0"), "{refused}");
}

#[test]
fn s07_on_demand_promises_what_can_be_made() {
    let mut rig = Rig::new(config(3, 3));
    (1..=9).for_each(|n| rig.reserve(&n.to_string()).unwrap());
    let refused = rig.reserve("10").unwrap_err().to_string();
    assert!(refused.starts_with("no capacity: no immediately available or potential capacity"), "{refused}");
}

#[test]
fn s08_a_slot_is_waited_for_with_a_reservation() {
    let mut rig = Rig::new(config(3, 1));
    let error = rig.engine.acquire(rig.now, key("a"), &SlotRequest::default()).unwrap_err();
    assert_eq!(error, EnqueueError::NotReserved { key: key("a") });
    assert_eq!(error.to_string(), "reservation not found: a");
}

#[test]
fn s09_what_is_said_twice_or_for_nothing_is_nothing() {
    let mut rig = Rig::new(config(1, 1));
    rig.reserve("a").unwrap();
    rig.reserve("a").unwrap();
    assert_eq!(rig.engine.slot_counts().reserved, 1);
    rig.release("unknown");
    rig.tell(Event::Unreserve { key: key("unknown") });
    rig.tell(Event::Cancel { key: key("unknown") });
    assert_eq!(rig.engine.slot_counts().reserved, 1);
}

#[test]
fn s10_the_fullest_and_oldest_instance_is_filled_first() {
    let mut rig = adopted(config(2, 2), &["a", "b"]);
    for job in ["1", "2", "3"] {
        rig.want(job);
    }
    assert_eq!([rig.place("1"), rig.place("2"), rig.place("3")], ["a/0", "a/1", "b/0"]);
}

#[test]
fn s10_muster_fills_the_fullest_where_the_peer_fills_the_oldest() {
    let mut rig = adopted(config(2, 2), &["a", "b"]);
    for job in ["1", "2", "3"] {
        rig.want(job);
    }
    rig.release("1");
    rig.release("2");
    rig.want("4");
    // So a gets idle and can be removed.
    differs(
        "the slot of the next job: the oldest instance's, or the fullest one's",
        ("a/0", "b/1"),
        rig.place("4").as_str(),
    );
}

#[test]
fn a_policy_can_spread_jobs_instead() {
    let mut config = config(2, 2);
    config.policies = Policies::always(crate::policy::IdleTarget { placement: Placement::Spread, ..wanted(0, 300) });
    let mut rig = adopted(config, &["a", "b"]);
    for job in ["1", "2", "3"] {
        rig.want(job);
    }
    assert_eq!([rig.place("1"), rig.place("2"), rig.place("3")], ["a/0", "b/0", "a/1"]);
}

#[test]
fn s11_the_lowest_free_slot_is_given() {
    let mut rig = adopted(config(1, 3), &["a"]);
    for job in ["1", "2", "3"] {
        rig.want(job);
    }
    rig.release("2");
    rig.want("4");
    assert_eq!(rig.place("4"), "a/1");
}

#[test]
fn s12_an_instance_for_one_job_goes_with_it() {
    let mut config = config(1, 1);
    config.max_uses = NonZeroU32::new(1);
    let mut rig = adopted(config, &["a"]);
    rig.want("1");
    rig.release("1");
    assert!(rig.clouds[0].is_empty(), "in the same moment, no loop needed");
}

#[test]
fn s13_slots_that_will_not_be_given_are_unavailable() {
    let mut config = config(1, 4);
    config.max_uses = NonZeroU32::new(3);
    let mut rig = adopted(config, &["a"]);
    for job in ["1", "2"] {
        rig.want(job);
        rig.release(job);
    }
    let tasks = rig.engine.slot_counts();
    assert_eq!((tasks.unavailable, tasks.idle), (3, 1));
}

#[test]
fn s14_an_unhealthy_instance_gets_no_job_and_goes() {
    let mut config = config(2, 1);
    config.policies = Policies::always(wanted(0, 3600));
    let mut rig = adopted(config, &["a"]);
    for _ in 0..3 {
        rig.tell(Event::Health { group: G, id: id("a"), result: Err("no answer".to_owned()) });
    }
    // Looked at before any time has passed: it does not wait for a walk.
    let left = rig.clouds[0].len();
    differs("an unhealthy idle instance, before the next walk that scales down", (1, 0), left);
    rig.want("1");
    assert_eq!(rig.place("1"), "nowhere", "it waits for another instance");
}

#[test]
fn s14_an_unhealthy_instance_keeps_its_running_job() {
    let mut rig = adopted(config(1, 2), &["a"]);
    rig.want("1");
    for _ in 0..3 {
        rig.tell(Event::Health { group: G, id: id("a"), result: Err("no answer".to_owned()) });
    }
    rig.want("2");
    assert_eq!(
        (rig.place("2").as_str(), rig.clouds[0].len()),
        ("nowhere", 1),
        "no new job, and no removal under the old one"
    );
    rig.release("1");
    rig.seconds(60);
    assert_eq!(rig.place("2"), "i1/0");
}

#[test]
fn s15_who_waits_no_longer_keeps_the_reservation() {
    let mut rig = Rig::new(config(1, 1));
    rig.reserve("1").unwrap();
    rig.engine.acquire(rig.now, key("1"), &SlotRequest::default()).unwrap();
    rig.tell(Event::Cancel { key: key("1") });
    let tasks = rig.engine.slot_counts();
    assert_eq!((tasks.pending, tasks.reserved), (0, 1));
    rig.tell(Event::Unreserve { key: key("1") });
    assert_eq!(rig.engine.slot_counts().reserved, 0);
}

#[test]
fn s16_a_job_learns_that_its_instance_is_gone() {
    let mut rig = adopted(config(2, 1), &["a"]);
    rig.want("1");
    rig.clouds[0].clear();
    let before = rig.count(|action| matches!(action, Action::List { .. }));
    rig.tell(Event::ConnectionLost { key: key("1") });
    assert!(rig.lost.is_empty(), "one list that lacks it is no proof");
    rig.seconds(2);
    assert_eq!(rig.lost, [key("1")]);
    let lists = rig.count(|action| matches!(action, Action::List { .. })) - before;
    differs("lists that lack an instance with a job, until that is lost", (6, 2), lists);
}

#[test]
fn s16_without_a_sign_of_it_the_next_lists_tell() {
    let mut rig = adopted(config(2, 1), &["a"]);
    rig.want("1");
    rig.clouds[0].clear();
    rig.seconds(63);
    assert_eq!(rig.lost, [key("1")], "a minute to the next list, and one more to be sure");
    let most = rig.now.at.since(Time::ZERO).as_secs().div_ceil(60);
    differs("minutes until a lost instance costs its job, at most, with the defaults", (6, 2), most);
}

#[test]
fn s17_instances_from_before_are_left_alone() {
    // Peer: pre-existing instances are removed unless state storage is on. Muster: the books are always kept, so an instance
    // that is not in them is someone else's.
    let mut config = config(3, 1);
    config.policies = Policies::always(wanted(0, 0));
    let there = || [(id("old"), InstanceState::Running)].into_iter().collect();
    let mut rig = Rig::with(config.clone(), there());
    rig.seconds(600);
    assert_eq!(rig.engine.status(rig.now).groups[0].unmanaged, ["old"]);
    differs("instances of before the start that are left without state storage", (0, 1), rig.clouds[0].len());
    config.unmanaged = UnmanagedPolicy::Delete;
    let rig = Rig::with(config, there());
    assert!(rig.clouds[0].is_empty(), "as the peer, where the configuration says so");
}

#[test]
fn s17_someone_elses_instance_stays_that_when_a_list_lacks_it() {
    let mut rig = Rig::with(config(3, 1), [(id("old"), InstanceState::Running)].into_iter().collect());
    rig.clouds[0].clear();
    rig.seconds(60);
    rig.moods[0] = Mood::Empty;
    rig.want("1");
    rig.clouds[0].insert(id("old"), InstanceState::Running);
    rig.seconds(60);
    assert_eq!(rig.place("1"), "nowhere", "what was asked for has not come, and the old one is not it");
    assert_eq!(rig.engine.status(rig.now).groups[0].unmanaged, ["old"]);
}

#[test]
fn s18_creations_are_throttled() {
    let mut config = config(10, 1);
    config.groups[0].throttle = Throttle { limit: 1, burst: 2 };
    let mut rig = Rig::new(config);
    for job in 1..=5 {
        rig.want(&job.to_string());
    }
    assert_eq!(rig.made, 2);
    for more in 1..=3 {
        rig.pass(std::time::Duration::from_millis(1010));
        assert_eq!(rig.made, 2 + more);
    }
    rig.seconds(10);
    assert_eq!(rig.made, 5);
}
