//! Data on disk: restarts, past runs, full disks, invalid databases.

#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use muster_coordinator::clock::SystemClock;
use muster_coordinator::views::Event;
use muster_coordinator::{Coordinator, History, NewRunner, OpenError, Options};
use muster_job::{FailureReason, JobId, JobStatus, PipelineId};
use muster_runner_api::service::{RunnerService, ServiceError};
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::support::{Bench, Manager, NoFiles, SOON, job, new_pipeline, pipeline, producer, zip_of};

#[tokio::test]
async fn killed_coordinator_resumes_all_jobs() {
    let before = Bench::open().await;
    let manager = before.manager().await;
    let mut retried = job("c");
    retried.retry.max = 1;
    let id = before.create(vec![vec![producer("a"), job("b"), retried], vec![job("d")]]).await;
    let (first, second, third) = (manager.take().await, manager.take().await, manager.take().await);
    manager.upload(&first, ("archive", "zip", None), zip_of("out", "x")).await.expect("kept");
    manager.upload(&first, ("dotenv", "raw", None), b"KEY=value".to_vec()).await.expect("kept");
    manager.log(&first, 0, "first ").await.expect("accepted");
    manager.succeed(&first).await;
    manager.log(&second, 0, "half of ").await.expect("accepted");
    manager.fail(&third, "script_failure", Some(1)).await;

    let after = before.restart_after_kill().await;
    let manager = manager.at(&after);
    let (was, is) = (before.view(id).await, after.view(id).await);
    let statuses = |view: &muster_coordinator::views::PipelineView| -> Vec<_> {
        view.jobs.iter().map(|job| (job.id, job.name.clone(), job.attempt, job.status, job.started_at)).collect()
    };
    assert_eq!(statuses(&was), statuses(&is));
    assert_eq!(was.summary.status, is.summary.status);

    // The running job continues with its token and its trace; the retry is in the queue; later jobs follow.
    let lost = manager.log(&second, 0, "").await.expect("answered");
    assert_eq!((lost.accepted, lost.size), (false, 8));
    manager.log(&second, 8, "it").await.expect("accepted");
    manager.succeed(&second).await;
    let again = manager.take().await;
    assert_eq!(again.job_info.name, "c");
    assert!(again.id.0 > third.id.0.max(second.id.0), "a retry is a new job");
    manager.succeed(&again).await;
    let last = manager.take().await;
    assert_eq!(last.dependencies.len(), 1);
    assert!(last.variables.iter().any(|variable| variable.key == "KEY"));
    manager.succeed(&last).await;
    assert_eq!(after.view(id).await.summary.status, JobStatus::Success);
    assert_eq!(after.coordinator.read_trace(second.id, 0).await.expect("readable"), "half of it");
}

#[tokio::test]
async fn accept_timeout_applies_after_a_restart() {
    let before = Bench::open().await;
    let manager = before.manager().await;
    before.create(vec![vec![job("a")]]).await;
    let silent = manager.take_with(Some("key")).await;
    let after = before.restart_after_kill().await;
    let manager = manager.at(&after);
    let same = manager.take_with(Some("key")).await;
    assert_eq!((same.id, &same.token), (silent.id, &silent.token), "the key still counts");
    after.clock.advance(Duration::from_secs(60));
    assert_ne!(manager.take().await.token, silent.token);
}

#[tokio::test]
async fn delay_continues_after_a_restart() {
    let mut delayed = job("later");
    delayed.when = muster_pipeline::model::When::Delayed;
    delayed.start_in = Some(Duration::from_secs(60));
    let before = Bench::open().await;
    let manager = before.manager().await;
    let id = before.create(vec![vec![delayed]]).await;
    assert_eq!(before.status(id, "later").await, JobStatus::Scheduled);
    let after = before.restart_after_kill().await;
    assert_eq!(after.job(id, "later").await.scheduled_at, before.job(id, "later").await.scheduled_at);
    after.clock.advance(Duration::from_secs(60));
    assert_eq!(manager.at(&after).take().await.job_info.name, "later");
}

#[tokio::test]
async fn first_ids_are_configurable_and_never_reused() {
    let first = |options: &mut Options| {
        options.first_pipeline_id = PipelineId(40);
        options.first_job_id = JobId(700);
    };
    let before = Bench::with(first).await;
    let id = before.create(vec![vec![job("a")]]).await;
    assert_eq!((id, before.job(id, "a").await.id), (PipelineId(40), JobId(700)));
    let after = before.restart_after_kill().await;
    let id = after.create(vec![vec![job("a")]]).await;
    assert_eq!((id, after.job(id, "a").await.id), (PipelineId(41), JobId(701)));
}

