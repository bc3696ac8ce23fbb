//! Caches stored as chunks on this machine.

use std::fs;
use std::path::PathBuf;

use muster_agent_api::builtin::{CacheEntry, CacheRestore, CacheSave, ChunkCache};
use muster_agent_api::plan::{Call, Step, When};
use muster_agent_api::result::Outcome;

use crate::harness::*;

const CREATE: &str =
    "mkdir -p vendor; for i in $(seq 40); do seq $((i * 1000)) $((i * 1000 + 4500)) > vendor/file$i; done";

fn entry(agent: &Agent, key: &str, level: &str) -> CacheEntry {
    CacheEntry {
        key: key.to_owned(),
        cache_dir: agent.dir.path().join("cache").to_string_lossy().into_owned(),
        paths: vec!["vendor/".to_owned()],
        chunks: Some(ChunkCache { level: level.to_owned(), store: None }),
        ..CacheEntry::default()
    }
}

fn restore(entry: CacheEntry) -> Step {
    step("restore_cache", When::OnSuccess, Call::builtin(&CacheRestore { caches: vec![entry] }))
}

fn save(entry: CacheEntry) -> Step {
    step("archive_cache", When::OnSuccess, Call::builtin(&CacheSave { caches: vec![entry] }))
}

async fn run(agent: &mut Agent, steps: Vec<Step>) -> String {
    let plan = agent.plan(steps);
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    log
}

/// Returns the object files, largest first.
fn objects(agent: &Agent, level: &str) -> Vec<PathBuf> {
    let directory = agent.dir.path().join("cache/.chunks").join(level).join("objects");
    let mut found: Vec<_> = fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    found.sort_by_key(|path| std::cmp::Reverse(path.metadata().unwrap().len()));
    found
}

#[tokio::test]
async fn only_changes_are_stored_and_restored() {
    let mut agent = Agent::start().await;
    let cache = entry(&agent, "deps-main", "unprotected");
    let log = run(&mut agent, vec![restore(cache.clone()), script(&[CREATE]), save(cache.clone())]).await;
    assert!(log.contains("Cache does not exist") && log.contains("Created cache"), "{log}");
    let first = objects(&agent, "unprotected");
    fs::remove_dir_all(agent.project()).unwrap();

    let change = script(&["ls vendor | wc -l; echo changed > vendor/file7"]);
    let log = run(&mut agent, vec![restore(cache.clone()), change, save(cache.clone())]).await;
    assert!(log.contains("\n40\n") && log.contains("Successfully extracted cache"), "{log}");
    let new: u64 = objects(&agent, "unprotected")
        .iter()
        .filter(|path| !first.contains(path))
        .map(|path| path.metadata().unwrap().len())
        .sum();
    let all: u64 = first.iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(new * 10 < all, "less than a tenth of the {all} bytes must be stored again, not {new}");

    // The project's files already have the cache's content.
    let check = script(&["cat vendor/file7"]);
    let log = run(&mut agent, vec![restore(cache.clone()), check, save(cache.clone())]).await;
    assert!(log.contains(": 0.0 MB were restored") && log.contains("\nchanged\n"), "{log}");
    assert!(log.contains("Archive is up to date!") && log.contains("0.0 MB were stored"), "{log}");

    // Another branch shares all chunks.
    let before = objects(&agent, "unprotected").len();
    let branch = entry(&agent, "deps-branch", "unprotected");
    run(&mut agent, vec![save(branch)]).await;
    assert_eq!(objects(&agent, "unprotected").len(), before + 1, "only the index must be new");
}

#[tokio::test]
async fn protection_levels_share_nothing() {
    let mut agent = Agent::start().await;
    let unprotected = entry(&agent, "deps", "unprotected");
    run(&mut agent, vec![script(&[CREATE]), save(unprotected)]).await;
    let protected = entry(&agent, "deps", "protected");
    let log = run(&mut agent, vec![restore(protected.clone()), save(protected)]).await;
    assert!(log.contains("Cache does not exist"), "{log}");
    // The pack with the chunks is the largest object.
    let pack_size = |level| objects(&agent, level).iter().map(|path| path.metadata().unwrap().len()).max().unwrap();
    assert_eq!(pack_size("protected"), pack_size("unprotected"), "all chunks must be stored again");
    let invalid = entry(&agent, "deps", "../unprotected");
    let log = run(&mut agent, vec![restore(invalid.clone()), save(invalid)]).await;
    assert!(log.contains("`../unprotected` is not a valid protection level"), "{log}");
}

#[tokio::test]
async fn damaged_cache_counts_as_missing_and_the_next_save_repairs_it() {
    let mut agent = Agent::start().await;
    let cache = entry(&agent, "deps", "unprotected");
    run(&mut agent, vec![script(&[CREATE]), save(cache.clone())]).await;
    let pack = objects(&agent, "unprotected").remove(0);
    let mut bytes = fs::read(&pack).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&pack, bytes).unwrap();
    fs::remove_dir_all(agent.project()).unwrap();

    // Reads the restored files, if there are any. It cannot fail, and its output is not checked.
    let read_files = "for file in vendor/*; do [ -e \"$file\" ] && tail -n 1 $file; done; true";
    let log = run(&mut agent, vec![restore(cache.clone()), script(&[read_files, CREATE]), save(cache.clone())]).await;
    assert!(
        log.contains("WARNING: Failed to extract cache: ") && log.contains("failed to read a chunk of the pack"),
        "{log}"
    );
    assert!(!pack.exists(), "the damaged pack must be deleted");
    fs::remove_dir_all(agent.project()).unwrap();
    let sum = "cat $(ls -v vendor/*) | md5sum";
    let log = run(&mut agent, vec![restore(cache.clone()), script(&[sum])]).await;
    assert!(log.contains("Successfully extracted cache"), "{log}");
    let restored = log.lines().find(|line| line.ends_with("  -")).unwrap().to_owned();
    let log = run(&mut agent, vec![script(&["rm -r vendor", CREATE, sum])]).await;
    assert!(log.contains(&restored), "{log}");
}
