use std::os::unix::fs::PermissionsExt;

use muster_job::{JobId, Secret};

use super::*;

/// A state.db as version 1 left it: jobs 7 (running) and 8 (taken), without runners.
const VERSION_1: &str = include_str!("../../tests/samples/state_v1.sql");

fn payload(id: i64) -> JobPayload {
    serde_json::from_value(serde_json::json!({ "id": id, "token": "secret" })).unwrap()
}

fn runner(url: &str) -> Arc<RunnerSettings> {
    Arc::new(RunnerSettings::new(url.parse().unwrap(), Secret::new("glrt-token"), 1))
}

fn name(runner: &RunnerSettings, id: i64) -> RunName {
    RunName::new(JobId(id), &runner.url)
}

#[tokio::test]
async fn a_job_is_stored_once_and_its_lane_asks_with_a_new_key() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    let (one, two) = (runner("http://one"), runner("http://two"));
    let key = store.lane_key(&one.key, 0).await.unwrap();
    assert_eq!(store.lane_key(&one.key, 0).await.unwrap(), key, "the same until a job came");
    let of_two = store.lane_key(&two.key, 0).await.unwrap();
    assert_ne!(of_two, key, "each runner has lanes of its own");
    assert!(store.take(&one, 0, payload(7)).await.unwrap().is_some());
    assert_ne!(store.lane_key(&one.key, 0).await.unwrap(), key);
    assert_eq!(store.lane_key(&two.key, 0).await.unwrap(), of_two);
    assert_eq!(store.take(&one, 0, payload(7)).await.unwrap(), None, "a repetition changes nothing");
    assert!(store.take(&two, 0, payload(7)).await.unwrap().is_some(), "another coordinator's job of the same number");
}

#[tokio::test]
async fn what_is_stored_is_there_after_a_new_start_with_its_runner() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    assert!(matches!(Store::open(home.path()).await, Err(StoreError::InUse(_))));
    let (old, new) =
        (runner("http://one"), Arc::new(RunnerSettings { limit: Some(3), ..(*runner("http://one")).clone() }));
    let key = store.lane_key(&old.key, 1).await.unwrap();
    store.take(&old, 0, payload(7)).await.unwrap();
    store.take(&old, 0, payload(8)).await.unwrap();
    store.take(&new, 0, payload(9)).await.unwrap();
    store.delete(&name(&old, 8)).await.unwrap();
    drop(store);
    let store = Store::open(home.path()).await.unwrap();
    let stored = |id, runner: &Arc<RunnerSettings>| StoredJob {
        run: name(runner, id),
        runner: Some(Arc::clone(runner)),
        payload: payload(id),
        state: JobState::Taken,
    };
    assert_eq!(store.jobs().await.unwrap(), [stored(7, &old), stored(9, &new)]);
    assert_eq!(store.lane_key(&old.key, 1).await.unwrap(), key);
    let mode = std::fs::metadata(home.path().join("state.db")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "payloads hold tokens");
}

#[tokio::test]
async fn version_1_of_state_db_stays_readable() {
    let home = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new().filename(home.path().join("state.db")).create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await.unwrap();
    sqlx::raw_sql(VERSION_1).execute(&pool).await.unwrap();
    pool.close().await;
    let store = Store::open(home.path()).await.unwrap();
    let jobs = store.jobs().await.unwrap();
    let read: Vec<_> = jobs.iter().map(|job| (job.run.as_str(), job.state.name(), job.runner.is_some())).collect();
    assert_eq!(read, [("7", "running", false), ("8", "taken", false)], "the names are those at the agent");
    assert_eq!(jobs[0].payload, payload(7));
    store.set_state(&jobs[1].run, &jobs[0].state).await.unwrap();
    store.delete(&jobs[0].run).await.unwrap();
    assert_eq!(store.jobs().await.unwrap().len(), 1);
}

#[tokio::test]
async fn one_unreadable_row_keeps_no_other_job_back() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    let runner = runner("http://one");
    store.take(&runner, 0, payload(7)).await.unwrap();
    store.take(&runner, 0, payload(8)).await.unwrap();
    let broken = sqlx::query("UPDATE jobs SET payload = '{' WHERE run = ?").bind(name(&runner, 7).to_string());
    broken.execute(&store.pool).await.unwrap();
    let jobs = store.jobs().await.unwrap();
    assert_eq!(jobs.iter().map(|job| job.payload.id).collect::<Vec<_>>(), [JobId(8)]);
}
