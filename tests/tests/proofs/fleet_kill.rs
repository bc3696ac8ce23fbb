//! Jobs on instances, while a seed kills (SIGKILL) the manager, its plugin, the SSH server of an instance, or a whole
//! instance, at a point of a job's life: no job is lost, none doubled, no instance is removed under a running job, there
//! are never more than allowed, and none is left.
//!
//! All of it: `MUSTER_TEST_RUNS=200 cargo test -p muster-tests --test proofs fleet_kill -- --nocapture`

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

/// Worlds that work at the same time: most of the time of a run is waiting.
const WORLDS: usize = 3;
const CONCURRENT: usize = 2;
const INSTANCES_MAX: usize = 3;
/// Between two looks at how many instances there are.
const LOOK: Duration = Duration::from_millis(10);

const VICTIMS: [Victim; 4] = [Victim::Manager, Victim::Plugin, Victim::Server, Victim::Machine];

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_point_a_fleet_loses_no_job_and_leaves_no_instance() {
    let seeds = Arc::new(Mutex::new(life::seeds(12)));
    let worlds: Vec<_> = (0..WORLDS).map(|_| tokio::spawn(world(Arc::clone(&seeds)))).collect();
    let mut all = Tally::default();
    for world in worlds {
        let tally = world.await.unwrap();
        all.runs += tally.runs;
        all.kills += tally.kills;
        all.passed += tally.passed;
        all.told += tally.told;
    }
    all.tell();
}

async fn world(seeds: Arc<Mutex<std::ops::Range<u64>>>) -> Tally {
    let autoscaler = format!(
        "max_instances = {INSTANCES_MAX}\n    max_use_count = 4\n    delete_instances_on_shutdown = true\n    \
         create_deadline = \"5s\"\n    update_interval = \"2s\"\n    update_interval_when_expecting = \"200ms\"\n    deletion_retry_interval = \"1s\"\n    \
         [[runners.autoscaler.policy]]\n      idle_count = 1\n      idle_time = \"1s\""
    );
    // An instance that is killed between its creation and the next list was granted, and never appears: the idle slot that it
    // should have been is asked for again after `create_deadline`.
    let mut bench = Bench::with_instances(CONCURRENT, &autoscaler, "boot_delay_ms = 20").await;
    let most = Arc::new(AtomicUsize::new(0));
    let looking = tokio::spawn(look(bench.machines.clone(), Arc::clone(&most)));
    let mut tally = Tally::default();
    let whole = undisturbed(&mut bench, &mut tally).await;
    loop {
        let Some(seed) = seeds.lock().next() else { break };
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

/// Counts instances, also those that go. The directory of one that is gone may be there for a moment longer.
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