#[tokio::test]
async fn past_run_is_readable_after_a_kill() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    let id = bench.create(vec![vec![job("a")]]).await;
    let taken = manager.take().await;
    manager.log(&taken, 0, "a log").await.expect("accepted");
    manager.fail(&taken, "script_failure", Some(1)).await;
    let view = bench.view(id).await;

    let alive = History::open(bench.dir.path()).await.expect("readable while it runs");
    assert_eq!(alive.pipeline(id).await.expect("the pipeline"), view);
    bench.coordinator.shutdown().await;
    let past = History::open(bench.dir.path()).await.expect("readable afterwards");
    assert_eq!(past.pipelines(None, 10).await.expect("readable").len(), 1);
    assert_eq!(past.pipeline(id).await.expect("the pipeline"), view);
    assert_eq!(past.read_trace(taken.id, 2).await.expect("readable"), "log");
    assert!(past.pipeline(PipelineId(99)).await.is_err());
}

#[tokio::test]
async fn calls_fail_after_the_shutdown() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    bench.coordinator.shutdown().await;
    assert!(bench.coordinator.pipelines(None, 10).await.is_err());
    assert!(bench.coordinator.request_job(manager.request(None)).await.is_err());
    bench.coordinator.shutdown().await;
}

#[tokio::test]
async fn open_error_names_the_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    std::fs::write(&file, "x").expect("a file");
    let error = Coordinator::open(Options::new(file.join("state"))).await.expect_err("below a file");
    assert!(matches!(error, OpenError::Unwritable { .. }), "{error}");
    assert!(error.to_string().contains("file/state"), "{error}");
    let error = History::open(dir.path()).await.expect_err("no run");
    assert!(matches!(error, OpenError::Missing { .. }), "{error}");
    std::fs::write(dir.path().join("coordinator.db"), "this is no database, it is a text of some length")
        .expect("a file");
    let error = Coordinator::open(Options::new(dir.path())).await.expect_err("no database");
    assert!(matches!(error, OpenError::Database { .. }), "{error}");
}

#[tokio::test]
async fn database_of_a_newer_version_is_not_changed() {
    let bench = Bench::open().await;
    bench.coordinator.shutdown().await;
    let options = SqliteConnectOptions::new().filename(bench.dir.path().join("coordinator.db"));
    let mut database = SqliteConnection::connect_with(&options).await.expect("the database");
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (9000, 'from the future', 1, x'00', 0)",
    )
    .execute(&mut database)
    .await
    .expect("a newer version");
    database.close().await.expect("closed");
    let error = Coordinator::open(Options::new(bench.dir.path())).await.expect_err("newer");
    assert!(matches!(error, OpenError::Newer { found: 9000, .. }), "{error}");
    let error = History::open(bench.dir.path()).await.expect_err("newer");
    assert!(matches!(error, OpenError::Newer { found: 9000, .. }), "{error}");
}

#[tokio::test]
async fn secrets_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    bench.create(vec![vec![job("a")]]).await;
    let taken = manager.take().await;
    manager.log(&taken, 0, "x").await.expect("accepted");
    for name in
        ["coordinator.db", "coordinator.db-wal", "token.key", "id-token.key", &format!("traces/{}.log", taken.id)]
    {
        let mode = std::fs::metadata(bench.dir.path().join(name)).expect(name).permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name} has mode {mode:o}");
    }
}

/// Environment variable with the mount point, set in the process that has its own small file system.
const SMALL_DISK: &str = "MUSTER_TEST_SMALL_DISK";

/// Runs a test of this binary again with a file system of 2 MB in its own mount namespace, if this machine allows that.
fn on_a_small_disk(test: &str) {
    if !muster_test_needs::mounts() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!("mount -t tmpfs -o size=2m tmpfs '{}' || exit 77; exec \"$0\" \"$@\"", dir.path().display());
    let status = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        .env(SMALL_DISK, dir.path())
        .status();
    assert!(status.as_ref().is_ok_and(|status| status.success()), "{test} on a small disk: {status:?}");
}

