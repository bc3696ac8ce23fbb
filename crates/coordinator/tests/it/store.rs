//! Data on disk: restarts, the history of runs, full disks, invalid databases.

#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_coordinator::clock::SystemClock;
use muster_coordinator::views::Event;
use muster_coordinator::{Coordinator, History, OpenError, Options, RunnerSpec};
use muster_job::{FailureReason, JobId, JobStatus, PipelineId};
use muster_runner_api::service::{RunnerService, ServiceError};
use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::support::{Harness, Manager, NoFiles, TIMEOUT, job, new_pipeline, pipeline, producer, zip_of};

#[tokio::test]
async fn killed_coordinator_resumes_all_jobs() {
    let before = Harness::open().await;
    let manager = before.manager().await;
    let mut retried = job("c");
    retried.retry.max = 1;
    let id = before.create(vec![vec![producer("a"), job("b"), retried], vec![job("d")]]).await;
    let (first, second, third) = (manager.next_job().await, manager.next_job().await, manager.next_job().await);
    manager.upload(&first, ("archive", "zip", None), zip_of("out", "x")).await.expect("failed to store");
    manager.upload(&first, ("dotenv", "raw", None), b"KEY=value".to_vec()).await.expect("failed to store");
    manager.log(&first, 0, "first ").await.expect("was not accepted");
    manager.succeed(&first).await;
    manager.log(&second, 0, "half of ").await.expect("was not accepted");
    manager.fail(&third, "script_failure", Some(1)).await;

    let after = before.restart_after_kill().await;
    let manager = manager.connected_to(&after);
    let (old, new) = (before.view(id).await, after.view(id).await);
    let statuses = |view: &muster_coordinator::views::PipelineView| -> Vec<_> {
        view.jobs.iter().map(|job| (job.id, job.name.clone(), job.attempt, job.status, job.started_at)).collect()
    };
    assert_eq!(statuses(&old), statuses(&new));
    assert_eq!(old.summary.status, new.summary.status);

    // The running job continues with its token and its trace. The retry is in the queue, and later jobs follow.
    let wrong_start = manager.log(&second, 0, "").await.expect("no answer");
    assert_eq!((wrong_start.accepted, wrong_start.size), (false, 8));
    manager.log(&second, 8, "it").await.expect("was not accepted");
    manager.succeed(&second).await;
    let retry = manager.next_job().await;
    assert_eq!(retry.job_info.name, "c");
    assert!(retry.id.0 > third.id.0.max(second.id.0), "a retry must be a new job");
    manager.succeed(&retry).await;
    let last = manager.next_job().await;
    assert_eq!(last.dependencies.len(), 1);
    assert!(last.variables.iter().any(|variable| variable.key == "KEY"));
    manager.succeed(&last).await;
    assert_eq!(after.view(id).await.summary.status, JobStatus::Success);
    assert_eq!(after.coordinator.read_trace(second.id, 0).await.expect("failed to read"), "half of it");
}

#[tokio::test]
async fn accept_timeout_applies_after_a_restart() {
    let before = Harness::open().await;
    let manager = before.manager().await;
    before.create(vec![vec![job("a")]]).await;
    let silent = manager.next_job_with_key(Some("key")).await;
    let after = before.restart_after_kill().await;
    let manager = manager.connected_to(&after);
    let same = manager.next_job_with_key(Some("key")).await;
    assert_eq!((same.id, &same.token), (silent.id, &silent.token), "the key must still be valid");
    after.clock.advance(Duration::from_secs(60));
    assert_ne!(manager.next_job().await.token, silent.token);
}

#[tokio::test]
async fn delay_continues_after_a_restart() {
    let mut delayed = job("later");
    delayed.when = muster_pipeline::model::When::Delayed;
    delayed.start_in = Some(Duration::from_secs(60));
    let before = Harness::open().await;
    let manager = before.manager().await;
    let id = before.create(vec![vec![delayed]]).await;
    assert_eq!(before.status(id, "later").await, JobStatus::Scheduled);
    let after = before.restart_after_kill().await;
    assert_eq!(after.job(id, "later").await.scheduled_at, before.job(id, "later").await.scheduled_at);
    after.clock.advance(Duration::from_secs(60));
    assert_eq!(manager.connected_to(&after).next_job().await.job_info.name, "later");
}

#[tokio::test]
async fn first_ids_are_configurable_and_never_reused() {
    let first = |options: &mut Options| {
        options.first_pipeline_id = PipelineId(40);
        options.first_job_id = JobId(700);
    };
    let before = Harness::with(first).await;
    let id = before.create(vec![vec![job("a")]]).await;
    assert_eq!((id, before.job(id, "a").await.id), (PipelineId(40), JobId(700)));
    let after = before.restart_after_kill().await;
    let id = after.create(vec![vec![job("a")]]).await;
    assert_eq!((id, after.job(id, "a").await.id), (PipelineId(41), JobId(701)));
}

