//! The network drops, delays, duplicates, truncates and rejects each kind of call. No job is lost, none runs twice, and every byte of
//! logs and artifacts arrives once.
//!
//! The same holds for a server that behaves like GitLab, which has no idempotency keys. There only the responses to job requests are not
//! lost, because nothing can recover them. `crates/manager/tests/it/promises.rs` tests with a simulated clock how soon after the last
//! fault jobs end.
//!
//! All of it: `MUSTER_TEST_RUNS=1000 cargo test -p muster-tests --test proofs network -- --nocapture`

use std::io::Read as _;
use std::sync::Arc;

use muster_job::JobId;
use muster_tests::bench::Bench;
use muster_tests::proxy::{Fault, Kind};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::life::{self, Lines};

/// Number of environments that run at the same time. They mostly wait.
const WORLDS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_network_loses_and_doubles_nothing() {
    all(24, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_network_before_gitlab_loses_and_doubles_nothing() {
    all(12, true).await;
}

async fn all(sample: u64, at_gitlab: bool) {
    let seeds = Arc::new(Mutex::new(life::seeds(sample)));
    let worlds: Vec<_> = (0..WORLDS).map(|_| tokio::spawn(world(Arc::clone(&seeds), at_gitlab))).collect();
    for world in worlds {
        world.await.unwrap();
    }
}

async fn world(seeds: Arc<Mutex<std::ops::Range<u64>>>, at_gitlab: bool) {
    let bench = if at_gitlab { Bench::start_at_gitlab(2).await } else { Bench::start(2).await };
    let mut runs = 0;
    loop {
        let Some(seed) = seeds.lock().next() else { break };
        run(&bench, seed, runs).await;
        runs += 1;
    }
    let jobs = (1..=2 * i64::try_from(runs).unwrap()).map(JobId);
    life::check_world(&bench, 2, jobs).await;
}

/// Runs a producer and a consumer of artifacts under the faults of one seed.
async fn run(bench: &Bench, seed: u64, number: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    // The faults affect each kind of call in turn, then all kinds.
    let focus = Kind::ALL.get(usize::try_from(seed % 6).unwrap()).copied();
    let (lines, other) = (Lines::any(&mut rng), Lines::any(&mut rng));
    let content: String = (0..rng.random_range(1..5000)).map(|_| rng.random_range('a'..='z')).collect();
    println!("seed {seed}: {focus:?}");
    let mut left = rng.random_range(1..8);
    let mut chance = rng.clone();
    let at_gitlab = bench.coordinator.is_as_gitlab();
    bench.proxy.decide(Box::new(move |kind| {
        let hit = left > 0 && focus.is_none_or(|focus| focus == kind) && chance.random_bool(0.6);
        left -= u32::from(hit);
        let fault = hit.then(|| Fault::any(&mut chance));
        fault.filter(|fault| !(at_gitlab && kind == Kind::Request && fault.loses_an_answer()))
    }));
    let first = i64::try_from(number).unwrap() * 2 + 1;
    let (producer, consumer) = (JobId(first), JobId(first + 1));
    let artifacts = json!([{ "name": "out", "paths": ["out"], "artifact_type": "archive", "artifact_format": "zip" }]);
    bench.push(
        producer.0,
        &[&format!("printf %s {content} > out"), &lines.script()],
        &json!({ "artifacts": artifacts }),
    );
    let job = bench.coordinator.wait_for_end(producer).await;
    life::check_success(bench, producer, &job, lines);
    assert_eq!(unpacked(&job.artifacts["out.zip"]), content, "seed {seed}");
    let token = format!("jobtoken{consumer}jobtoken");
    let from = json!([{ "id": producer.0, "token": token, "name": "producer",
        "artifacts_file": { "filename": "out.zip", "size": 1 } }]);
    bench.push(consumer.0, &["cat out; echo", &other.script()], &json!({ "dependencies": from }));
    let job = bench.coordinator.wait_for_end(consumer).await;
    life::check_success(bench, consumer, &job, other);
    assert!(job.text().contains(&format!("\n{content}\n")), "seed {seed}: the artifacts differ");
}

fn unpacked(archive: &[u8]) -> String {
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(archive)).unwrap();
    let mut text = String::new();
    archive.by_name("out").unwrap().read_to_string(&mut text).unwrap();
    text
}
