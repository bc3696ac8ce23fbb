//! Compares the forecast with fixed policies in wait and cost.
//!
//! cargo run --release -p muster-taskscaler --example forecast [SEED ...]
//!
//! Each seed has 12 similar days of jobs, of which the last 5 are measured. The fixed policies that no other fixed
//! policy beats in both wait and cost form the Pareto curve. A forecast beats a point of this curve if it is better in
//! cost or wait, and not worse in the other.

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "an experiment prints its results and panics if it fails"
)]

use std::num::NonZeroU32;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jiff::tz::TimeZone;
use muster_taskscaler::config::{Config, GroupConfig};
use muster_taskscaler::forecast::ForecastConfig;
use muster_taskscaler::policy::{IdleTarget, Policies, Policy};
use muster_taskscaler::sim::cloud::{CloudConfig, Spread};
use muster_taskscaler::sim::scenario::Scenario;
use muster_taskscaler::sim::simulation::Simulation;
use muster_taskscaler::sim::trace::{Job, Pattern, Shape};
use muster_taskscaler::time::Time;

const DAYS: u32 = 12;
const LEARNING_DAYS: u64 = 7;

#[derive(Debug, Clone)]
struct PolicyResult {
    name: String,
    /// 95th percentile of the jobs' waits in seconds.
    p95: f64,
    /// Mean of the jobs' waits in seconds.
    mean: f64,
    cost: f64,
}

fn base_config() -> Config {
    let mut config = Config::new(GroupConfig { price_per_hour: 0.1, ..GroupConfig::new("main", 0) });
    config.capacity = NonZeroU32::MIN;
    config
}

fn idle_target(idle_count: u32, idle_time_s: u64, scale_factor: f64) -> IdleTarget {
    let idle_time = Duration::from_secs(idle_time_s);
    IdleTarget { idle_count, idle_time, scale_factor, ..IdleTarget::default() }
}

/// In seconds.
const IDLE_TIMES: [u64; 5] = [15, 30, 60, 180, 300];

fn fixed_policies() -> Vec<(String, Config)> {
    let mut all = Vec::new();
    for hours in ["7-17", "8-21"] {
        for (day, night) in [(0, 0), (1, 0), (2, 1), (3, 0), (3, 1), (4, 1), (6, 1), (10, 1), (10, 2), (15, 1)] {
            for idle_time in IDLE_TIMES {
                for factor in [0.0, 0.3, 0.6] {
                    let policy = |periods: String, idle_target| Policy {
                        periods: periods.parse().into_iter().collect(),
                        zone: TimeZone::UTC,
                        idle_target,
                    };
                    let mut config = base_config();
                    config.policies = Policies::new(vec![
                        policy("* * * * *".to_owned(), idle_target(night, idle_time, factor)),
                        policy(format!("* {hours} * * *"), idle_target(day, idle_time, factor)),
                    ]);
                    all.push((format!("{hours} h: {day}, else {night}; {idle_time} s; x{factor}"), config));
                }
            }
        }
    }
    all
}

fn forecast_policies() -> Vec<(String, Config)> {
    let mut all = Vec::new();
    let on_demand = [0.1, 0.2, 0.4, 0.6, 0.8, 1.0].map(|retention| (-1.0, retention));
    let ahead = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.3, 1.7, 2.2, 3.0, 4.0];
    let ahead = ahead.into_iter().flat_map(|safety| [0.3, 0.6, 1.0].map(|margin| (safety, safety + margin)));
    for (safety, retention) in on_demand.into_iter().chain(ahead) {
        for idle_time in [0, 30] {
            let mut config = base_config();
            config.policies = Policies::always(idle_target(0, idle_time, 0.0));
            config.forecast = Some(ForecastConfig {
                safety_factor: safety,
                retention_factor: retention,
                ..ForecastConfig::default()
            });
            all.push((format!("safety {safety}; retention {retention:.1}; {idle_time} s"), config));
        }
    }
    all
}

fn simulate(name: &str, config: &Config, jobs: &[Job], seed: u64) -> PolicyResult {
    let end = Time::ZERO + Duration::from_secs(u64::from(DAYS) * 86_400);
    let cloud = CloudConfig { boot: Spread::new(90.0, 1.5), ..CloudConfig::default() };
    let mut scenario = Scenario::fault_free(config.clone(), vec![cloud], seed, end);
    scenario.measured_from = Time::ZERO + Duration::from_secs(LEARNING_DAYS * 86_400);
    let report = Simulation::new(&scenario, jobs).run().expect("an invariant was violated without faults");
    PolicyResult {
        name: name.to_owned(),
        p95: report.wait(0.95).as_secs_f64(),
        mean: report.mean_wait().as_secs_f64(),
        cost: report.cost,
    }
}

fn simulate_all(candidates: &[(String, Config)], jobs: &[Job], seed: u64) -> Vec<PolicyResult> {
    let (next, points) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get) {
            scope.spawn(|| {
                while let Some((name, config)) = candidates.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let point = simulate(name, config, jobs, seed);
                    points.lock().expect("a thread panicked").push(point);
                }
            });
        }
    });
    points.into_inner().expect("a thread panicked")
}

/// Returns the results that no other result beats in both wait and cost.
fn pareto_curve(mut points: Vec<PolicyResult>, wait: fn(&PolicyResult) -> f64) -> Vec<PolicyResult> {
    points.sort_by(|one, other| one.cost.total_cmp(&other.cost).then(wait(one).total_cmp(&wait(other))));
    let mut best = f64::INFINITY;
    points.retain(|point| {
        let is_better = wait(point) < best;
        best = best.min(wait(point));
        is_better
    });
    points
}

fn main() {
    let seeds: Vec<u64> = std::env::args().skip(1).filter_map(|seed| seed.parse().ok()).collect();
    for seed in if seeds.is_empty() { vec![1, 2, 3] } else { seeds } {
        let pattern = Pattern { shape: Shape::Day, days: DAYS, daily_variation: 1.6, ..Pattern::default() };
        let jobs = pattern.jobs(seed, usize::MAX);
        let (fixed, predictive) =
            (simulate_all(&fixed_policies(), &jobs, seed), simulate_all(&forecast_policies(), &jobs, seed));
        println!("\nseed {seed}: {} jobs, {} fixed policies, {} forecasts", jobs.len(), fixed.len(), predictive.len());
        for (statistic, wait) in
            [("mean", (|point| point.mean) as fn(&PolicyResult) -> f64), ("p95", |point| point.p95)]
        {
            let (fixed, predictive) = (pareto_curve(fixed.clone(), wait), pareto_curve(predictive.clone(), wait));
            let beats = |one: &PolicyResult, other: &PolicyResult| {
                let (costs, waits) = (one.cost.total_cmp(&other.cost), wait(one).total_cmp(&wait(other)));
                costs.is_le() && waits.is_le() && (costs.is_lt() || waits.is_lt())
            };
            let beaten = |point: &&PolicyResult| predictive.iter().any(|other| beats(other, point));
            println!(
                "by {statistic} wait: {} of {} points of the fixed curve are beaten",
                fixed.iter().filter(beaten).count(),
                fixed.len()
            );
            for (kind, points) in [("fixed", &fixed), ("forecast", &predictive)] {
                for point in points {
                    let mark = if kind == "fixed" && !beaten(&point) { "  not beaten" } else { "" };
                    println!(
                        "  {kind:<8} cost {:>7.2}  {statistic} {:>6.1} s  {}{mark}",
                        point.cost,
                        wait(point),
                        point.name
                    );
                }
            }
        }
    }
}
