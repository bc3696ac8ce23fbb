//! What a job's calls tell of its manager, and what the manager is told of when to call next (runner-api 3.2, 9.2).

#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

use std::time::Duration;

use muster_runner_api::service::RunnerService;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{Connection, Row};

use crate::support::{House, job, zip_of};

/// When the only manager was heard of, as it is stored.
async fn contacted_at(house: &House) -> i64 {
    let options = SqliteConnectOptions::new().filename(house.dir.path().join("coordinator.db")).read_only(true);
    let mut database = SqliteConnection::connect_with(&options).await.expect("the database");
    let row = sqlx::query("SELECT contacted_at FROM managers").fetch_one(&mut database).await.expect("a manager");
    row.get("contacted_at")
}

#[tokio::test]
async fn reports_and_traces_keep_a_manager_in_contact_and_artifacts_do_not() {
    let house = House::open().await;
    let manager = house.manager().await;
    let mut long = job("a");
    long.timeout = Some(Duration::from_secs(24 * 3600));
    house.create(vec![vec![long]]).await;
    let taken = manager.take().await;
    manager.running(&taken).await;
    let first = contacted_at(&house).await;
    let while_later = || house.clock.advance(Duration::from_secs(50 * 60));
    while_later();
    manager.upload(&taken, ("archive", "zip", None), zip_of("out", "x")).await.expect("kept");
    assert_eq!(contacted_at(&house).await, first);
    manager.log(&taken, 0, "hello\n").await.expect("taken");
    let second = contacted_at(&house).await;
    assert!(second > first);
    while_later();
    manager.running(&taken).await;
    assert!(contacted_at(&house).await > second);
}

#[tokio::test]
async fn the_last_calls_of_a_manager_that_left_are_taken_and_do_not_make_it_known_again() {
    let house = House::open().await;
    let manager = house.manager().await;
    house.create(vec![vec![job("a")]]).await;
    let taken = manager.take().await;
    house.coordinator.unregister(manager.token.clone()).await.expect("gone");
    manager.log(&taken, 0, "hello\n").await.expect("taken");
    manager.succeed(&taken).await;
    house.coordinator.stuck_jobs().await.expect("the database takes what is written");
}

#[tokio::test]
async fn a_trace_that_somebody_reads_is_wanted_every_3_seconds_and_else_every_minute() {
    let house = House::open().await;
    let manager = house.manager().await;
    house.create(vec![vec![job("a")]]).await;
    let taken = manager.take().await;
    let mut at = 0;
    let mut interval = async || {
        let answer = manager.log(&taken, at, "x").await.expect("taken");
        at += 1;
        let of_update = manager.update(&taken, "running", |_| {}).await.expect("its own").update_interval;
        assert_eq!(answer.update_interval, of_update);
        answer.update_interval.as_secs()
    };
    assert_eq!(interval().await, 60);
    house.coordinator.read_trace(taken.id, 0).await.expect("readable");
    assert_eq!(interval().await, 3);
    house.clock.advance(Duration::from_secs(9));
    assert_eq!(interval().await, 3);
    house.clock.advance(Duration::from_secs(2));
    assert_eq!(interval().await, 60);
}
