//! Jobs that share an instance.

use std::time::Duration;

use super::fixture::{Fixture, config, fixture_with_adopted, id, idle_target, key};
use crate::config::Config;
use crate::decision::DecisionKind;
use crate::event::Event;
use crate::policy::Policies;
use crate::resources::JobUsage;
use crate::types::ResourceRequest;
use crate::types::{JobKind, SlotRequest, StickyContextId, TriedInstance};

/// Each slot has one CPU and 2 GiB.
fn sized_config(max: u32, capacity: u32) -> Config {
    let mut config = config(max, capacity);
    config.density.slot = ResourceRequest { cpu_milli: Some(1000), memory_bytes: Some(2 << 30) };
    config
}

fn milli_cpus(cpu_milli: u32) -> SlotRequest {
    SlotRequest {
        resources: ResourceRequest { cpu_milli: Some(cpu_milli), memory_bytes: None },
        ..SlotRequest::default()
    }
}

fn of_kind(kind: u64) -> SlotRequest {
    SlotRequest { job_kind: Some(JobKind(kind)), ..SlotRequest::default() }
}

fn with_context(context: u64) -> SlotRequest {
    SlotRequest { sticky_context: Some(StickyContextId(context)), ..SlotRequest::default() }
}

fn assigned_slots(fixture: &Fixture, name: &str) -> u32 {
    fixture.assignments.iter().rev().find(|lease| lease.key.as_str() == name).map_or(0, |lease| lease.slots)
}

#[test]
fn job_takes_slots_for_its_declared_resources() {
    let mut fixture = fixture_with_adopted(sized_config(1, 8), &["a"]);
    fixture.acquire_for("big", &milli_cpus(3500));
    fixture.acquire("small");
    let memory = ResourceRequest { cpu_milli: Some(500), memory_bytes: Some(5 << 30) };
    fixture.acquire_for("wide", &SlotRequest { resources: memory, ..SlotRequest::default() });
    assert_eq!(
        [assigned_slots(&fixture, "big"), assigned_slots(&fixture, "small"), assigned_slots(&fixture, "wide")],
        [4, 1, 3]
    );
    assert_eq!([fixture.slot_of("big"), fixture.slot_of("small"), fixture.slot_of("wide")], ["a/0", "a/4", "a/5"]);
    assert_eq!(fixture.engine.slot_counts().idle, 0);
    fixture.release("big");
    fixture.acquire_for("next", &milli_cpus(2000));
    assert_eq!((fixture.slot_of("next").as_str(), assigned_slots(&fixture, "next")), ("a/0", 2));
    fixture.acquire_for("huge", &milli_cpus(64_000));
    for job in ["small", "wide", "next"] {
        fixture.release(job);
    }
    assert_eq!(assigned_slots(&fixture, "huge"), 8);
}

#[test]
fn large_jobs_request_separate_instances_immediately() {
    let mut fixture = Fixture::new(sized_config(10, 4));
    for job in 0..8 {
        fixture.acquire(&format!("small {job}"));
    }
    assert_eq!(fixture.increases().iter().sum::<u32>(), 2, "eight small jobs fit on two instances");
    for job in 0..3 {
        fixture.acquire_for(&format!("large {job}"), &milli_cpus(3000));
    }
    assert_eq!(fixture.increases().iter().sum::<u32>(), 5, "three jobs of three slots need three instances");
    fixture.seconds(120);
    assert_eq!(fixture.assignments.len(), 11);
    assert_eq!(fixture.increases().iter().sum::<u32>(), 5, "no more instances are requested");
}

#[test]
fn instance_is_held_for_request_starved_for_one_minute() {
    let mut fixture = fixture_with_adopted(sized_config(1, 4), &["a"]);
    for job in ["1", "2", "3", "4"] {
        fixture.acquire(job);
    }
    fixture.acquire_for("large", &milli_cpus(4000));
    fixture.seconds(30);
    fixture.release("1");
    fixture.acquire("5");
    assert_eq!(fixture.slot_of("5"), "a/0", "a free slot is assigned immediately");
    fixture.seconds(31);
    assert!(fixture.decided(|kind| matches!(kind, DecisionKind::Held { slots: 4, .. })));
    for job in ["2", "3", "4"] {
        fixture.release(job);
    }
    fixture.acquire("6");
    assert_eq!(fixture.slot_of("6"), "none");
    fixture.release("5");
    assert_eq!(assigned_slots(&fixture, "large"), 4);
    fixture.release("large");
    assert_eq!(fixture.slot_of("6"), "a/0");
}

