//! Whole fleets in an honest world: how long jobs wait, what is idle, and what a job costs the manager's memory.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

mod counting;

use std::num::NonZeroU32;
use std::time::Duration;

use muster_taskscaler::config::{Config, GroupConfig};
use muster_taskscaler::engine::Engine;
use muster_taskscaler::policy::{IdleTarget, Policies};
use muster_taskscaler::sim::cloud::{CloudConfig, Spread};
use muster_taskscaler::sim::report::Report;
use muster_taskscaler::sim::scenario::Scenario;
use muster_taskscaler::sim::simulation::Simulation;
use muster_taskscaler::sim::trace::{Job, Pattern, Shape};
use muster_taskscaler::time::{Now, Time};
use muster_taskscaler::types::{SlotRequest, TaskKey};

fn fleet(max: u32, capacity: u32, wanted: IdleTarget) -> Config {
    let mut config = Config::new(GroupConfig::new("main", max));
    config.capacity = NonZeroU32::new(capacity).unwrap();
    config.policies = Policies::always(wanted);
    config
}

fn cloud() -> CloudConfig {
    CloudConfig { boot: Spread::new(60.0, 1.5), ..CloudConfig::default() }
}

/// One test for all, since what is allocated is counted for the whole process.
#[test]
fn fleets() {
    a_working_day_starts_jobs_in_time_and_keeps_little_idle();
    a_burst_waits_a_fraction_of_the_time_and_creates_no_more_instances();
    five_thousand_jobs_at_once_run_on_one_fleet_and_each_takes_little_memory();
}

/// R036: nine of ten jobs of a day start within 90 s, which is a boot, and less than two fifths of what is paid for are idle.
fn a_working_day_starts_jobs_in_time_and_keeps_little_idle() {
    let pattern = Pattern { shape: Shape::Day, days: 1, ..Pattern::default() };
    let jobs = pattern.jobs(7);
    let wanted = IdleTarget { idle_time: Duration::from_secs(120), ..IdleTarget::default() };
    let end = Time::ZERO + Duration::from_secs(86_400);
    let scenario = Scenario::fault_free(fleet(0, 4, wanted), vec![cloud()], 7, end);
    let report = Simulation::new(&scenario, &jobs).run().unwrap();
    assert!(report.wait(0.9) <= Duration::from_secs(90), "{:?}", report.wait(0.9));
    let idle = 1.0 - report.busy_slot_hours / report.slot_hours;
    assert!(idle < 0.4, "{idle} of {} slot hours", report.slot_hours);
}

/// R063.
fn five_thousand_jobs_at_once_run_on_one_fleet_and_each_takes_little_memory() {
    let job = Job { at: Time::ZERO, duration: Duration::from_secs(300), request: SlotRequest::default() };
    let jobs = vec![job; 5_000];
    let end = Time::ZERO + Duration::from_secs(7200);
    let scenario = Scenario {
        stop_when_done: true,
        ..Scenario::fault_free(fleet(1_000, 5, IdleTarget::default()), vec![cloud()], 1, end)
    };
    let report = Simulation::new(&scenario, &jobs).run().unwrap();
    assert_eq!((report.done, report.machines), (5_000, 1_000));

    let now = Now::steady(Time::ZERO, 1_772_409_600);
    let mut engine = Engine::new(fleet(1_000, 5, IdleTarget::default()), now);
    let before = counting::held();
    for job in 0..5_000 {
        let key = TaskKey::new(format!("runner-{job:016}"));
        engine.admit(key.clone());
        engine.acquire(now, key, &SlotRequest::default()).unwrap();
        let _ = (engine.decisions(), engine.changes(), engine.actions());
    }
    let bytes = (counting::held() - before) / 5_000;
    assert!(bytes < 1_024, "{bytes} bytes for a waiting job");
}

/// Pipelines of 40 jobs on a fleet with two idle slots.
fn bursts(ahead: bool) -> Report {
    let wanted = IdleTarget {
        idle_count: 2,
        idle_time: Duration::from_secs(300),
        preemptive: true,
        ahead,
        ..IdleTarget::default()
    };
    let mut config = fleet(30, 1, wanted);
    config.max_uses = NonZeroU32::new(1);
    let job = |n: u64| {
        let at = Time::from_millis((1 + n / 40) * 3_600_000 + n % 40);
        Job { at, duration: Duration::from_secs(120 + n % 60), request: SlotRequest::default() }
    };
    let jobs: Vec<Job> = (0..400).map(job).collect();
    let end = Time::ZERO + Duration::from_secs(12 * 3600);
    Simulation::new(&Scenario::fault_free(config, vec![cloud()], 3, end), &jobs).run().unwrap()
}

/// What it costs to request jobs ahead of free slots: no instance, since each is created for a job that has come. The two idle
/// ones are idle again while a fleet without it still works its queue off, with two jobs after each boot.
fn a_burst_waits_a_fraction_of_the_time_and_creates_no_more_instances() {
    let (off, on) = (bursts(false), bursts(true));
    assert_eq!((off.done, on.done), (400, 400));
    let half = (on.wait(0.5).as_secs(), off.wait(0.5).as_secs());
    assert!(half.0 * 5 < half.1 && on.wait(0.95) * 3 < off.wait(0.95), "seconds that half of the jobs wait: {half:?}");
    assert_eq!((on.machines, off.machines), (402, 402), "one for each job, and two idle ones");
    let idle_again = 2.0 * 10.0 * off.wait(1.0).as_secs_f64() / 3600.0;
    assert!(on.machine_hours <= off.machine_hours + idle_again, "{} and {}", on.machine_hours, off.machine_hours);
}
