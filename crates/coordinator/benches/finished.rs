//! Measures what finished pipelines cost: start time and memory with an empty and a full database, and memory growth.
//!
//! `cargo bench -p muster-coordinator --bench finished -- [PIPELINES]`; the default is 100,000. Each measurement runs
//! in a separate process.
//!
//! In one process, memory grows only until the page cache of SQLite is full (2 MiB per connection).

#![expect(clippy::print_stdout, clippy::expect_used, reason = "a measurement for a terminal")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use muster_coordinator::{Coordinator, GitFacts, NewPipeline, NoFiles, Options, ProjectFacts, RunnerSpec};
use muster_job::{PipelineId, ProjectId};
use muster_pipeline::context::Context;
use muster_runner_api::service::RunnerService;
use muster_runner_api::wire::{JobRequest, UpdateRequest};
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

const RUNS: usize = 9;
/// Number of pipelines that one process runs sequentially. The first tenth is the warm-up.
const SEQUENTIAL_PIPELINES: i64 = 2000;

fn memory_kib() -> u64 {
    let status =
        std::fs::read_to_string("/proc/self/status").expect("failed to read the memory use, which needs Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("no line VmRSS");
    line.trim().trim_end_matches(" kB").parse().expect("not a number")
}

async fn run_one(coordinator: &Coordinator, token: &str) {
    let yaml = b"test: {script: [make test], artifacts: {paths: [out]}}";
    let context = Context { ref_name: "main".to_owned(), ..Context::default() };
    let compiled = muster_pipeline::compile(yaml, &context, &NoFiles).pipeline.expect("no pipeline");
    let project = ProjectFacts::new(ProjectId(1), "grp/app");
    let new = NewPipeline::new(project, context, compiled, GitFacts::default(), Arc::new(NoFiles));
    coordinator.create_pipeline(new).await.expect("failed to create");
    let request = JobRequest { token: token.to_owned(), last_update: "x".to_owned(), ..JobRequest::default() };
    let job = coordinator.request_job(request).await.expect("no answer").job.expect("no job");
    coordinator
        .append_trace(job.id, &job.token, 0, bytes::Bytes::from_static(b"a log"))
        .await
        .expect("was not accepted");
    let report = UpdateRequest { token: job.token.clone(), state: "success".to_owned(), ..UpdateRequest::default() };
    coordinator.update_job(job.id, report).await.expect("was not accepted");
}

async fn open(dir: &Path) -> (Arc<Coordinator>, String) {
    let coordinator = Coordinator::open(Options::new(dir)).await.expect("failed to start a coordinator");
    let runner = RunnerSpec { run_untagged: true, ..RunnerSpec::default() };
    let token = coordinator.create_runner(runner).await.expect("failed to create a runner").token;
    (coordinator, token)
}

/// Creates a state directory with finished pipelines, by copying the rows of one.
async fn seed(dir: &Path, pipelines: i64) {
    let (coordinator, token) = open(dir).await;
    if pipelines > 0 {
        run_one(&coordinator, &token).await;
    }
    coordinator.shutdown().await;
    let options = SqliteConnectOptions::new().filename(dir.join("coordinator.db"));
    let mut database = SqliteConnection::connect_with(&options).await.expect("failed to open the database");
    let numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?)";
    let rows = [
        "INSERT INTO pipelines SELECT id + i, root + i, parent_pipeline, parent_bridge, open, status, created_at,
         finished_at, detail, spec, compiled FROM pipelines, n WHERE id = 1",
        "INSERT INTO jobs SELECT id + i, pipeline_id + i, job_index, name, stage, kind, status, attempt, created_at,
         queued_at, started_at, finished_at, runner_id, system_id, failure_reason, exit_code, coverage, detail
         FROM jobs, n WHERE id = 1",
    ];
    for text in rows.into_iter().filter(|_| pipelines > 1) {
        let text = sqlx::AssertSqlSafe(format!("{numbers} {text}"));
        sqlx::query(text).bind(pipelines).execute(&mut database).await.expect("failed to copy");
    }
    database.close().await.expect("failed to close");
}

