//! Hostile archives and links: no artifact, cache or checkout changes a file outside the project.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use muster_agent_api::builtin::{
    ArtifactSource, ArtifactsDownload, ArtifactsUpload, ArtifactsUploadList, CacheEntry, CacheRestore, CacheSave,
    Checkout, UnpackLimits,
};
use muster_agent_api::plan::{ArtifactEndpoint, Call, JobPlan, When};
use muster_agent_api::result::Outcome;
use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::{MemoryCoordinator, Served, serve};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::harness::*;

const JOB: JobId = JobId(7);
const SECRET: &str = "ssh-ed25519 the owner's key\n";

fn create_outside_dir(agent: &Agent) -> PathBuf {
    let outside = agent.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("keys"), SECRET).unwrap();
    outside
}

fn assert_untouched(outside: &Path, log: &str) {
    let keys = outside.join("keys");
    assert!(!keys.is_symlink(), "`keys` must not be a link, but its target is {:?}; {log}", fs::read_link(&keys));
    assert_eq!(fs::read_to_string(keys).unwrap(), SECRET, "{log}");
    let names: Vec<_> = fs::read_dir(outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["keys"], "{log}");
}

/// Writes an archive with a harmless file and links to `outside`, one of them through a chain. Each link has entries
/// below it.
fn hostile_zip(file: &Path, outside: &Path) {
    let mut zip = ZipWriter::new(File::create(file).unwrap());
    let options = SimpleFileOptions::default();
    zip.add_symlink("a", outside.to_str().unwrap(), options).unwrap();
    zip.add_symlink("a/keys", "/dev/null", options).unwrap();
    zip.add_symlink("b", "..", options).unwrap();
    zip.add_symlink("b/c", "outside", options).unwrap();
    zip.add_symlink("b/c/keys", "/dev/null", options).unwrap();
    zip.start_file("a/new", options).unwrap();
    zip.write_all(b"hostile").unwrap();
    zip.start_file("honest", options).unwrap();
    zip.write_all(b"honest\n").unwrap();
    zip.finish().unwrap();
}

fn with_coordinator(served: &Served, plan: JobPlan) -> JobPlan {
    let coordinator = ArtifactEndpoint {
        url: served.url.to_string(),
        job_id: JOB.0,
        token: "t0ken".to_owned(),
        ..ArtifactEndpoint::default()
    };
    JobPlan { coordinator, ..plan }
}

#[tokio::test]
async fn artifact_entry_below_a_link_stays_in_the_project() {
    let coordinator = std::sync::Arc::new(MemoryCoordinator::default());
    coordinator.enqueue(serde_json::from_value(serde_json::json!({"id": JOB.0, "token": "t0ken"})).unwrap());
    coordinator.set_status(JOB, JobStatus::Running);
    let served = serve(coordinator.clone()).await.unwrap();
    let mut agent = Agent::start().await;
    let outside = create_outside_dir(&agent);
    fs::create_dir_all(agent.project()).unwrap();
    hostile_zip(&agent.project().join("evil.zip"), &outside);
    let evil = ArtifactsUpload {
        name: "evil.zip".to_owned(),
        paths: vec!["evil.zip".to_owned()],
        artifact_type: "archive".to_owned(),
        artifact_format: "raw".to_owned(),
        ..ArtifactsUpload::default()
    };
    let upload = Call::builtin(&ArtifactsUploadList { artifacts: vec![evil] });
    let upload = step("upload_artifacts_on_success", When::Always, upload);
    let (log, result) = agent.complete(&with_coordinator(&served, agent.plan(vec![upload]))).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");

    fs::remove_dir_all(agent.project()).unwrap();
    let from = vec![ArtifactSource { job_id: JOB.0, name: "build".to_owned(), token: "t0ken".to_owned() }];
    let download = Call::builtin(&ArtifactsDownload { from });
    let download = step("download_artifacts", When::OnSuccess, download);
    let (log, result) =
        agent.complete(&with_coordinator(&served, agent.plan(vec![download, script(&["cat honest"])]))).await;
    assert_untouched(&outside, &log);
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("WARNING: a/keys: skipped") && log.contains("below the link `a`"), "{log}");
    assert!(log.contains("\nhonest\n"), "{log}");
}

#[tokio::test]
async fn cache_links_cannot_lead_outside_the_project() {
    let mut agent = Agent::start().await;
    let outside = create_outside_dir(&agent);
    let cache_dir = agent.dir.path().join("cache");
    let entry = CacheEntry {
        key: "main".to_owned(),
        cache_dir: cache_dir.to_string_lossy().into_owned(),
        paths: vec!["vendor/".to_owned()],
        ..CacheEntry::default()
    };
    fs::create_dir_all(cache_dir.join("main")).unwrap();
    hostile_zip(&cache_dir.join("main/cache.zip"), &outside);
    // An earlier job created links at these paths.
    fs::create_dir_all(agent.project()).unwrap();
    symlink(&outside, agent.project().join("a")).unwrap();
    symlink("..", agent.project().join("b")).unwrap();
    let restore = Call::builtin(&CacheRestore { caches: vec![entry] });
    let restore = step("restore_cache", When::OnSuccess, restore);
    let (log, result) = agent.complete(&agent.plan(vec![restore.clone(), script(&["cat honest"])])).await;
    assert_untouched(&outside, &log);
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("\nhonest\n"), "{log}");

    // An earlier job replaced the project's directory with a link.
    fs::remove_dir_all(agent.project()).unwrap();
    symlink(&outside, agent.project()).unwrap();
    let (log, _) = agent.complete(&agent.plan(vec![restore])).await;
    assert_untouched(&outside, &log);
}

