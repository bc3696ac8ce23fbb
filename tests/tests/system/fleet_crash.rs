//! Kills (SIGKILL) the manager, its plugin, an instance or its SSH server while jobs run on instances. No job is lost
//! or duplicated, no instance is deleted while a job runs on it, there are never too many instances, and none remains
//! at the end.
//!
//! `MUSTER_TEST_SEED=n MUSTER_TEST_RUNS=1` repeats seed n with the earlier seeds of its test environment. Long run:
//! `MUSTER_TEST_RUNS=200 cargo test -p muster-tests --test system fleet_crash -- --nocapture`

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use muster_job::JobId;
use muster_tests::harness::Harness;
use muster_tests::machines::{Machines, ProcessKind};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::checks;
use crate::kill::{JOBS, Point, Tally, Victim, run, run_without_kill};

/// Number of test environments that run at the same time. They are idle most of the time.
const PARALLEL_HARNESSES: usize = 3;
/// Number of consecutive seeds that share one test environment. The first of them is a multiple of this number.
const SEEDS_PER_HARNESS: u64 = 4;
const CONCURRENT: usize = 2;
const MAX_INSTANCES: usize = 3;
const COUNT_INTERVAL: Duration = Duration::from_millis(10);

const VICTIMS: [Victim; 4] = [Victim::Manager, Victim::Plugin, Victim::SshServer, Victim::Instance];

#[tokio::test(flavor = "multi_thread")]
async fn killed_fleet_loses_no_job_and_leaves_no_instance() {
    run_seeds(12, false).await;
}

/// Kills a manager only after it has sent a call about each assigned job. See [`crate::kill`] for the reason.
#[tokio::test(flavor = "multi_thread")]
async fn killed_fleet_of_gitlab_like_server_loses_no_job_and_leaves_no_instance() {
    run_seeds(8, true).await;
}

async fn run_seeds(default_runs: u64, gitlab_like: bool) {
    let pending = Arc::new(Mutex::new(seed_ranges(checks::seeds(default_runs))));
    let workers: Vec<_> =
        (0..PARALLEL_HARNESSES).map(|_| tokio::spawn(run_ranges(Arc::clone(&pending), gitlab_like))).collect();
    let mut all = Tally::default();
    for worker in workers {
        for tally in worker.await.unwrap() {
            all.runs += tally.runs;
            all.kills += tally.kills;
            all.passed += tally.passed;
            all.failed += tally.failed;
        }
    }
    all.print_and_check();
}

/// Returns the seeds to run in each test environment.
///
/// The effect of a seed depends on the earlier seeds of its environment.
fn seed_ranges(seeds: Range<u64>) -> VecDeque<Range<u64>> {
    let first = seeds.start / SEEDS_PER_HARNESS;
    (first..seeds.end.div_ceil(SEEDS_PER_HARNESS))
        .map(|index| index * SEEDS_PER_HARNESS..seeds.end.min((index + 1) * SEEDS_PER_HARNESS))
        .collect()
}

#[test]
fn single_seed_runs_after_the_same_seeds_as_in_a_range() {
    let all = seed_ranges(8..20);
    assert_eq!(all, [8..12, 12..16, 16..20]);
    for seed in 8..20 {
        let single = seed_ranges(seed..seed + 1);
        let [range] = single.as_slices().0 else { panic!("{single:?}") };
        let full = all.iter().find(|range| range.contains(&seed)).unwrap();
        assert_eq!((range.start, range.end), (full.start, seed + 1));
    }
}

async fn run_ranges(pending: Arc<Mutex<VecDeque<Range<u64>>>>, gitlab_like: bool) -> Vec<Tally> {
    let mut tallies = Vec::new();
    loop {
        let Some(seeds) = pending.lock().pop_front() else { return tallies };
        tallies.push(run_range(seeds, gitlab_like).await);
    }
}

async fn run_range(seeds: Range<u64>, gitlab_like: bool) -> Tally {
    // `create_timeout` is short, because an instance that is killed before the manager lists it never appears. The
    // manager requests another instance only after this timeout.
    let autoscaler = format!(
        "max_instances = {MAX_INSTANCES}\n    max_use_count = 4\n    delete_instances_on_shutdown = true\n    \
         create_timeout = \"5s\"\n    update_interval = \"2s\"\n    update_interval_when_expecting = \"200ms\"\n    deletion_retry_interval = \"1s\"\n    \
         [[runners.autoscaler.policy]]\n      idle_count = 1\n      idle_time = \"1s\""
    );
    let plugin = "boot_delay_ms = 20";
    let mut harness = if gitlab_like {
        Harness::with_instances_gitlab_like(CONCURRENT, &autoscaler, plugin).await
    } else {
        Harness::with_instances(CONCURRENT, &autoscaler, plugin).await
    };
    let max_seen = Arc::new(AtomicUsize::new(0));
    let counter = tokio::spawn(count_instances(harness.machines.clone(), Arc::clone(&max_seen)));
    let mut tally = Tally::default();
    let run_time = run_without_kill(&mut harness, &mut tally).await;
    for seed in seeds {
        let mut rng = StdRng::seed_from_u64(seed);
        let victim = VICTIMS[rng.random_range(0..VICTIMS.len())];
        let point = Point::random(&mut rng);
        println!("seed {seed}: {victim:?} at {point:?}");
        run(&mut harness, Some((victim, point, run_time)), &mut rng, &mut tally).await;
    }
    let jobs = i64::try_from(tally.runs).unwrap() * JOBS;
    checks::check_all_jobs(&harness, CONCURRENT, (1..=jobs).map(JobId)).await;
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
    counter.abort();
    let max_seen = max_seen.load(Ordering::Relaxed);
    assert!((1..=MAX_INSTANCES).contains(&max_seen), "{max_seen} instances at the same time");
    assert_eq!(harness.machines.names(), [""; 0], "no instance may remain:\n{}", harness.log());
    assert_eq!(
        harness.machines.processes(ProcessKind::PersistentInstance),
        [0; 0],
        "no instance may remain:\n{}",
        harness.log()
    );
    tally
}

/// Stores the maximum number of instances in `max_seen`, including instances that are being deleted.
async fn count_instances(machines: Machines, max_seen: Arc<AtomicUsize>) {
    loop {
        let names = machines.names();
        // The directory of a deleted instance may outlive its process for a moment.
        let count = if names.len() > MAX_INSTANCES {
            machines.processes(ProcessKind::PersistentInstance).len()
        } else {
            names.len()
        };
        if count > MAX_INSTANCES {
            println!("{count} instances are running; directories: {names:?}");
        }
        max_seen.fetch_max(count, Ordering::Relaxed);
        tokio::time::sleep(COUNT_INTERVAL).await;
    }
}
