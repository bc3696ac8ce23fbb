//! Fleets with a reliable provider: wait times, idle capacity, and memory per job.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

mod counting;

use std::num::NonZeroU32;
use std::time::Duration;

use muster_taskscaler::config::{Config, GroupConfig};
use muster_taskscaler::engine::Engine;
use muster_taskscaler::policy::{IdleTarget, Policies};
use muster_taskscaler::sim::cloud::{CloudConfig, Spread};
use muster_taskscaler::sim::report::Report;
use muster_taskscaler::sim::scenario::{MONDAY, Scenario};
use muster_taskscaler::sim::simulation::Simulation;
use muster_taskscaler::sim::trace::{Job, Pattern, Shape};
use muster_taskscaler::time::{Now, Time};
use muster_taskscaler::types::{SlotRequest, TaskKey};

fn fleet(max: u32, capacity: u32, idle_target: IdleTarget) -> Config {
    let mut config = Config::new(GroupConfig::new("main", max));
    config.capacity = NonZeroU32::new(capacity).unwrap();
    config.policies = Policies::always(idle_target);
    config
}

fn cloud() -> CloudConfig {
    CloudConfig { boot: Spread::new(60.0, 1.5), ..CloudConfig::default() }
}

/// A single test, because allocations are counted for the whole process.
#[test]
fn fleets_meet_wait_cost_and_memory_targets() {
    jobs_of_a_working_day_start_in_time_with_few_idle_slots();
    reserving_ahead_shortens_waits_without_more_instances();
    five_thousand_queued_jobs_need_little_memory();
}

/// Requirement R036 (docs/requirements.md).
fn jobs_of_a_working_day_start_in_time_with_few_idle_slots() {
    let pattern = Pattern { shape: Shape::Day, days: 1, ..Pattern::default() };
    let jobs = pattern.jobs(7, usize::MAX);
    let idle_target = IdleTarget { idle_time: Duration::from_secs(120), ..IdleTarget::default() };
    let end = Time::ZERO + Duration::from_secs(86_400);
    let scenario = Scenario::fault_free(fleet(0, 4, idle_target), vec![cloud()], 7, end);
    let report = Simulation::new(&scenario, &jobs).run().unwrap();
    assert!(report.wait(0.9) <= Duration::from_secs(90), "{:?}", report.wait(0.9));
    let idle = 1.0 - report.busy_slot_hours / report.slot_hours;
    assert!(idle < 0.4, "{idle} of {} slot hours", report.slot_hours);
}

/// Requirement R063 (docs/requirements.md).
fn five_thousand_queued_jobs_need_little_memory() {
    let job = Job { at: Time::ZERO, duration: Duration::from_secs(300), request: SlotRequest::default() };
    let jobs = vec![job; 5_000];
    let end = Time::ZERO + Duration::from_secs(7200);
    let scenario = Scenario {
        stop_when_done: true,
        ..Scenario::fault_free(fleet(1_000, 5, IdleTarget::default()), vec![cloud()], 1, end)
    };
    let report = Simulation::new(&scenario, &jobs).run().unwrap();
    assert_eq!((report.done, report.machines), (5_000, 1_000));

    let now = Now::steady(Time::ZERO, MONDAY);
    let mut engine = Engine::new(fleet(1_000, 5, IdleTarget::default()), now);
    let before = counting::allocated();
    for job in 0..5_000 {
        let key = TaskKey::new(format!("runner-{job:016}"));
        engine.admit(key.clone());
        engine.acquire(now, key, &SlotRequest::default()).unwrap();
        let _ = (engine.decisions(), engine.changes(), engine.actions());
    }
    let bytes = (counting::allocated() - before) / 5_000;
    assert!(bytes < 1_024, "{bytes} bytes per queued job");
}

/// Pipelines of 40 jobs on a fleet with two idle slots.
fn simulate_bursts(reserve_ahead: bool) -> Report {
    let idle_target = IdleTarget {
        idle_count: 2,
        idle_time: Duration::from_secs(300),
        preemptive: true,
        reserve_ahead,
        ..IdleTarget::default()
    };
    let mut config = fleet(30, 1, idle_target);
    config.max_uses = NonZeroU32::new(1);
    let job = |n: u64| {
        let at = Time::from_millis((1 + n / 40) * 3_600_000 + n % 40);
        Job { at, duration: Duration::from_secs(120 + n % 60), request: SlotRequest::default() }
    };
    let jobs: Vec<Job> = (0..400).map(job).collect();
    let end = Time::ZERO + Duration::from_secs(12 * 3600);
    Simulation::new(&Scenario::fault_free(config, vec![cloud()], 3, end), &jobs).run().unwrap()
}

fn reserving_ahead_shortens_waits_without_more_instances() {
    let (off, on) = (simulate_bursts(false), simulate_bursts(true));
    assert_eq!((off.done, on.done), (400, 400));
    let (median_on, median_off) = (on.wait(0.5).as_secs(), off.wait(0.5).as_secs());
    assert!(
        median_on * 5 < median_off && on.wait(0.95) * 3 < off.wait(0.95),
        "median wait in seconds: {median_on} with `reserve_ahead`, {median_off} without it"
    );
    assert_eq!((on.machines, off.machines), (402, 402), "expected one machine per job and two idle machines");
    // With `reserve_ahead`, each of the ten pipelines ends earlier, by at most the longest wait without it. Two
    // instances are idle after the end of a pipeline, so each of them can be idle for that much longer.
    let extra_idle_hours = 2.0 * 10.0 * off.wait(1.0).as_secs_f64() / 3600.0;
    assert!(on.machine_hours <= off.machine_hours + extra_idle_hours, "{} and {}", on.machine_hours, off.machine_hours);
}
