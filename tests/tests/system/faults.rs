//! The network drops, delays, duplicates, truncates and rejects each kind of API call. No job is lost, no job runs
//! twice, and every byte of logs and artifacts arrives once.
//!
//! A GitLab-like server cannot recover a job in a lost response, so the test with such a server does not drop
//! these responses.
//!
//! Long run: `MUSTER_TEST_RUNS=1000 cargo test -p muster-tests --test system network -- --nocapture`

use std::io::Read as _;
use std::sync::Arc;

use muster_job::JobId;
use muster_tests::harness::Harness;
use muster_tests::proxy::{ApiCall, Fault};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::checks::{self, Lines};

/// Number of test environments that run at the same time. They are idle most of the time.
const PARALLEL_HARNESSES: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn faulty_network_loses_and_duplicates_nothing() {
    run_seeds(24, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn faulty_network_to_gitlab_like_server_loses_and_duplicates_nothing() {
    run_seeds(12, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_of_a_lost_grpc_response_runs_once() {
    let harness = Harness::start(1).await;
    // The first request uses HTTP, and the second gRPC.
    harness.push(1, &["true"], &json!({}));
    harness.coordinator.wait_for_end(JobId(1)).await;
    harness.coordinator.wait_for_held_requests(1).await;
    // The held request has no fault, and its response brings the second job. The response to the next request is lost.
    harness.proxy.select_faults(Box::new(|kind| (kind == ApiCall::Request).then_some(Fault::DropAfter)));
    harness.push(2, &["true"], &json!({}));
    harness.coordinator.wait_for_end(JobId(2)).await;
    harness.coordinator.wait_for_held_requests(1).await;
    let over_grpc = harness.proxy.grpc_requests();
    assert!(over_grpc >= 2, "{over_grpc} requests used gRPC");
    harness.proxy.select_faults(Box::new(|_| None));
    harness.push(3, &["echo started"], &json!({}));
    let job = harness.coordinator.wait_for_end(JobId(3)).await;
    assert_eq!((job.assignments, job.text().matches("\nstarted\n").count()), (1, 1), "{}", job.text());
    assert_eq!(harness.proxy.grpc_requests(), over_grpc, "the job of the lost response must be requested over HTTP");
}

async fn run_seeds(default_runs: u64, gitlab_like: bool) {
    let seeds = Arc::new(Mutex::new(checks::seeds(default_runs)));
    let workers: Vec<_> =
        (0..PARALLEL_HARNESSES).map(|_| tokio::spawn(run_harness(Arc::clone(&seeds), gitlab_like))).collect();
    for worker in workers {
        worker.await.unwrap();
    }
}

async fn run_harness(seeds: Arc<Mutex<std::ops::Range<u64>>>, gitlab_like: bool) {
    let harness = if gitlab_like { Harness::start_gitlab_like(2).await } else { Harness::start(2).await };
    let mut runs = 0;
    loop {
        let Some(seed) = seeds.lock().next() else { break };
        run(&harness, seed, runs).await;
        runs += 1;
    }
    let jobs = (1..=2 * i64::try_from(runs).unwrap()).map(JobId);
    checks::check_all_jobs(&harness, 2, jobs).await;
}

/// Runs a producer and a consumer of artifacts with the faults of one seed. `number` counts the earlier runs of the
/// environment.
async fn run(harness: &Harness, seed: u64, number: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    // One of six seeds has faults in all kinds of calls, the others in one kind.
    let focus = ApiCall::ALL.get(usize::try_from(seed % 6).unwrap()).copied();
    let (producer_lines, consumer_lines) = (Lines::random(&mut rng), Lines::random(&mut rng));
    let content: String = (0..rng.random_range(1..5000)).map(|_| rng.random_range('a'..='z')).collect();
    println!("seed {seed}: {focus:?}");
    let mut faults_left = rng.random_range(1..8);
    let mut fault_rng = rng.clone();
    let gitlab_like = harness.coordinator.imitates_gitlab();
    harness.proxy.select_faults(Box::new(move |kind| {
        let has_fault = faults_left > 0 && focus.is_none_or(|focus| focus == kind) && fault_rng.random_bool(0.6);
        faults_left -= u32::from(has_fault);
        let fault = has_fault.then(|| Fault::random(&mut fault_rng));
        fault.filter(|fault| !(gitlab_like && kind == ApiCall::Request && fault.loses_response()))
    }));
    let first = i64::try_from(number).unwrap() * 2 + 1;
    let (producer, consumer) = (JobId(first), JobId(first + 1));
    let artifacts = json!([{ "name": "out", "paths": ["out"], "artifact_type": "archive", "artifact_format": "zip" }]);
    harness.push(
        producer.0,
        &[&format!("printf %s {content} > out"), &producer_lines.script()],
        &json!({ "artifacts": artifacts }),
    );
    let job = harness.coordinator.wait_for_end(producer).await;
    checks::check_success(harness, producer, &job, producer_lines);
    assert_eq!(unpack_artifact(&job.artifacts["out.zip"]), content, "seed {seed}");
    let token = format!("jobtoken{consumer}jobtoken");
    let dependencies = json!([{ "id": producer.0, "token": token, "name": "producer",
        "artifacts_file": { "filename": "out.zip", "size": 1 } }]);
    harness.push(consumer.0, &["cat out; echo", &consumer_lines.script()], &json!({ "dependencies": dependencies }));
    let job = harness.coordinator.wait_for_end(consumer).await;
    checks::check_success(harness, consumer, &job, consumer_lines);
    assert!(job.text().contains(&format!("\n{content}\n")), "seed {seed}: the consumer received other artifacts");
}

fn unpack_artifact(archive: &[u8]) -> String {
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(archive)).unwrap();
    let mut text = String::new();
    archive.by_name("out").unwrap().read_to_string(&mut text).unwrap();
    text
}