#[tokio::test]
async fn history_is_readable_during_and_after_a_run() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let id = harness.create(vec![vec![job("a")]]).await;
    let assigned = manager.next_job().await;
    manager.log(&assigned, 0, "a log").await.expect("was not accepted");
    manager.fail(&assigned, "script_failure", Some(1)).await;
    let view = harness.view(id).await;

    let history_of_running_coordinator =
        History::open(harness.dir.path()).await.expect("failed to open the history of a running coordinator");
    assert_eq!(history_of_running_coordinator.pipeline(id).await.expect("no pipeline"), view);
    harness.coordinator.shutdown().await;
    let history = History::open(harness.dir.path()).await.expect("failed to open the history after the shutdown");
    assert_eq!(history.pipelines(None, 10).await.expect("failed to read").len(), 1);
    assert_eq!(history.pipeline(id).await.expect("no pipeline"), view);
    assert_eq!(history.read_trace(assigned.id, 2).await.expect("failed to read"), "log");
    assert!(history.pipeline(PipelineId(99)).await.is_err());
}

#[tokio::test]
async fn calls_fail_after_the_shutdown() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    harness.coordinator.shutdown().await;
    assert!(harness.coordinator.pipelines(None, 10).await.is_err());
    assert!(harness.coordinator.request_job(manager.request(None)).await.is_err());
    harness.coordinator.shutdown().await;
}

#[tokio::test]
async fn open_error_names_the_directory() {
    let dir = tempfile::tempdir().expect("failed to create a directory");
    let file = dir.path().join("file");
    std::fs::write(&file, "x").expect("failed to create a file");
    let error = Coordinator::open(Options::new(file.join("state")))
        .await
        .expect_err("a directory below a file cannot be opened");
    assert!(matches!(error, OpenError::Unwritable { .. }), "{error}");
    assert!(error.to_string().contains("file/state"), "{error}");
    let error = History::open(dir.path()).await.expect_err("a directory without a run cannot be opened");
    assert!(matches!(error, OpenError::Missing { .. }), "{error}");
    std::fs::write(dir.path().join("coordinator.db"), "this is not a database, but a text of some length")
        .expect("failed to create a file");
    let error =
        Coordinator::open(Options::new(dir.path())).await.expect_err("a file that is not a database cannot be opened");
    assert!(matches!(error, OpenError::Database { .. }), "{error}");
}

#[tokio::test]
async fn database_of_a_newer_version_is_not_changed() {
    let harness = Harness::open().await;
    harness.coordinator.shutdown().await;
    let options = SqliteConnectOptions::new().filename(harness.dir.path().join("coordinator.db"));
    let mut database = SqliteConnection::connect_with(&options).await.expect("failed to open the database");
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (9000, 'from the future', 1, x'00', 0)",
    )
    .execute(&mut database)
    .await
    .expect("failed to insert a migration");
    database.close().await.expect("failed to close");
    let error =
        Coordinator::open(Options::new(harness.dir.path())).await.expect_err("a newer database must be rejected");
    assert!(matches!(error, OpenError::Newer { found: 9000, .. }), "{error}");
    let error = History::open(harness.dir.path()).await.expect_err("a newer database must be rejected");
    assert!(matches!(error, OpenError::Newer { found: 9000, .. }), "{error}");
}

#[tokio::test]
async fn secrets_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    harness.create(vec![vec![job("a")]]).await;
    let assigned = manager.next_job().await;
    manager.log(&assigned, 0, "x").await.expect("was not accepted");
    for name in
        ["coordinator.db", "coordinator.db-wal", "token.key", "id-token.key", &format!("traces/{}.log", assigned.id)]
    {
        let mode = std::fs::metadata(harness.dir.path().join(name)).expect(name).permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name} has mode {mode:o}");
    }
}

#[test]
fn full_disk_pauses_assignments_and_loses_nothing() {
    let test = "store::full_disk_pauses_assignments_and_loses_nothing";
    let script = "mount -t tmpfs -o size=2m tmpfs \"$1\"";
    let Some(dir) = muster_test_prerequisites::run_with_mounts(test, script) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("failed to create a runtime");
    runtime.block_on(full_disk(&dir));
}

