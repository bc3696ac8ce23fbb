//! Tests of which calls of jobs count as contact of their manager, and of the update interval.
//!
//! See docs/spec/runner-api.md, sections 3.2 and 9.2.

#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

use std::time::Duration;

use muster_runner_api::service::RunnerService;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection, Row};

use crate::support::{Bench, job, zip_of};

/// Returns the stored time of the last contact of the only manager.
async fn contacted_at(bench: &Bench) -> i64 {
    let options = SqliteConnectOptions::new().filename(bench.dir.path().join("coordinator.db")).read_only(true);
    let mut database = SqliteConnection::connect_with(&options).await.expect("the database");
    let row = sqlx::query("SELECT contacted_at FROM managers").fetch_one(&mut database).await.expect("a manager");
    row.get("contacted_at")
}

#[tokio::test]
async fn reports_and_traces_count_as_contact_but_artifacts_do_not() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    let mut long = job("a");
    long.timeout = Some(Duration::from_secs(24 * 3600));
    bench.create(vec![vec![long]]).await;
    let taken = manager.take().await;
    manager.running(&taken).await;
    let first = contacted_at(&bench).await;
    let while_later = || bench.clock.advance(Duration::from_secs(50 * 60));
    while_later();
    manager.upload(&taken, ("archive", "zip", None), zip_of("out", "x")).await.expect("kept");
    assert_eq!(contacted_at(&bench).await, first);
    manager.log(&taken, 0, "hello\n").await.expect("accepted");
    let second = contacted_at(&bench).await;
    assert!(second > first);
    while_later();
    manager.running(&taken).await;
    assert!(contacted_at(&bench).await > second);
}

#[tokio::test]
async fn unregistered_manager_can_finish_its_jobs() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    bench.create(vec![vec![job("a")]]).await;
    let taken = manager.take().await;
    bench.coordinator.unregister(manager.token.clone()).await.expect("deleted");
    manager.log(&taken, 0, "hello\n").await.expect("accepted");
    manager.succeed(&taken).await;
    bench.coordinator.stuck_jobs().await.expect("no failed write");
}

#[tokio::test]
async fn trace_interval_is_short_while_a_user_reads_the_trace() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    bench.create(vec![vec![job("a")]]).await;
    let taken = manager.take().await;
    let mut at = 0;
    let mut interval = async || {
        let answer = manager.log(&taken, at, "x").await.expect("accepted");
        at += 1;
        let of_update = manager.update(&taken, "running", |_| {}).await.expect("accepted").update_interval;
        assert_eq!(answer.update_interval, of_update);
        answer.update_interval.as_secs()
    };
    assert_eq!(interval().await, 60);
    bench.coordinator.read_trace(taken.id, 0).await.expect("readable");
    assert_eq!(interval().await, 3);
    bench.clock.advance(Duration::from_secs(9));
    assert_eq!(interval().await, 3);
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(interval().await, 60);
}
