//! Kills processes as [`crate::kill`] does, while jobs run in containers. Containers and the engine are killed, too. No object of a job remains
//! at the engine.
//!
//! Long run: `MUSTER_TEST_RUNS=100 cargo test -p muster-tests --test system docker_kill -- --nocapture`

use muster_job::JobId;
use muster_test_prerequisites::DockerEngine;
use muster_tests::harness::Harness;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::checks;
use crate::kill::{self, JOBS, Point, Tally, Victim};

const CONCURRENT: usize = 2;
const DEFAULT_RUNS: u64 = 8;

#[tokio::test(flavor = "multi_thread")]
async fn killed_processes_lose_and_duplicate_no_job_and_leave_nothing_at_the_engine() {
    let Some(engine) = DockerEngine::isolated() else { return };
    let Some(mut harness) = Harness::with_containers(CONCURRENT, engine).await else { return };
    let mut tally = Tally::default();
    let run_time = kill::run_without_kill(&mut harness, &mut tally).await;
    for seed in checks::seeds(DEFAULT_RUNS) {
        let mut rng = StdRng::seed_from_u64(seed);
        let victims = [Victim::Manager, Victim::Agent, Victim::Container, Victim::Engine, Victim::EngineProcess];
        let victim = victims[rng.random_range(0..victims.len())];
        let point = Point::random(&mut rng);
        println!("seed {seed}: {victim:?} at {point:?}");
        kill::run(&mut harness, Some((victim, point, run_time)), &mut rng, &mut tally).await;
    }
    let jobs = i64::try_from(tally.runs).unwrap() * JOBS;
    checks::check_all_jobs(&harness, CONCURRENT, (1..=jobs).map(JobId)).await;
    tally.print_and_check();
}
