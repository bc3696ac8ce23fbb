//! Caches in an S3 server: shared among machines, shared with gitlab-runner, and unavailable while the server is down.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use muster_cache_store::{CacheStore, UploadOptions};
use muster_config::settings::{CacheStoreSettings, S3AccessKey, S3Settings};
use muster_job::{JobId, JobStatus, Secret};
use muster_runner_api::test_support::Job;
use muster_test_prerequisites::object_stores::{Server, moto};
use serde_json::{Value, json};

use super::harness::{Harness, ManagerProcess};

const SECRET: &str = "the-secret-key-of-the-store";
/// Script that reports a restored cache, and otherwise creates the files of the cache.
pub(super) const FILL: &str =
    "if [ -e vendor/lib ]; then echo found $(cat vendor/lib); else mkdir -p vendor; echo $CI_JOB_ID > vendor/lib; fi";

async fn start_store() -> Option<Server> {
    let server = moto()?;
    let created = reqwest::Client::new().put(format!("{}/bucket", server.url())).send().await.unwrap();
    assert!(created.status().is_success());
    Some(server)
}

fn config(harness: &Harness, store: &Server, more: &str) -> String {
    format!(
        "check_interval = 1\n{}[runners.cache]\nType = \"s3\"\n{more}\n[runners.cache.s3]\nServerAddress = \"{}\"\n\
         AccessKey = \"the-access-key\"\nSecretKey = \"{SECRET}\"\nBucketName = \"bucket\"\nBucketLocation = \"us-east-1\"\n\
         Insecure = true\n",
        harness.entry(0),
        store.address
    )
}

/// Starts a manager whose runner uses the bucket. Each manager stands for one machine.
async fn machine(store: &Server, more: &str) -> (Harness, ManagerProcess) {
    let harness = Harness::start(1).await;
    harness.configure(&config(&harness, store, more));
    let run = harness.run();
    (harness, run)
}

fn payload(id: i64, script: &str, more: Value) -> Value {
    let variables = [("GIT_STRATEGY", "none"), ("FF_TIMESTAMPS", "false"), ("CI_JOB_ID", &id.to_string())];
    let mut cache = json!({ "key": "deps-main", "paths": ["vendor/"], "policy": "pull-push", "when": "on_success" });
    for (key, value) in more.as_object().unwrap() {
        cache[key] = value.clone();
    }
    json!({
        "id": id, "token": format!("job-secret-{id}"),
        "job_info": { "name": "test", "stage": "test", "project_id": 7, "project_name": "project" },
        "git_info": {
            "repo_url": "http://127.0.0.1/group/project.git", "sha": "0123456789abcdef", "before_sha": "0",
            "ref": "main", "ref_type": "branch"
        },
        "runner_info": { "timeout": 600 },
        "variables": variables.map(|(key, value)| json!({ "key": key, "value": value, "public": true })),
        "steps": [{ "name": "script", "script": [script], "timeout": 600, "when": "on_success" }],
        "cache": [cache],
        "features": { "failure_reasons": [] }
    })
}

pub(super) async fn run_job(harness: &Harness, id: i64, script: &str, cache: Value) -> String {
    harness.coordinator(0).enqueue(serde_json::from_value(payload(id, script, cache)).unwrap());
    let job: Job = harness.coordinator(0).wait_for_end(JobId(id)).await;
    assert_eq!(job.status, JobStatus::Success, "{}", job.text());
    job.text()
}

async fn objects(store: &Server) -> Vec<String> {
    let listing = reqwest::get(format!("{}/bucket", store.url())).await.unwrap().text().await.unwrap();
    listing.split("<Key>").skip(1).map(|rest| rest.split('<').next().unwrap().to_owned()).collect()
}

