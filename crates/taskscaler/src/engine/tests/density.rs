//! Jobs that share an instance: how many slots each takes, who waits for whom, and what jobs leave for each other.

use std::time::Duration;

use super::fixture::{Rig, adopted, config, id, key, wanted};
use crate::config::Config;
use crate::decision::DecisionKind;
use crate::event::Event;
use crate::policy::Policies;
use crate::resources::JobUsage;
use crate::types::ResourceRequest;
use crate::types::{JobKind, SlotRequest, StickyContextId, TriedInstance};

/// Instances of `capacity` slots, each of which stands for one CPU and 2 GiB.
fn sized(max: u32, capacity: u32) -> Config {
    let mut config = config(max, capacity);
    config.density.slot = ResourceRequest { cpu_milli: Some(1000), memory_bytes: Some(2 << 30) };
    config
}

fn cpus(cpu_milli: u32) -> SlotRequest {
    SlotRequest {
        resources: ResourceRequest { cpu_milli: Some(cpu_milli), memory_bytes: None },
        ..SlotRequest::default()
    }
}

fn of_kind(work: u64) -> SlotRequest {
    SlotRequest { job_kind: Some(JobKind(work)), ..SlotRequest::default() }
}

fn with_context(context: u64) -> SlotRequest {
    SlotRequest { sticky_context: Some(StickyContextId(context)), ..SlotRequest::default() }
}

/// How many slots a key got.
fn slots(rig: &Rig, name: &str) -> u32 {
    rig.granted.iter().rev().find(|lease| lease.key.as_str() == name).map_or(0, |lease| lease.slots)
}

#[test]
fn a_job_takes_as_many_slots_as_it_declares_a_need_for() {
    let mut rig = adopted(sized(1, 8), &["a"]);
    rig.want_by("big", &cpus(3500));
    rig.want("small");
    let memory = ResourceRequest { cpu_milli: Some(500), memory_bytes: Some(5 << 30) };
    rig.want_by("wide", &SlotRequest { resources: memory, ..SlotRequest::default() });
    assert_eq!([slots(&rig, "big"), slots(&rig, "small"), slots(&rig, "wide")], [4, 1, 3]);
    assert_eq!([rig.place("big"), rig.place("small"), rig.place("wide")], ["a/0", "a/4", "a/5"]);
    assert_eq!(rig.engine.slot_counts().idle, 0);
    rig.release("big");
    rig.want_by("next", &cpus(2000));
    assert_eq!((rig.place("next").as_str(), slots(&rig, "next")), ("a/0", 2));
    // A job that needs more than an instance has gets all of one.
    rig.want_by("huge", &cpus(64_000));
    for job in ["small", "wide", "next"] {
        rig.release(job);
    }
    assert_eq!(slots(&rig, "huge"), 8);
}

#[test]
fn small_jobs_pack_and_large_ones_ask_for_instances_of_their_own_at_once() {
    let mut rig = Rig::new(sized(10, 4));
    for job in 0..8 {
        rig.want(&format!("small {job}"));
    }
    assert_eq!(rig.increases().iter().sum::<u32>(), 2, "eight small ones on two");
    for job in 0..3 {
        rig.want_by(&format!("large {job}"), &cpus(3000));
    }
    assert_eq!(rig.increases().iter().sum::<u32>(), 5, "nine slots would fit on three, jobs of three slots do not");
    rig.seconds(120);
    assert_eq!(rig.granted.len(), 11);
    assert_eq!(rig.increases().iter().sum::<u32>(), 5, "nobody asks for more");
}

#[test]
fn who_is_overtaken_for_a_minute_is_kept_an_instance() {
    let mut rig = adopted(sized(1, 4), &["a"]);
    for job in ["1", "2", "3", "4"] {
        rig.want(job);
    }
    rig.want_by("large", &cpus(4000));
    rig.seconds(30);
    rig.release("1");
    rig.want("5");
    assert_eq!(rig.place("5"), "a/0", "a free slot is used at once");
    rig.seconds(31);
    assert!(rig.told(|what| matches!(what, DecisionKind::Held { slots: 4, .. })));
    for job in ["2", "3", "4"] {
        rig.release(job);
    }
    rig.want("6");
    assert_eq!(rig.place("6"), "nowhere");
    rig.release("5");
    assert_eq!(slots(&rig, "large"), 4);
    rig.release("large");
    assert_eq!(rig.place("6"), "a/0");
}

