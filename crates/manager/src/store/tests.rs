use std::os::unix::fs::PermissionsExt;

use super::*;

fn payload(id: i64) -> JobPayload {
    serde_json::from_value(serde_json::json!({ "id": id, "token": "secret" })).unwrap()
}

#[tokio::test]
async fn a_job_is_stored_once_and_its_lane_asks_with_a_new_key() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    let key = store.lane_key(0).await.unwrap();
    assert_eq!(store.lane_key(0).await.unwrap(), key, "the same until a job came");
    assert!(store.take(0, &payload(7)).await.unwrap());
    assert_ne!(store.lane_key(0).await.unwrap(), key);
    assert!(!store.take(0, &payload(7)).await.unwrap(), "a repetition changes nothing");
}

#[tokio::test]
async fn what_is_stored_is_there_after_a_new_start() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    assert!(matches!(Store::open(home.path()).await, Err(StoreError::InUse(_))));
    let key = store.lane_key(1).await.unwrap();
    store.take(0, &payload(7)).await.unwrap();
    store.take(0, &payload(8)).await.unwrap();
    store.delete(JobId(8)).await.unwrap();
    drop(store);
    let store = Store::open(home.path()).await.unwrap();
    let stored = StoredJob { payload: payload(7), state: JobState::Taken };
    assert_eq!(store.jobs().await.unwrap(), [stored]);
    assert_eq!(store.lane_key(1).await.unwrap(), key);
    let mode = std::fs::metadata(home.path().join("state.db")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "payloads hold tokens");
}