pub(super) fn assert_contains(log: &str, texts: &[&str]) {
    for text in texts {
        assert!(log.contains(text), "{text:?} is missing in {log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_of_one_machine_is_restored_on_another() {
    let Some(store) = start_store().await else { return };
    let (first, _run) = machine(&store, "Path = \"ci\"").await;
    let log = run_job(&first, 1, FILL, json!({})).await;
    assert_contains(&log, &["WARNING: file does not exist", "Failed to extract cache", "Created cache"]);
    assert_contains(&log, &[&format!("Uploading cache.zip to {}/bucket/ci/runner/", store.url())]);
    let names = objects(&store).await;
    assert!(matches!(&names[..], [name] if name.ends_with("/project/7/deps-main")), "{names:?}");

    let (second, _run) = machine(&store, "Path = \"ci\"").await;
    let log = run_job(&second, 2, &format!("{FILL}; env"), json!({})).await;
    assert_contains(
        &log,
        &["Checking cache for deps-main...", "Downloading cache from http", "Successfully extracted cache"],
    );
    assert_contains(&log, &["\nfound 1\n", "Archive is up to date!", "skipping upload", "Created cache"]);
    for secret in [SECRET, "the-access-key", "X-Amz-Signature"] {
        assert!(!log.contains(secret), "{secret} in {log}");
    }
    // A cache whose files only have new times is not uploaded again. A cache with other files is uploaded.
    let log = run_job(&second, 3, "cp vendor/lib copy && mv copy vendor/lib", json!({})).await;
    assert_contains(&log, &["cache.zip is up to date", "Archive is up to date!"]);
    let log = run_job(&second, 4, "rm vendor/lib; echo 4 > vendor/other", json!({})).await;
    assert_contains(&log, &["Uploading cache.zip to"]);
    let (third, _run) = machine(&store, "Path = \"ci\"").await;
    let log = run_job(&third, 5, "ls vendor", json!({})).await;
    assert_contains(&log, &["\nother\n", "Successfully extracted cache"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn fallback_key_policy_and_size_limit_apply_to_the_store() {
    let Some(store) = start_store().await else { return };
    let (first, _run) = machine(&store, "Shared = true\nMaxUploadedArchiveSize = 100000").await;
    run_job(&first, 1, FILL, json!({ "key": "main" })).await;
    let (second, _run) = machine(&store, "Shared = true\nMaxUploadedArchiveSize = 100000").await;
    let fallback = json!({ "key": "branch", "fallback_keys": ["missing", "main"], "policy": "pull" });
    let log = run_job(&second, 2, FILL, fallback).await;
    assert_contains(
        &log,
        &["Checking cache for branch...", "Checking cache for missing...", "Checking cache for main..."],
    );
    assert_contains(&log, &["\nfound 1\n", "Not uploading cache branch due to policy"]);
    let log =
        run_job(&second, 3, "mkdir -p vendor; head -c 200000 /dev/urandom > vendor/large", json!({ "key": "large" }))
            .await;
    assert_contains(&log, &["is too big (Limit is set to 100000). Cache will be stored only locally."]);
    assert_eq!(objects(&store).await, ["project/7/main"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn job_succeeds_with_warnings_if_the_store_is_killed() {
    let Some(mut store) = start_store().await else { return };
    let (harness, _run) = machine(&store, "").await;
    run_job(&harness, 1, FILL, json!({})).await;
    store.kill();
    let log = run_job(&harness, 2, "mkdir -p vendor; echo new > vendor/lib; echo the script ran", json!({})).await;
    assert_contains(
        &log,
        &["Checking cache for deps-main...", "Retrying...", "Failed to extract cache", "\nthe script ran\n"],
    );
    assert_contains(&log, &["Creating cache deps-main...", "Failed to create cache"]);
}

struct GitlabRunner(Child);

impl GitlabRunner {
    fn run(program: &Path, harness: &Harness, store: &Server) -> Self {
        let (home, config_file) = (harness.home.path("stock-runner"), harness.home.path("gitlab-runner.toml"));
        std::fs::create_dir(&home).unwrap();
        std::fs::write(&config_file, config(harness, store, "").replace("\"sh\"", "\"bash\"")).unwrap();
        let mut command = Command::new(program);
        command.arg("run").arg("--config").arg(&config_file).arg("--working-directory").arg(&home);
        command.env_clear().env("HOME", &home).env("PATH", std::env::var_os("PATH").unwrap()).current_dir(&home);
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for GitlabRunner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gitlab_runner_and_muster_restore_the_caches_of_each_other() {
    let Some(program) = std::env::var_os("MUSTER_TEST_GITLAB_RUNNER") else { return };
    let Some(store) = start_store().await else { return };
    let theirs = Harness::start(1).await;
    let _gitlab_runner = GitlabRunner::run(Path::new(&program), &theirs, &store);
    let (ours, _run) = machine(&store, "").await;
    for (index, (from, to)) in [(&theirs, &ours), (&ours, &theirs)].into_iter().enumerate() {
        let id = i64::try_from(index).unwrap() * 10;
        let cache = || json!({ "key": format!("größe {index}/main") });
        let fill = "rm -rf vendor; mkdir vendor; echo $CI_JOB_ID > vendor/lib";
        let log = run_job(from, id + 1, fill, cache()).await;
        assert_contains(&log, &["Uploading cache.zip to", "Created cache"]);
        let log = run_job(to, id + 2, "echo found $(cat vendor/lib)", cache()).await;
        assert_contains(&log, &["Downloading cache from", "Successfully extracted cache"]);
        assert_contains(&log, &[&format!("\nfound {}\n", id + 1), "Archive is up to date!"]);
    }
    let names = objects(&store).await;
    assert_eq!(names.len(), 2, "both programs must use the same names: {names:?}");
}

/// Script that creates a megabyte of text in 40 files, unless they exist.
pub(super) const TREE: &str = "if [ -d vendor ]; then echo found; else mkdir -p vendor; for i in $(seq 40); do \
                    seq $((i * 1000)) $((i * 1000 + 4500)) > vendor/file$i; done; fi";

fn megabytes(log: &str, text: &str) -> f64 {
    let before = log.split_once(text).unwrap_or_else(|| panic!("{text:?} is missing in {log}")).0;
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_are_shared_through_the_store() {
    let Some(store) = start_store().await else { return };
    let chunks = "Shared = true\nChunks = true";
    let (first, _run) = machine(&store, chunks).await;
    let log = run_job(&first, 1, TREE, json!({})).await;
    assert_contains(&log, &["Cache does not exist", "Created cache"]);
    let all = megabytes(&log, " MB were uploaded");
    let names = objects(&store).await;
    let is_expected = |name: &String| name.starts_with("chunks/7/unprotected/");
    assert!(names.len() == 4 && names.iter().all(is_expected), "{names:?}");

    // Another machine restores all, changes one of 40 files, and uploads little.
    let (second, _run) = machine(&store, chunks).await;
    let log = run_job(&second, 2, &format!("{TREE}; echo changed > vendor/file7"), json!({})).await;
    assert_contains(&log, &["\nfound\n", "Successfully extracted cache", "Created cache"]);
    assert!(megabytes(&log, " MB were uploaded") <= all / 10.0, "{all} {log}");
    for secret in [SECRET, "the-access-key", "X-Amz-Signature"] {
        assert!(!log.contains(secret), "{secret} in {log}");
    }

    // The first machine downloads only what the second one has changed.
    let log = run_job(&first, 3, "cat vendor/file7", json!({})).await;
    assert_contains(&log, &["\nchanged\n", "Archive is up to date!"]);
    assert!(megabytes(&log, " MB were downloaded") <= all / 10.0, "{all} {log}");

    // A new key shares the chunks of the cache that was saved last.
    let log = run_job(&first, 4, TREE, json!({ "key": "branch" })).await;
    assert_contains(&log, &["Cache does not exist", "Created cache"]);
    assert!(megabytes(&log, " MB were uploaded") <= all / 10.0, "{all} {log}");

    // Protected caches have separate objects.
    let before = objects(&store).await.len();
    run_job(&first, 5, TREE, json!({ "key": "deps-protected" })).await;
    let names = objects(&store).await;
    assert_eq!(names.iter().filter(|name| name.starts_with("chunks/7/protected/")).count(), names.len() - before);

    // No job has the variable that would choose archives instead of chunks.
    assert!(!names.iter().any(|name| name.starts_with("project/")), "{names:?}");
}

/// Overwrites an object of the store. The new content is invalid, and longer than a pack, so that each range that a job
/// reads exists.
async fn replace(store: &Server, name: &str) {
    let key = S3AccessKey { id: Secret::new("the-access-key"), secret: Secret::new(SECRET), session: None };
    let settings = S3Settings {
        server: Some(store.address.clone()),
        insecure: true,
        bucket: "bucket".to_owned(),
        access_key: Some(key),
        ..S3Settings::default()
    };
    let signer = CacheStore::open(&CacheStoreSettings::S3(settings)).await.unwrap();
    let options = UploadOptions { cache_key: "", max_bytes: 0 };
    let upload = signer.upload_url(name, Duration::from_secs(60), options).await.unwrap();
    let mut request = reqwest::Client::new().put(upload.url).body(vec![1; 10_000_000]);
    for (name, value) in upload.headers {
        request = request.header(name, value);
    }
    assert!(request.send().await.unwrap().status().is_success());
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_object_of_the_store_counts_as_a_missing_cache_and_is_replaced() {
    let Some(store) = start_store().await else { return };
    let chunks = "Shared = true\nChunks = true";
    let (first, _run) = machine(&store, chunks).await;
    run_job(&first, 1, TREE, json!({})).await;
    let pack = objects(&store).await.into_iter().find(|name| name.ends_with("-0")).unwrap();
    replace(&store, &pack).await;

    let (second, _run) = machine(&store, chunks).await;
    let script = "rm -rf vendor; mkdir vendor; for i in $(seq 40); do seq $((i * 1000)) $((i * 1000 + 4500)) > vendor/file$i; done";
    let log = run_job(&second, 2, script, json!({})).await;
    assert_contains(&log, &["Failed to extract cache: ", "is damaged", "Created cache"]);
    let (third, _run) = machine(&store, chunks).await;
    let log = run_job(&third, 3, "ls vendor | wc -l; tail -n 1 vendor/file40", json!({})).await;
    assert_contains(&log, &["Successfully extracted cache", "\n40\n", "\n44500\n"]);
}

/// Runs `muster cache gc`, which deletes unused objects. Returns its report.
fn collect_garbage(harness: &Harness, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    command.args(["cache", "gc", "--config"]).arg(harness.home.path("config.toml")).args(arguments);
    let output = command.current_dir(harness.home.path(".")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_objects_of_the_store_are_deleted() {
    let Some(store) = start_store().await else { return };
    let (harness, _run) = machine(&store, "Shared = true\nChunks = true").await;
    run_job(&harness, 1, TREE, json!({})).await;
    let first = objects(&store).await;
    run_job(&harness, 2, "for i in $(seq 40); do seq $((i * 77)) $((i * 77 + 5000)) > vendor/file$i; done", json!({}))
        .await;
    let unused =
        |names: &[String]| first.iter().filter(|name| names.contains(name) && name.contains("/objects/")).count();
    assert_eq!(unused(&objects(&store).await), 2);
    // Nothing is as old as the grace period.
    collect_garbage(&harness, &[]);
    assert_eq!(unused(&objects(&store).await), 2);
    // Without a grace period, the first pass marks, and the second one deletes.
    collect_garbage(&harness, &["--grace", "0s"]);
    assert_eq!(unused(&objects(&store).await), 2);
    collect_garbage(&harness, &["--grace", "0s", "--dry-run"]);
    assert_eq!(unused(&objects(&store).await), 2);
    let report = collect_garbage(&harness, &["--grace", "0s"]);
    assert!(report.contains("chunks/7/unprotected: 2 objects with"), "{report}");
    assert_eq!(unused(&objects(&store).await), 0);
    let (other, _run) = machine(&store, "Shared = true\nChunks = true").await;
    let log = run_job(&other, 3, "tail -n 1 vendor/file40", json!({})).await;
    assert_contains(&log, &["Successfully extracted cache", "\n8080\n"]);
}