#[test]
fn full_disk_pauses_assignments_and_loses_nothing() {
    let Some(dir) = std::env::var_os(SMALL_DISK) else {
        on_a_small_disk("store::full_disk_pauses_assignments_and_loses_nothing");
        return;
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(full_disk(Path::new(&dir)));
}

async fn full_disk(dir: &Path) {
    let state = dir.join("state");
    let coordinator = Coordinator::open(Options { clock: Arc::new(SystemClock::new()), ..Options::new(&state) }).await;
    let coordinator = coordinator.expect("a coordinator");
    let runner = NewRunner { run_untagged: true, ..NewRunner::default() };
    let token = coordinator.create_runner(runner).await.expect("a runner").token;
    let manager = Manager::new(Arc::clone(&coordinator), token);
    let new = new_pipeline(pipeline(vec![vec![job("a")], vec![job("b")]]), Arc::new(NoFiles));
    let id = coordinator.create_pipeline(new).await.expect("a pipeline");
    let taken = manager.take().await;
    manager.log(&taken, 0, "before\n").await.expect("accepted");
    let mut events = coordinator.subscribe();

    let ballast = dir.join("ballast");
    fill(&ballast);
    let error = manager.log(&taken, 7, &"x".repeat(100_000)).await.expect_err("no space for the log");
    assert!(matches!(error, ServiceError::StorageFull(_)), "{error}");
    // The database uses its free pages first; then it is full. No job of these pipelines matches the manager.
    let mut tagged = job("other");
    tagged.tags = vec!["other".to_owned()];
    let other = || new_pipeline(pipeline(vec![vec![tagged.clone()]]), Arc::new(NoFiles));
    let error = loop {
        match tokio::time::timeout(SOON, coordinator.create_pipeline(other())).await.expect("no hang") {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("no space left"), "{error}");
    let problem = tokio::time::timeout(SOON, async {
        loop {
            // The first event is about the trace, which has its own problem.
            if let Ok(Event::StorageProblem(Some(text))) = events.recv().await
                && text.contains("database")
            {
                return text;
            }
        }
    });
    assert!(problem.await.expect("an event").to_lowercase().contains("no space left"));
    let summary = coordinator.pipeline(id).await.expect("still readable").summary;
    assert!(summary.problems.iter().any(|problem| problem.contains("no space left")), "{summary:?}");
    let refused = manager.update(&taken, "success", |_| {}).await.expect_err("not durable, not acknowledged");
    assert!(matches!(refused, ServiceError::StorageFull(_)), "{refused}");
    let full = Coordinator::open(Options::new(dir.join("other"))).await.expect_err("no space for another");
    assert!(matches!(full, OpenError::DiskFull { .. }), "{full}");

    std::fs::remove_file(&ballast).expect("space again");
    assert_eq!(manager.succeed(&taken).await, JobStatus::Success, "the repeated report is accepted");
    let next = manager.take().await;
    assert_eq!(next.job_info.name, "b");
    manager.succeed(&next).await;
    assert_eq!(coordinator.pipeline(id).await.expect("readable").summary.status, JobStatus::Success);
    assert_eq!(coordinator.read_trace(taken.id, 0).await.expect("readable"), "before\n");
    coordinator.shutdown().await;
    let past = History::open(&state).await.expect("whole");
    assert_eq!(past.pipeline(id).await.expect("stored").summary.status, JobStatus::Success);
    let refused = past.pipelines(None, 1000).await.expect("readable").pop().expect("the last pipeline");
    assert_eq!(refused.status, JobStatus::Canceled, "what was refused does not run later");
}

/// Fills the disk.
fn fill(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).expect("a file");
    for size in [64 * 1024, 4096, 512, 1] {
        let piece = vec![0; size];
        while file.write_all(&piece).is_ok() {}
    }
}

#[tokio::test]
async fn overdue_and_silent_jobs_are_ended() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    let mut short = job("short");
    short.timeout = Some(Duration::from_secs(120));
    let mut long = job("long");
    long.timeout = Some(Duration::from_secs(24 * 3600));
    let id = bench.create(vec![vec![short, long]]).await;
    let (short, long) = (manager.take().await, manager.take().await);
    assert_eq!(short.runner_info.timeout, 120);
    manager.running(&short).await;
    manager.running(&long).await;
    bench.clock.advance(Duration::from_secs(120 + 15 * 60));
    bench.until(id, |view| view.job("short").is_some_and(|job| job.status == JobStatus::Failed)).await;
    assert_eq!(bench.job(id, "short").await.failure_reason, Some(FailureReason::ServerTimeoutRunning));
    // A report from the runner extends the contact timeout.
    manager.running(&long).await;
    bench.clock.advance(Duration::from_secs(3599));
    assert_eq!(bench.status(id, "long").await, JobStatus::Running);
    bench.clock.advance(Duration::from_secs(1));
    bench.until(id, |view| view.job("long").is_some_and(|job| job.status == JobStatus::Failed)).await;
    assert_eq!(bench.job(id, "long").await.failure_reason, Some(FailureReason::NoUpdatesRunning));
}