/// Prints one measurement for the parent process: start time in microseconds, and memory in KiB.
async fn start(dir: &Path, pipelines: i64) {
    let started = Instant::now();
    let coordinator = Coordinator::open(Options::new(dir)).await.expect("failed to start a coordinator");
    coordinator.stuck_jobs().await.expect("the coordinator did not answer");
    let (elapsed, memory) = (started.elapsed().as_micros(), memory_kib());
    if pipelines > 0 {
        let view = coordinator.pipeline(PipelineId(pipelines)).await.expect("no last pipeline");
        assert!(view.summary.status.is_complete() && view.jobs.len() == 1, "{view:?}");
    }
    coordinator.shutdown().await;
    println!("{elapsed} {memory}");
}

/// Runs [`SEQUENTIAL_PIPELINES`]. Prints the memory in KiB after a tenth of them, and after all of them.
async fn run_sequentially(dir: &Path) {
    let (coordinator, token) = open(dir).await;
    let mut early = 0;
    for number in 1..=SEQUENTIAL_PIPELINES {
        run_one(&coordinator, &token).await;
        if number == SEQUENTIAL_PIPELINES / 10 {
            early = memory_kib();
        }
    }
    println!("{early} {}", memory_kib());
    coordinator.shutdown().await;
}

fn measure(arguments: &[&str]) -> (f64, f64) {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program).args(arguments).output().expect("failed to start");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("the output is not UTF-8");
    let mut numbers = text.split_whitespace().map(|number| number.parse::<f64>().expect("not a number"));
    (numbers.next().expect("no first number"), numbers.next().expect("no second number"))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().expect("no values")
}

fn compare(pipelines: &str) {
    let directories = ["0", pipelines].map(|count| {
        let dir = tempfile::tempdir().expect("failed to create a directory");
        run_seed(dir.path(), count);
        (dir, count)
    });
    // Alternate between both directories, so that other load on the machine affects both.
    let mut runs = [Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        for ((dir, count), runs) in directories.iter().zip(&mut runs) {
            runs.push(measure(&["start", dir.path().to_str().expect("a UTF-8 path"), count]));
        }
    }
    let results: Vec<(f64, f64)> = runs
        .iter()
        .map(|runs| (median(runs.iter().map(|run| run.0).collect()), median(runs.iter().map(|run| run.1).collect())))
        .collect();
    for ((_, count), (time, memory)) in directories.iter().zip(&results) {
        println!("{count:>7} finished pipelines: start {:.1} ms, memory {:.1} MiB", time / 1000.0, memory / 1024.0);
    }
    if let [empty, full] = results.as_slice() {
        println!("ratio: start time {:.2}, memory {:.2}", full.0 / empty.0, full.1 / empty.1);
    }
    let dir = tempfile::tempdir().expect("failed to create a directory");
    let (early, late) = measure(&["sequential", dir.path().to_str().expect("a UTF-8 path"), "0"]);
    println!(
        "one process: memory {:.1} MiB after {} pipelines, {:.1} MiB after {SEQUENTIAL_PIPELINES}, ratio {:.2}",
        early / 1024.0,
        SEQUENTIAL_PIPELINES / 10,
        late / 1024.0,
        late / early
    );
}

fn run_seed(dir: &Path, count: &str) {
    let program = std::env::current_exe().expect("this program");
    let status = Command::new(program).arg("seed").arg(dir).arg(count).status().expect("failed to start");
    assert!(status.success(), "{status}");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("failed to create a runtime");
    let number = |count: &str| count.parse().expect("a number of pipelines");
    match arguments.as_slice() {
        ["seed", dir, count] => runtime.block_on(seed(Path::new(dir), number(count))),
        ["start", dir, count] => runtime.block_on(start(Path::new(dir), number(count))),
        ["sequential", dir, _] => runtime.block_on(run_sequentially(Path::new(dir))),
        [count] => compare(count),
        _ => compare("100000"),
    }
}