#[tokio::test]
async fn link_above_the_project_is_not_followed() {
    let mut agent = Agent::start().await;
    let outside = create_outside_dir(&agent);
    let cache_dir = agent.dir.path().join("cache");
    let entry = CacheEntry {
        key: "main".to_owned(),
        cache_dir: cache_dir.to_string_lossy().into_owned(),
        paths: vec!["vendor/".to_owned()],
        ..CacheEntry::default()
    };
    fs::create_dir_all(cache_dir.join("main")).unwrap();
    hostile_zip(&cache_dir.join("main/cache.zip"), &outside);
    let restore = Call::builtin(&CacheRestore { caches: vec![entry] });
    let plan = agent.plan(vec![step("restore_cache", When::OnSuccess, restore)]);
    // A job of the same group replaced the group's directory with a link.
    let group = agent.dir.path().join("group");
    symlink(&outside, &group).unwrap();
    let plan = JobPlan { project_dir: group.join("app").to_string_lossy().into_owned(), ..plan };
    fs::create_dir(outside.join("app")).unwrap();
    let (log, _) = agent.complete(&plan).await;
    assert_eq!(fs::read_dir(outside.join("app")).unwrap().count(), 0, "{log}");
    assert!(log.contains("is a symbolic link or a file, which a job may have put there"), "{log}");
}

/// The links are above the project's directory, or in its place.
#[tokio::test]
async fn checkout_does_not_follow_links_of_earlier_jobs() {
    let mut agent = Agent::start().await;
    let outside = create_outside_dir(&agent);
    let (group, link) = (agent.dir.path().join("group"), agent.dir.path().join("builds/link"));
    symlink(&outside, &group).unwrap();
    fs::create_dir_all(agent.dir.path().join("builds")).unwrap();
    for strategy in ["none", "empty", "clone", "fetch"] {
        for local in [None, Some(agent.dir.path().join("repository"))] {
            for (project, is_above) in [(group.join("app"), true), (link.clone(), false)] {
                // A checkout may have replaced the link with a directory.
                let _ = fs::remove_file(&link).or_else(|_| fs::remove_dir_all(&link));
                symlink(&outside, &link).unwrap();
                let checkout = Checkout {
                    strategy: strategy.to_owned(),
                    repo_url: "/nonexistent".to_owned(),
                    sha: "0123456789abcdef0123456789abcdef01234567".to_owned(),
                    local_repository: local.as_ref().map(|path| path.to_string_lossy().into_owned()),
                    checkout: true,
                    ..Checkout::default()
                };
                let steps = vec![step("get_sources", When::OnSuccess, Call::builtin(&checkout))];
                let project_dir = project.to_string_lossy().into_owned();
                let plan = JobPlan { project_dir, steps, ..agent.plan(vec![]) };
                let (log, result) = agent.complete(&plan).await;
                assert_untouched(&outside, &log);
                // The other checkouts first delete what is at the project's path, and thus the link.
                let is_refused = is_above || matches!((strategy, &local), ("none", _) | ("fetch", None));
                if is_refused {
                    assert_ne!(result.outcome, Outcome::Success, "{log}");
                    assert!(
                        log.contains("is a symbolic link or a file, which a job may have put there"),
                        "{strategy} {log}"
                    );
                }
            }
        }
    }
}

#[tokio::test]
async fn oversized_cache_error_names_the_limit_and_its_setting() {
    let mut agent = Agent::start().await;
    let cache_dir = agent.dir.path().join("cache").to_string_lossy().into_owned();
    let paths = vec!["vendor/".to_owned()];
    let caches = vec![CacheEntry { key: "main".to_owned(), cache_dir, paths, ..CacheEntry::default() }];
    let save = step("archive_cache", When::OnSuccess, Call::builtin(&CacheSave { caches: caches.clone() }));
    let create = script(&["mkdir vendor; head -c 10000 /dev/zero > vendor/zeros"]);
    agent.complete(&agent.plan(vec![create, save])).await;

    let restore = step("restore_cache", When::OnSuccess, Call::builtin(&CacheRestore { caches }));
    let unpack = UnpackLimits { max_bytes: 9999, ..UnpackLimits::default() };
    let plan = JobPlan { unpack, ..agent.plan(vec![restore, script(&["echo continues"])]) };
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    let message = "WARNING: Failed to extract cache: the archive unpacks to more than 9999 bytes; to raise the limit, set `max_bytes` of \
                   [runners.unpack] in config.toml";
    assert!(log.contains(message) && log.contains("\ncontinues\n"), "{log}");
}
