//! Like [`crate::kill`], with jobs in containers. Also kills containers and the engine. No object of a job remains at
//! the engine.
//!
//! Long run: `MUSTER_TEST_RUNS=100 cargo test -p muster-tests --test system docker_kill -- --nocapture`

use muster_test_prerequisites::DockerEngine;
use muster_tests::harness::Harness;

use crate::kill::{self, Victim};

const CONCURRENT: usize = 2;
const DEFAULT_RUNS: u64 = 8;

#[tokio::test(flavor = "multi_thread")]
async fn killed_processes_lose_and_duplicate_no_job_and_leave_nothing_at_the_engine() {
    let Some(engine) = DockerEngine::isolated() else { return };
    let Some(harness) = Harness::with_containers(CONCURRENT, engine).await else { return };
    let victims = [Victim::Manager, Victim::Agent, Victim::Container, Victim::Engine, Victim::EngineProcess];
    kill::run_seeds(harness, CONCURRENT, &victims, DEFAULT_RUNS).await;
}
