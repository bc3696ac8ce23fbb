//! Which calls about a job count as contact by the job's manager, and the interval of trace uploads.
//!
//! See docs/spec/runner-api.md, sections 3.2 and 9.2.

#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

use std::time::Duration;

use muster_runner_api::service::RunnerService;
use muster_runner_api::wire::JobRequest;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection, Row};

use crate::support::{Harness, job, zip_of};

async fn contacted_at(harness: &Harness) -> i64 {
    let options = SqliteConnectOptions::new().filename(harness.dir.path().join("coordinator.db")).read_only(true);
    let mut database = SqliteConnection::connect_with(&options).await.expect("failed to open the database");
    let row = sqlx::query("SELECT contacted_at FROM managers").fetch_one(&mut database).await.expect("no manager");
    row.get("contacted_at")
}

#[tokio::test]
async fn reports_and_traces_count_as_contact_but_artifacts_do_not() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let mut long = job("a");
    long.timeout = Some(Duration::from_secs(24 * 3600));
    harness.create(vec![vec![long]]).await;
    let assigned = manager.next_job().await;
    manager.report_running(&assigned).await;
    let first = contacted_at(&harness).await;
    let advance_clock = || harness.clock.advance(Duration::from_secs(50 * 60));
    advance_clock();
    manager.upload(&assigned, ("archive", "zip", None), zip_of("out", "x")).await.expect("failed to store");
    assert_eq!(contacted_at(&harness).await, first);
    manager.log(&assigned, 0, "hello\n").await.expect("was not accepted");
    let second = contacted_at(&harness).await;
    assert!(second > first);
    advance_clock();
    manager.report_running(&assigned).await;
    assert!(contacted_at(&harness).await > second);
}

#[tokio::test]
async fn calls_of_a_manager_without_system_id_count_as_contact() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let mut long = job("a");
    long.timeout = Some(Duration::from_secs(24 * 3600));
    harness.create(vec![vec![long]]).await;
    let request = JobRequest { system_id: String::new(), ..manager.request(None) };
    let answer = harness.coordinator.request_job(request).await.expect("the request was rejected");
    let assigned = answer.job.expect("no job");
    manager.report_running(&assigned).await;
    let first = contacted_at(&harness).await;
    harness.clock.advance(Duration::from_secs(50 * 60));
    manager.report_running(&assigned).await;
    assert!(contacted_at(&harness).await > first);
}

#[tokio::test]
async fn jobs_of_an_unregistered_runner_can_be_finished() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    harness.create(vec![vec![job("a")]]).await;
    let assigned = manager.next_job().await;
    harness.coordinator.unregister(manager.token.clone()).await.expect("failed to unregister");
    manager.log(&assigned, 0, "hello\n").await.expect("was not accepted");
    manager.succeed(&assigned).await;
    harness.handle_commands_and_timers().await;
}

#[tokio::test]
async fn trace_interval_is_short_while_a_user_reads_the_trace() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    harness.create(vec![vec![job("a")]]).await;
    let assigned = manager.next_job().await;
    let mut at = 0;
    let mut interval = async || {
        let answer = manager.log(&assigned, at, "x").await.expect("was not accepted");
        at += 1;
        let update_interval =
            manager.update(&assigned, "running", |_| {}).await.expect("was not accepted").update_interval;
        assert_eq!(answer.update_interval, update_interval);
        answer.update_interval.as_secs()
    };
    assert_eq!(interval().await, 60);
    harness.coordinator.read_trace(assigned.id, 0).await.expect("failed to read");
    assert_eq!(interval().await, 3);
    harness.clock.advance(Duration::from_secs(9));
    assert_eq!(interval().await, 3);
    harness.clock.advance(Duration::from_secs(2));
    assert_eq!(interval().await, 60);
}