async fn full_disk(dir: &Path) {
    let state = dir.join("state");
    let coordinator = Coordinator::open(Options { clock: Arc::new(SystemClock::new()), ..Options::new(&state) }).await;
    let coordinator = coordinator.expect("failed to start a coordinator");
    let runner = RunnerSpec { run_untagged: true, ..RunnerSpec::default() };
    let token = coordinator.create_runner(runner).await.expect("failed to create a runner").token;
    let manager = Manager::new(Arc::clone(&coordinator), token);
    let new = new_pipeline(pipeline(vec![vec![job("a")], vec![job("b")]]), Arc::new(NoFiles));
    let id = coordinator.create_pipeline(new).await.expect("failed to create a pipeline");
    let assigned = manager.next_job().await;
    manager.log(&assigned, 0, "before\n").await.expect("was not accepted");
    let mut events = coordinator.subscribe();

    let large_file = dir.join("large-file");
    fill_disk(&large_file);
    let error =
        manager.log(&assigned, 7, &"x".repeat(100_000)).await.expect_err("a log cannot be written to a full disk");
    assert!(matches!(error, ServiceError::StorageFull(_)), "{error}");
    // The database still has free pages, so the loop below creates pipelines until one is rejected. The tag keeps their
    // jobs from the manager.
    let mut tagged = job("other");
    tagged.tags = vec!["other".to_owned()];
    let other = || new_pipeline(pipeline(vec![vec![tagged.clone()]]), Arc::new(NoFiles));
    let error = loop {
        match tokio::time::timeout(TIMEOUT, coordinator.create_pipeline(other())).await.expect("no answer in time") {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("no space left"), "{error}");
    let problem = tokio::time::timeout(TIMEOUT, async {
        loop {
            // The first event reports the failed write of the trace.
            if let Ok(Event::StorageProblem(Some(text))) = events.recv().await
                && text.contains("database")
            {
                return text;
            }
        }
    });
    assert!(problem.await.expect("no event").to_lowercase().contains("no space left"));
    let summary = coordinator.pipeline(id).await.expect("failed to read").summary;
    assert!(summary.problems.iter().any(|problem| problem.contains("no space left")), "{summary:?}");
    let rejected = manager
        .update(&assigned, "success", |_| {})
        .await
        .expect_err("a change that is not durable must not be acknowledged");
    assert!(matches!(rejected, ServiceError::StorageFull(_)), "{rejected}");
    let full = Coordinator::open(Options::new(dir.join("other")))
        .await
        .expect_err("a database cannot be created on a full disk");
    assert!(matches!(full, OpenError::DiskFull { .. }), "{full}");

    std::fs::remove_file(&large_file).expect("failed to delete the large file");
    assert_eq!(manager.succeed(&assigned).await, JobStatus::Success, "the repeated report must be accepted");
    let next = manager.next_job().await;
    assert_eq!(next.job_info.name, "b");
    manager.succeed(&next).await;
    assert_eq!(coordinator.pipeline(id).await.expect("failed to read").summary.status, JobStatus::Success);
    assert_eq!(coordinator.read_trace(assigned.id, 0).await.expect("failed to read"), "before\n");
    coordinator.shutdown().await;
    let history = History::open(&state).await.expect("failed to read");
    assert_eq!(history.pipeline(id).await.expect("failed to read").summary.status, JobStatus::Success);
    let rejected = history.pipelines(None, 1000).await.expect("failed to read").pop().expect("no last pipeline");
    assert_eq!(rejected.status, JobStatus::Canceled, "a rejected pipeline must not run later");
}

fn fill_disk(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).expect("failed to create a file");
    for size in [64 * 1024, 4096, 512, 1] {
        let chunk = vec![0; size];
        while file.write_all(&chunk).is_ok() {}
    }
}

#[tokio::test]
async fn jobs_fail_after_their_timeout_or_the_contact_timeout() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let mut short = job("short");
    short.timeout = Some(Duration::from_secs(120));
    let mut long = job("long");
    long.timeout = Some(Duration::from_secs(24 * 3600));
    let id = harness.create(vec![vec![short, long]]).await;
    let (short, long) = (manager.next_job().await, manager.next_job().await);
    assert_eq!(short.runner_info.timeout, 120);
    manager.report_running(&short).await;
    manager.report_running(&long).await;
    // After the timeout of a job, the coordinator waits 15 minutes for the final report of the runner before it fails the job.
    harness.clock.advance(Duration::from_secs(120 + 15 * 60));
    harness.wait_until(id, |view| view.job("short").is_some_and(|job| job.status == JobStatus::Failed)).await;
    assert_eq!(harness.job(id, "short").await.failure_reason, Some(FailureReason::ServerTimeoutRunning));
    // A report from the runner restarts the contact timeout of one hour.
    manager.report_running(&long).await;
    harness.clock.advance(Duration::from_secs(3599));
    assert_eq!(harness.status(id, "long").await, JobStatus::Running);
    harness.clock.advance(Duration::from_secs(1));
    harness.wait_until(id, |view| view.job("long").is_some_and(|job| job.status == JobStatus::Failed)).await;
    assert_eq!(harness.job(id, "long").await.failure_reason, Some(FailureReason::NoUpdatesRunning));
}