#[test]
fn canceled_request_releases_held_instance() {
    let mut fixture = fixture_with_adopted(sized_config(1, 2), &["a"]);
    fixture.acquire("1");
    fixture.acquire_for("large", &milli_cpus(2000));
    fixture.seconds(61);
    fixture.acquire("2");
    assert_eq!(fixture.slot_of("2"), "none");
    fixture.handle(Event::Cancel { key: key("large") });
    assert_eq!(fixture.slot_of("2"), "a/1");
}

#[test]
fn slots_are_learned_from_usage_of_earlier_runs() {
    let mut config = sized_config(1, 8);
    config.density.learn_from_usage = true;
    let mut fixture = fixture_with_adopted(config, &["a"]);
    for run in 0..5 {
        let name = format!("run {run}");
        fixture.acquire_for(&name, &of_kind(7));
        assert_eq!(assigned_slots(&fixture, &name), 1, "the usage of few runs must be ignored");
        let wall = Duration::from_secs(10);
        let usage = JobUsage { wall, cpu: Some(wall * 3), memory_bytes: Some(1 << 20), ..JobUsage::default() };
        fixture.handle(Event::JobUsage { key: key(&name), usage });
        fixture.release(&name);
    }
    fixture.acquire_for("next", &of_kind(7));
    assert_eq!(assigned_slots(&fixture, "next"), 4, "three CPUs, plus a margin of a fifth");
    fixture.acquire_for("other", &of_kind(8));
    assert_eq!(assigned_slots(&fixture, "other"), 1);
    fixture.acquire_for("declared", &SlotRequest { job_kind: Some(JobKind(7)), ..milli_cpus(1500) });
    assert_eq!(assigned_slots(&fixture, "declared"), 2, "declared resources take precedence");
}

#[test]
fn job_usage_reports_neighbors_and_slowdown() {
    let mut config = config(1, 2);
    config.policies = Policies::always(idle_target(0, 100_000));
    let mut fixture = fixture_with_adopted(config, &["a"]);
    let run = |fixture: &mut Fixture, name: &str, seconds: u64| {
        fixture.acquire_for(name, &of_kind(7));
        fixture.seconds(seconds);
        let usage = JobUsage { wall: Duration::from_secs(seconds), ..JobUsage::default() };
        fixture.handle(Event::JobUsage { key: key(name), usage });
        fixture.release(name);
    };
    for name in ["1", "2", "3"] {
        run(&mut fixture, name, 10);
    }
    fixture.acquire("neighbor");
    run(&mut fixture, "4", 15);
    let reported = fixture.decisions.iter().rev().find_map(|decision| match &decision.kind {
        DecisionKind::JobUsage { neighbors, slowdown, .. } => Some((*neighbors, *slowdown)),
        _ => None,
    });
    assert_eq!(reported, Some((1.0, Some(1.5))));
}

#[test]
fn instance_with_sticky_context_is_preferred_without_waiting() {
    let mut fixture = fixture_with_adopted(config(2, 2), &["a", "b"]);
    fixture.acquire_for("1", &with_context(1));
    fixture.acquire("2");
    fixture.acquire("3");
    fixture.release("1");
    fixture.release("2");
    // Without a context, `b` would be preferred because it has a job.
    assert_eq!([fixture.slot_of("1"), fixture.slot_of("3")], ["a/0", "b/0"]);
    fixture.acquire_for("4", &with_context(1));
    assert_eq!(fixture.slot_of("4"), "a/0");
    fixture.acquire_for("5", &with_context(1));
    assert_eq!(fixture.slot_of("5"), "a/1");
    fixture.acquire_for("6", &with_context(1));
    assert_eq!(fixture.slot_of("6"), "b/1", "instance a is full, and the job does not wait for it");
    assert!(fixture.decided(|kind| matches!(kind, DecisionKind::Leased { sticky: Some(true), .. })));
}

#[test]
fn rescheduled_job_avoids_the_instance_that_it_tried() {
    let mut fixture = fixture_with_adopted(sized_config(2, 2), &["a", "b"]);
    fixture.acquire("1");
    let (tried, other) = if fixture.slot_of("1").starts_with("a/") { ("a", "b") } else { ("b", "a") };
    let avoids_tried =
        SlotRequest { avoid: Some(TriedInstance::from_instance_id(&id(tried))), ..SlotRequest::default() };
    fixture.acquire("2");
    assert_eq!(fixture.slot_of("2"), format!("{tried}/1"), "the second job must share the instance of the first job");
    fixture.release("2");
    fixture.acquire_for("3", &avoids_tried);
    assert_eq!(fixture.slot_of("3"), format!("{other}/0"));
    fixture.acquire_for("4", &avoids_tried);
    fixture.acquire_for("5", &avoids_tried);
    assert_eq!(
        [fixture.slot_of("4"), fixture.slot_of("5")],
        [format!("{other}/1"), format!("{tried}/1")],
        "the avoided instance is used if no other is free"
    );
}
