//! Caches in Google Cloud Storage, at an emulator.

use muster_test_prerequisites::object_stores::{GCS_BUCKET, Server, fake_gcs};
use serde_json::json;

use super::caches::{FILL, TREE, assert_contains, run_job};
use super::harness::{Harness, ManagerProcess};

/// Key of an account that exists only in tests.
const PRIVATE_KEY: &str = include_str!("../../../../../cache-store/src/tests/key.pem");

/// Starts a manager whose runner uses the bucket. `keys` are additional lines of `[runners.cache]`.
async fn machine(store: &Server, keys: &str) -> (Harness, ManagerProcess) {
    let harness = Harness::start(1).await;
    harness.configure(&format!(
        "check_interval = 1\n{}[runners.cache]\nType = \"gcs\"\n{keys}\n[runners.cache.gcs]\nBucketName = {GCS_BUCKET:?}\n\
         AccessID = \"me@project.example\"\nPrivateKey = {PRIVATE_KEY:?}\n",
        harness.entry(0)
    ));
    let run = harness.run_with(&[("STORAGE_EMULATOR_HOST", &store.url())]);
    (harness, run)
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_of_one_machine_is_restored_on_another() {
    let Some(store) = fake_gcs() else { return };
    let (first, _run) = machine(&store, "Path = \"ci\"").await;
    let log = run_job(&first, 1, FILL, json!({})).await;
    assert_contains(&log, &["WARNING: file does not exist", "Failed to extract cache", "Created cache"]);
    assert_contains(&log, &[&format!("Uploading cache.zip to {}/{GCS_BUCKET}/ci/runner/", store.url())]);
    let (second, _run) = machine(&store, "Path = \"ci\"").await;
    let log = run_job(&second, 2, FILL, json!({})).await;
    assert_contains(&log, &["Downloading cache from http", "Successfully extracted cache", "\nfound 1\n"]);
    assert_contains(&log, &["Archive is up to date!", "skipping upload"]);
    assert!(!log.contains("X-Goog-Signature"), "{log}");
    let log = run_job(&second, 3, "rm vendor/lib; echo 3 > vendor/other", json!({})).await;
    assert_contains(&log, &["Uploading cache.zip to"]);
    let (third, _run) = machine(&store, "Path = \"ci\"").await;
    let fallback = json!({ "key": "branch", "fallback_keys": ["deps-main"], "policy": "pull" });
    assert_contains(&run_job(&third, 4, "ls vendor", fallback).await, &["\nother\n", "Successfully extracted cache"]);
}

/// With `Chunks`, a cache is not stored as an archive, but as pieces of its files. Caches with equal pieces share them.
#[tokio::test(flavor = "multi_thread")]
async fn chunks_are_shared_through_the_store() {
    let Some(store) = fake_gcs() else { return };
    let chunks = "Shared = true\nChunks = true";
    let (first, _run) = machine(&store, chunks).await;
    assert_contains(&run_job(&first, 1, TREE, json!({})).await, &["Cache does not exist", "Created cache"]);
    let (second, _run) = machine(&store, chunks).await;
    let log = run_job(&second, 2, &format!("{TREE}; echo changed > vendor/file7"), json!({})).await;
    assert_contains(&log, &["\nfound\n", "Successfully extracted cache", "Created cache"]);
    assert_contains(
        &run_job(&first, 3, "cat vendor/file7", json!({})).await,
        &["\nchanged\n", "Archive is up to date!"],
    );
}
