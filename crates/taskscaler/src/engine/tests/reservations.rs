//! Reservations, and when they are revoked.

use super::fixture::{Fixture, config, idle_target, key};
use crate::engine::NoCapacity;
use crate::event::Event;
use crate::policy::Policies;

fn run_peak(mut fixture: Fixture, jobs: u32) -> Fixture {
    (0..jobs).for_each(|job| fixture.acquire(&format!("job {job}")));
    fixture.seconds(40);
    (0..jobs).for_each(|job| fixture.release(&format!("job {job}")));
    fixture
}

/// gitlab-runner#37237: there, the fleet stays as large as its last peak.
#[test]
fn reservations_are_revoked_after_policy_idle_time() {
    let mut config = config(20, 1);
    config.policies = Policies::always(idle_target(2, 300));
    let mut fixture = run_peak(Fixture::new(config), 12);
    let idle = fixture.engine.slot_counts().idle;
    assert!(idle >= 12, "{idle}");
    (0..10).for_each(|n| fixture.reserve(&n.to_string()).unwrap());
    fixture.seconds(290);
    assert_eq!(
        (fixture.engine.slot_counts().idle, fixture.revoked.len()),
        (idle, 0),
        "no reservation may be revoked before the idle time"
    );
    fixture.seconds(30);
    assert_eq!(
        (fixture.engine.slot_counts().idle, fixture.engine.slot_counts().reserved, fixture.revoked.len()),
        (2, 2, 8)
    );
    let refusal = fixture.reserve("more").unwrap_err();
    assert!(matches!(refusal, NoCapacity::NoneAvailable { .. }), "{refusal}");
}

#[test]
fn reservation_keeps_instance_within_idle_time() {
    let mut config = config(20, 1);
    config.policies = Policies::always(idle_target(2, 300));
    let mut fixture = run_peak(Fixture::new(config), 4);
    (0..4).for_each(|n| fixture.reserve(&n.to_string()).unwrap());
    fixture.seconds(200);
    let mut fixture = run_peak(fixture, 4);
    fixture.seconds(200);
    assert_eq!((fixture.engine.slot_counts().reserved, fixture.revoked.len()), (4, 0));
}

#[test]
fn reservations_are_revoked_when_plugin_goes_down() {
    let mut fixture = Fixture::new(config(5, 1));
    (0..5).for_each(|n| fixture.reserve(&n.to_string()).unwrap());
    fixture.handle(Event::PluginDown { group: super::fixture::G, cause: "the plugin crashed".to_owned() });
    assert_eq!((fixture.engine.slot_counts().reserved, fixture.revoked.len()), (0, 5));
}

/// A job can arrive at the moment when its reservation is revoked.
#[test]
fn job_of_revoked_reservation_is_queued() {
    let mut fixture = Fixture::new(config(1, 1));
    fixture.reserve("request").unwrap();
    fixture.handle(Event::PluginDown { group: super::fixture::G, cause: "the plugin crashed".to_owned() });
    assert_eq!(fixture.revoked, [key("request")]);
    fixture.engine.rename(&key("request"), key("job"));
    fixture.engine.acquire(fixture.now, key("job"), &crate::types::SlotRequest::default()).unwrap();
    fixture.handle(Event::PluginUp { group: super::fixture::G, max_size: 0 });
    fixture.seconds(40);
    assert_eq!(fixture.slot_of("job"), "i1/0");
}

#[test]
fn no_slot_is_reserved_for_replacement_of_instance_with_stuck_deletion() {
    let mut fixture = Fixture::with_stuck_deletion(1);
    fixture.seconds(1);
    fixture.reserve("soon").unwrap();
    fixture.seconds(400);
    assert_eq!(fixture.revoked, [key("soon")], "no job is requested for a replacement that may never be created");
    let refusal = fixture.reserve("later").unwrap_err().to_string();
    assert!(refusal.contains("1 deletion takes too long, the longest is i1"), "{refusal}");
    fixture.clouds[0].clear();
    fixture.seconds(70);
    fixture.reserve("after the deletion").unwrap();
}