#[test]
fn a_request_that_is_given_up_keeps_no_instance() {
    let mut rig = adopted(sized(1, 2), &["a"]);
    rig.want("1");
    rig.want_by("large", &cpus(2000));
    rig.seconds(61);
    rig.want("2");
    assert_eq!(rig.place("2"), "nowhere");
    rig.tell(Event::Cancel { key: key("large") });
    assert_eq!(rig.place("2"), "a/1");
}

#[test]
fn what_earlier_runs_used_says_how_many_slots_the_next_one_takes() {
    let mut config = sized(1, 8);
    config.density.learn_from_usage = true;
    let mut rig = adopted(config, &["a"]);
    for run in 0..5 {
        let name = format!("run {run}");
        rig.want_by(&name, &of_kind(7));
        assert_eq!(slots(&rig, &name), 1, "too few runs say nothing");
        let wall = Duration::from_secs(10);
        let used = JobUsage { wall, cpu: Some(wall * 3), memory_bytes: Some(1 << 20), ..JobUsage::default() };
        rig.tell(Event::JobUsage { key: key(&name), usage: used });
        rig.release(&name);
    }
    rig.want_by("next", &of_kind(7));
    assert_eq!(slots(&rig, "next"), 4, "three CPUs, and a fifth more");
    rig.want_by("other", &of_kind(8));
    assert_eq!(slots(&rig, "other"), 1);
    rig.want_by("declared", &SlotRequest { job_kind: Some(JobKind(7)), ..cpus(1500) });
    assert_eq!(slots(&rig, "declared"), 2, "what a job declares counts");
}

#[test]
fn neighbours_and_slow_down_are_told() {
    let mut config = config(1, 2);
    config.policies = Policies::always(wanted(0, 100_000));
    let mut rig = adopted(config, &["a"]);
    let run = |rig: &mut Rig, name: &str, seconds: u64| {
        rig.want_by(name, &of_kind(7));
        rig.seconds(seconds);
        let used = JobUsage { wall: Duration::from_secs(seconds), ..JobUsage::default() };
        rig.tell(Event::JobUsage { key: key(name), usage: used });
        rig.release(name);
    };
    for name in ["1", "2", "3"] {
        run(&mut rig, name, 10);
    }
    rig.want("neighbour");
    run(&mut rig, "4", 15);
    let told = rig.decisions.iter().rev().find_map(|decision| match &decision.kind {
        DecisionKind::JobUsage { neighbors: neighbours, slowdown: slow_down, .. } => Some((*neighbours, *slow_down)),
        _ => None,
    });
    assert_eq!(told, Some((1.0, Some(1.5))));
}

#[test]
fn an_instance_with_the_sticky_context_is_preferred_and_none_is_waited_for() {
    let mut rig = adopted(config(2, 2), &["a", "b"]);
    rig.want_by("1", &with_context(1));
    rig.want("2");
    rig.want("3");
    rig.release("1");
    rig.release("2");
    // b has a job, and would be filled first.
    assert_eq!([rig.place("1"), rig.place("3")], ["a/0", "b/0"]);
    rig.want_by("4", &with_context(1));
    assert_eq!(rig.place("4"), "a/0");
    rig.want_by("5", &with_context(1));
    assert_eq!(rig.place("5"), "a/1");
    rig.want_by("6", &with_context(1));
    assert_eq!(rig.place("6"), "b/1", "a is full: the job does not wait for it");
    assert!(rig.told(|what| matches!(what, DecisionKind::Leased { sticky: Some(true), .. })));
}

#[test]
fn a_job_that_could_not_be_started_on_an_instance_gets_another_one_where_there_is_one() {
    let mut rig = adopted(sized(2, 2), &["a", "b"]);
    rig.want("1");
    let (full, other) = if rig.place("1").starts_with("a/") { ("a", "b") } else { ("b", "a") };
    let not_there = SlotRequest { avoid: Some(TriedInstance::from_instance_id(&id(full))), ..SlotRequest::default() };
    rig.want("2");
    assert_eq!(rig.place("2"), format!("{full}/1"), "packed");
    rig.release("2");
    rig.want_by("3", &not_there);
    assert_eq!(rig.place("3"), format!("{other}/0"));
    rig.want_by("4", &not_there);
    rig.want_by("5", &not_there);
    assert_eq!([rig.place("4"), rig.place("5")], [format!("{other}/1"), format!("{full}/1")], "better than none");
}
