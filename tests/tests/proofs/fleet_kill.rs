//! Jobs run on instances while the manager, its plugin, the SSH server of an instance or a whole instance is killed (SIGKILL) at a
//! point of a job's life that a seed selects. No job is lost or duplicated, no instance is deleted while a job runs on it, the limit
//! of instances is never exceeded, and no instance is left at the end.
//!
//! `MUSTER_TEST_SEED=n MUSTER_TEST_RUNS=1` replays a seed, after the seeds that ran before it in the same environment.
//! All of it: `MUSTER_TEST_RUNS=200 cargo test -p muster-tests --test proofs fleet_kill -- --nocapture`

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use muster_job::JobId;
use muster_tests::bench::Bench;
use muster_tests::machines::{Machines, Part};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::kill::{JOBS, Point, Tally, Victim, run, undisturbed};
use crate::life;

/// Number of environments that run at the same time. They mostly wait.
const WORLDS: usize = 3;
/// Number of seeds of one environment. They are consecutive, from a multiple of this number.
const SEEDS: u64 = 4;
const CONCURRENT: usize = 2;
const INSTANCES_MAX: usize = 3;
/// Interval between two counts of the instances.
const LOOK: Duration = Duration::from_millis(10);

const VICTIMS: [Victim; 4] = [Victim::Manager, Victim::Plugin, Victim::Server, Victim::Machine];

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_point_a_fleet_loses_no_job_and_leaves_no_instance() {
    all(12, false).await;
}

/// Excludes the moment that [`crate::kill`] describes.
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_gitlab_a_fleet_loses_no_job_and_leaves_no_instance() {
    all(8, true).await;
}

async fn all(sample: u64, at_gitlab: bool) {
    let left = Arc::new(Mutex::new(worlds(life::seeds(sample))));
    let workers: Vec<_> = (0..WORLDS).map(|_| tokio::spawn(work(Arc::clone(&left), at_gitlab))).collect();
    let mut all = Tally::default();
    for worker in workers {
        for tally in worker.await.unwrap() {
            all.runs += tally.runs;
            all.kills += tally.kills;
            all.passed += tally.passed;
            all.told += tally.told;
        }
    }
    all.tell();
}

/// Returns the seeds to run in each environment. The effect of a seed depends on the seeds before it in the same environment, so these
/// always run first.
fn worlds(seeds: Range<u64>) -> VecDeque<Range<u64>> {
    let first = seeds.start / SEEDS;
    (first..seeds.end.div_ceil(SEEDS)).map(|world| world * SEEDS..seeds.end.min((world + 1) * SEEDS)).collect()
}

#[test]
fn a_seed_alone_is_in_the_same_world_after_the_same_seeds_as_among_many() {
    let whole = worlds(8..20);
    assert_eq!(whole, [8..12, 12..16, 16..20]);
    for seed in 8..20 {
        let alone = worlds(seed..seed + 1);
        let [world] = alone.as_slices().0 else { panic!("{alone:?}") };
        let among = whole.iter().find(|world| world.contains(&seed)).unwrap();
        assert_eq!((world.start, world.end), (among.start, seed + 1));
    }
}

/// Runs environments one after the other.
async fn work(left: Arc<Mutex<VecDeque<Range<u64>>>>, at_gitlab: bool) -> Vec<Tally> {
    let mut tallies = Vec::new();
    loop {
        let Some(seeds) = left.lock().pop_front() else { return tallies };
        tallies.push(world(seeds, at_gitlab).await);
    }
}

async fn world(seeds: Range<u64>, at_gitlab: bool) -> Tally {
    let autoscaler = format!(
        "max_instances = {INSTANCES_MAX}\n    max_use_count = 4\n    delete_instances_on_shutdown = true\n    \
         create_timeout = \"5s\"\n    update_interval = \"2s\"\n    update_interval_when_expecting = \"200ms\"\n    deletion_retry_interval = \"1s\"\n    \
         [[runners.autoscaler.policy]]\n      idle_count = 1\n      idle_time = \"1s\""
    );
    // An instance that is killed between its creation and the next list never appears. It is created again after `create_timeout`.
    let plugin = "boot_delay_ms = 20";
    let mut bench = if at_gitlab {
        Bench::with_instances_at_gitlab(CONCURRENT, &autoscaler, plugin).await
    } else {
        Bench::with_instances(CONCURRENT, &autoscaler, plugin).await
    };
    let most = Arc::new(AtomicUsize::new(0));
    let looking = tokio::spawn(look(bench.machines.clone(), Arc::clone(&most)));
    let mut tally = Tally::default();
    let whole = undisturbed(&mut bench, &mut tally).await;
    for seed in seeds {
        let mut rng = StdRng::seed_from_u64(seed);
        let victim = VICTIMS[rng.random_range(0..VICTIMS.len())];
        let point = Point::any(&mut rng);
        println!("seed {seed}: {victim:?} at {point:?}");
        run(&mut bench, Some((victim, point, whole)), &mut rng, &mut tally).await;
    }
    let jobs = i64::try_from(tally.runs).unwrap() * JOBS;
    life::check_world(&bench, CONCURRENT, (1..=jobs).map(JobId)).await;
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
    looking.abort();
    let most = most.load(Ordering::Relaxed);
    assert!((1..=INSTANCES_MAX).contains(&most), "{most} instances at once");
    assert_eq!(bench.machines.names(), [""; 0], "instances are left:\n{}", bench.log());
    assert_eq!(bench.machines.processes(Part::Machine), [0; 0], "instances are left:\n{}", bench.log());
    tally
}

/// Counts instances, including those that are being deleted. The directory of a deleted instance may exist for a moment longer.
async fn look(machines: Machines, most: Arc<AtomicUsize>) {
    loop {
        let there = machines.names();
        let count = if there.len() > INSTANCES_MAX { machines.processes(Part::Machine).len() } else { there.len() };
        if count > INSTANCES_MAX {
            println!("{count} machines run, and on disk there are {there:?}");
        }
        most.fetch_max(count, Ordering::Relaxed);
        tokio::time::sleep(LOOK).await;
    }
}
