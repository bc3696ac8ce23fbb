//! Promises of a slot: what keeps them, and what takes them back.

use super::fixture::{Rig, config, key, wanted};
use crate::engine::NoCapacity;
use crate::event::Event;
use crate::policy::Policies;

/// Jobs at once, which then end.
fn after_a_peak(mut rig: Rig, jobs: u32) -> Rig {
    (0..jobs).for_each(|job| rig.want(&format!("job {job}")));
    rig.seconds(40);
    (0..jobs).for_each(|job| rig.release(&format!("job {job}")));
    rig
}

/// gitlab-runner#37237: the fleet stays as large as its last peak.
#[test]
fn promises_do_not_keep_what_was_idle_for_the_policys_time() {
    let mut config = config(20, 1);
    config.policies = Policies::always(wanted(2, 300));
    let mut rig = after_a_peak(Rig::new(config), 12);
    let idle = rig.engine.slot_counts().idle;
    assert!(idle >= 12, "{idle}");
    (0..10).for_each(|n| rig.reserve(&n.to_string()).unwrap());
    rig.seconds(290);
    assert_eq!((rig.engine.slot_counts().idle, rig.withdrawn.len()), (idle, 0), "not yet");
    rig.seconds(30);
    assert_eq!((rig.engine.slot_counts().idle, rig.engine.slot_counts().reserved, rig.withdrawn.len()), (2, 2, 8));
    let refusal = rig.reserve("more").unwrap_err();
    assert!(matches!(refusal, NoCapacity::NoneAvailable { .. }), "{refusal}");
}

#[test]
fn a_promise_keeps_an_instance_for_as_long_as_one_may_be_idle() {
    let mut config = config(20, 1);
    config.policies = Policies::always(wanted(2, 300));
    let mut rig = after_a_peak(Rig::new(config), 4);
    (0..4).for_each(|n| rig.reserve(&n.to_string()).unwrap());
    rig.seconds(200);
    // They are used, and with that young again.
    let mut rig = after_a_peak(rig, 4);
    rig.seconds(200);
    assert_eq!((rig.engine.slot_counts().reserved, rig.withdrawn.len()), (4, 0));
}

#[test]
fn what_is_not_in_sight_any_more_is_not_promised_any_more() {
    let mut rig = Rig::new(config(5, 1));
    (0..5).for_each(|n| rig.reserve(&n.to_string()).unwrap());
    rig.tell(Event::PluginDown { group: super::fixture::G, cause: "it crashed".to_owned() });
    assert_eq!((rig.engine.slot_counts().reserved, rig.withdrawn.len()), (0, 5));
}

/// A job that comes for a promise in the moment in which that is withdrawn has its slot all the same.
#[test]
fn a_job_that_came_for_a_withdrawn_promise_waits_as_any_other() {
    let mut rig = Rig::new(config(1, 1));
    rig.reserve("promise").unwrap();
    rig.tell(Event::PluginDown { group: super::fixture::G, cause: "it crashed".to_owned() });
    assert_eq!(rig.withdrawn, [key("promise")]);
    rig.engine.rename(&key("promise"), key("job"));
    rig.engine.acquire(rig.now, key("job"), &crate::types::SlotRequest::default()).unwrap();
    rig.tell(Event::PluginUp { group: super::fixture::G, max_size: 0 });
    rig.seconds(40);
    assert_eq!(rig.place("job"), "i1/0");
}

/// A machine that the provider does not delete is no capacity, however long one waits for it.
#[test]
fn a_place_that_never_becomes_free_is_not_promised() {
    let mut rig = Rig::with_a_machine_that_stays(1);
    rig.seconds(1);
    rig.reserve("soon").unwrap();
    rig.seconds(400);
    assert_eq!(rig.withdrawn, [key("soon")], "no job is requested for it any more");
    let refusal = rig.reserve("later").unwrap_err().to_string();
    assert!(refusal.contains("deletions take too long, the longest is i1"), "{refusal}");
    rig.clouds[0].clear();
    rig.seconds(70);
    rig.reserve("at last").unwrap();
}
