//! Caches in a directory on this machine.

use std::fs;
use std::path::{Path, PathBuf};

use muster_agent_api::builtin::{CacheEntry, CacheRestore, CacheSave};
use muster_agent_api::plan::{Call, Step, When};
use muster_agent_api::result::Outcome;

use crate::harness::*;

fn entry(agent: &Agent, key: &str) -> CacheEntry {
    CacheEntry {
        key: key.to_owned(),
        cache_dir: cache_dir(agent).to_string_lossy().into_owned(),
        paths: vec!["vendor/".to_owned()],
        ..CacheEntry::default()
    }
}

fn cache_dir(agent: &Agent) -> PathBuf {
    agent.dir.path().join("cache")
}

fn restore(entry: CacheEntry) -> Step {
    step("restore_cache", When::OnSuccess, Call::builtin(&CacheRestore { caches: vec![entry] }))
}

fn save(entry: CacheEntry) -> Step {
    step("archive_cache", When::OnSuccess, Call::builtin(&CacheSave { caches: vec![entry] }))
}

async fn run_job_that_saves_cache(agent: &mut Agent, key: &str, content: &str) {
    let create = format!("mkdir -p vendor; echo {content} > vendor/lib");
    let plan = agent.plan(vec![script(&[&create]), save(entry(agent, key))]);
    agent.complete(&plan).await;
    fs::remove_dir_all(agent.project()).unwrap();
}

fn archive(agent: &Agent, key: &str) -> PathBuf {
    cache_dir(agent).join(Path::new(key)).join("cache.zip")
}

#[tokio::test]
async fn cache_is_saved_and_restored() {
    let mut agent = Agent::start().await;
    let cache_dir = agent.dir.path().join("cache").to_string_lossy().into_owned();
    let cache = |policy: &str| CacheEntry {
        key: "deps-main".to_owned(),
        cache_dir: cache_dir.clone(),
        paths: vec!["vendor/".to_owned()],
        policy: policy.to_owned(),
        ..CacheEntry::default()
    };
    let other = || CacheEntry { key: "other".to_owned(), ..cache("pull") };
    let restore = |policy: &str| {
        let both = CacheRestore { caches: vec![other(), cache(policy)] };
        step("restore_cache", When::OnSuccess, Call::builtin(&both))
    };
    let both = CacheSave { caches: vec![other(), cache("pull-push")] };
    let save = step("archive_cache", When::OnSuccess, Call::builtin(&both));
    let create = "mkdir -p vendor; [ -e vendor/lib ] && echo cached || echo made > vendor/lib";
    let plan = agent.plan(vec![restore("pull-push"), script(&[create]), save]);
    let (first, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success);
    assert!(first.contains("Cache file does not exist") && first.contains("Created cache"), "{first}");
    assert!(first.contains("Not uploading cache other due to policy"), "{first}");
    assert_eq!(states(&result).len(), 4, "all caches must share one step: {result:?}");
    std::fs::remove_dir_all(agent.project()).unwrap();
    let (second, _) = agent.complete(&plan).await;
    for text in
        ["Checking cache for deps-main...", "Successfully extracted cache", "\ncached\n", "Archive is up to date!"]
    {
        assert!(second.contains(text), "{text} in {second}");
    }
    let plan = agent.plan(vec![restore("push")]);
    assert!(agent.complete(&plan).await.0.contains("Not downloading cache deps-main due to policy"));
}

#[tokio::test]
async fn first_existing_fallback_key_is_restored() {
    let mut agent = Agent::start().await;
    run_job_that_saves_cache(&mut agent, "main", "from-main").await;
    let fallback = vec!["missing".to_owned(), "main".to_owned()];
    let names = ["Branch", "Missing", "Main"].map(str::to_owned).into();
    let cache = CacheEntry { fallback_keys: fallback, names, ..entry(&agent, "branch") };
    let plan = agent.plan(vec![restore(cache), script(&["cat vendor/lib"])]);
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    let messages: Vec<&str> = log.lines().filter(|line| line.contains("Checking cache for")).collect();
    assert_eq!(messages.len(), 3, "{log}");
    assert!(
        messages[0].contains("Checking cache for Branch..."),
        "the message must show the human-readable name of the key: {log}"
    );
    assert!(log.contains("\nfrom-main\n"), "{log}");
}

#[tokio::test]
async fn cache_under_the_alternate_key_is_restored() {
    let mut agent = Agent::start().await;
    run_job_that_saves_cache(&mut agent, "plain", "old").await;
    let hashed = CacheEntry { alternate: "plain".to_owned(), ..entry(&agent, "0123abcd") };
    let plan = agent.plan(vec![restore(hashed.clone()), script(&["cat vendor/lib"]), save(hashed)]);
    let (log, _) = agent.complete(&plan).await;
    assert!(log.contains("\nold\n") && log.contains("Archive is up to date!"), "{log}");
    assert!(archive(&agent, "0123abcd").exists() && !archive(&agent, "plain").exists());
}

#[tokio::test]
async fn failed_extraction_is_a_warning_and_its_files_are_removed() {
    let mut agent = Agent::start().await;
    run_job_that_saves_cache(&mut agent, "main", "content").await;
    let mut bytes = fs::read(archive(&agent, "main")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 8].fill(0);
    fs::write(archive(&agent, "main"), bytes).unwrap();
    let cleaned_up = CacheEntry { clean_up_failed: true, ..entry(&agent, "main") };
    let plan = agent.plan(vec![
        script(&["mkdir -p vendor/sub; touch vendor/sub/half"]),
        restore(cleaned_up),
        script(&["[ -e vendor ] || echo vendor was removed"]),
    ]);
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("WARNING: Failed to extract cache") && log.contains("\nRemoving vendor/\n"), "{log}");
    assert!(log.contains("\nvendor was removed\n"), "{log}");
}

#[tokio::test]
async fn cache_key_cannot_leave_the_cache_directory() {
    let mut agent = Agent::start().await;
    let create = script(&["mkdir -p vendor; touch vendor/lib"]);
    for key in ["../outside", "/outside", ""] {
        let plan = agent.plan(vec![restore(entry(&agent, key)), create.clone(), save(entry(&agent, key))]);
        let (log, result) = agent.complete(&plan).await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        let outside = log.matches(&format!("cache key \"{key}\" points outside the cache directory")).count();
        let skipped = log.matches("Skipping cache archiving due to empty cache key").count();
        assert_eq!((outside, skipped), if key.is_empty() { (0, 1) } else { (2, 0) }, "{log}");
    }
    assert!(!agent.dir.path().join("outside").exists() && !cache_dir(&agent).exists());
}

#[tokio::test]
async fn link_in_a_cache_is_restored_as_a_link() {
    let mut agent = Agent::start().await;
    let paths = ["v1", "cur"].map(str::to_owned).into();
    let linked = CacheEntry { paths, ..entry(&agent, "linked") };
    let create = script(&["mkdir v1; echo 1 > v1/f; ln -s v1 cur"]);
    agent.complete(&agent.plan(vec![create, save(linked.clone())])).await;
    fs::remove_dir_all(agent.project()).unwrap();
    let (log, _) = agent.complete(&agent.plan(vec![restore(linked), script(&["readlink cur; cat cur/f"])])).await;
    assert!(log.contains("Successfully extracted cache") && log.contains("\nv1\n1\n"), "{log}");
    assert!(!log.contains("WARNING"), "{log}");
}
