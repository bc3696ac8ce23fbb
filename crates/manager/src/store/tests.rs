use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use muster_executor::{LeaseRecord, Slot, SlotKey};
use muster_job::{JobId, Secret};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

/// A `state.log` of version 1 with jobs 7 (running) and 8 (received) of one runner, a deleted job, and two lanes.
const LOG_1: &[u8] = include_bytes!("../../tests/samples/state_v1.log");

fn payload(id: i64) -> JobPayload {
    serde_json::from_value(serde_json::json!({ "id": id, "token": "secret" })).unwrap()
}

fn runner(url: &str) -> Arc<RunnerSettings> {
    Arc::new(RunnerSettings::new(url.parse().unwrap(), Secret::new("glrt-token"), 1))
}

/// Stores a new job that lane 0 received.
fn insert(store: &Store, runner: &Arc<RunnerSettings>, payload: JobPayload) -> StoredJob {
    match store.insert_job(runner, 0, payload).unwrap() {
        Insertion::New(job) => *job,
        known => panic!("{known:?}"),
    }
}

fn run_id(runner: &RunnerSettings, id: i64) -> JobRunId {
    JobRunId::new(JobId(id), &runner.url)
}

fn leased() -> JobState {
    let slot = Slot { id: 0, project_slot: 0, key: SlotKey { runner: "short".to_owned(), project_id: 1 } };
    let lease = LeaseRecord::local("host", slot);
    JobState::received().assign_lease(lease, 0).unwrap()
}

#[tokio::test]
async fn job_is_stored_once_and_lane_gets_new_key() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    let (one, two) = (runner("http://one"), runner("http://two"));
    let key = store.lane_key(&one.key, 0).unwrap();
    assert_eq!(store.lane_key(&one.key, 0).unwrap(), key, "the key must not change before a job arrives");
    let of_two = store.lane_key(&two.key, 0).unwrap();
    assert_ne!(of_two, key, "each runner has its own lanes");
    insert(&store, &one, payload(7));
    assert_ne!(store.lane_key(&one.key, 0).unwrap(), key);
    assert_eq!(store.lane_key(&two.key, 0).unwrap(), of_two);
    store.set_state(&run_id(&one, 7), &leased()).unwrap();
    assert_eq!(store.insert_job(&one, 0, payload(7)).unwrap(), Insertion::Duplicate, "a duplicate is not stored");
    assert_eq!(store.job(&run_id(&one, 7), &one).unwrap().unwrap().state, leased());
    // Another coordinator's job with the same number.
    insert(&store, &two, payload(7));
}

#[tokio::test]
async fn later_assignment_comes_again_until_the_earlier_one_is_deleted() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    let runner = runner("http://one");
    insert(&store, &runner, payload(7));
    let key = store.lane_key(&runner.key, 0).unwrap();
    let later = JobPayload { token: "another".to_owned(), ..payload(7) };
    assert_eq!(store.insert_job(&runner, 0, later.clone()).unwrap(), Insertion::Superseding);
    assert_eq!(store.lane_key(&runner.key, 0).unwrap(), key);
    assert_eq!(store.job(&run_id(&runner, 7), &runner).unwrap().unwrap().payload, payload(7));
    store.delete(&run_id(&runner, 7)).unwrap();
    assert_eq!(insert(&store, &runner, later.clone()).payload, later);
    assert_ne!(store.lane_key(&runner.key, 0).unwrap(), key);
}

#[tokio::test]
async fn stored_jobs_are_restored_with_their_runner() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    assert!(matches!(Store::open(home.path()).await, Err(StoreError::InUse(_))));
    let (old, new) =
        (runner("http://one"), Arc::new(RunnerSettings { limit: Some(3), ..(*runner("http://one")).clone() }));
    let key = store.lane_key(&old.key, 1).unwrap();
    let first = insert(&store, &old, payload(7));
    store.insert_job(&old, 0, payload(8)).unwrap();
    let last = insert(&store, &new, payload(9));
    store.delete(&run_id(&old, 8)).unwrap();
    drop(store);
    let store = Store::open(home.path()).await.unwrap();
    let stored = |id, runner: &Arc<RunnerSettings>, received_ms| StoredJob {
        run: run_id(runner, id),
        runner: Some(Arc::clone(runner)),
        payload: payload(id),
        state: JobState::received(),
        received_ms,
    };
    assert_eq!(store.jobs(), [stored(7, &old, first.received_ms), stored(9, &new, last.received_ms)]);
    assert_eq!(store.lane_key(&old.key, 1).unwrap(), key);
    let mode = std::fs::metadata(home.path().join("state.log")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "other users must not read the tokens");
}

#[tokio::test]
async fn open_waits_for_lock_of_killed_managers_child() {
    let home = tempfile::tempdir().unwrap();
    let copy = private_file(&home.path().join("manager.lock")).unwrap();
    flock(&copy, FlockOperation::NonBlockingLockExclusive).unwrap();
    // The store is polled first, so it finds the lock held.
    let (opened, ()) = tokio::join!(Store::open(home.path()), async { drop(copy) });
    opened.unwrap();
}

#[tokio::test]
async fn new_state_directory_is_private_and_existing_one_unchanged() {
    let home = tempfile::tempdir().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let state = home.path().join("above/state");
    drop(Store::open(&state).await.unwrap());
    assert_eq!(mode(&state), 0o700);
    let shared = home.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o755)).unwrap();
    drop(Store::open(&shared).await.unwrap());
    assert_eq!(mode(&shared), 0o755, "the mode of an existing directory must not change");
    for entry in std::fs::read_dir(&shared).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()) & 0o077, 0);
    }
}

async fn store_of(home: &Path, bytes: &[u8]) -> Store {
    std::fs::write(home.join("state.log"), bytes).unwrap();
    Store::open(home).await.unwrap()
}

fn ids_and_states(jobs: &[StoredJob]) -> Vec<(&str, &str)> {
    jobs.iter().map(|job| (job.run.as_str(), job.state.name())).collect()
}

#[tokio::test]
async fn state_log_of_version_1_is_read() {
    let home = tempfile::tempdir().unwrap();
    let store = store_of(home.path(), LOG_1).await;
    let jobs = store.jobs();
    assert_eq!(ids_and_states(&jobs), [("7-0a1b2c3d", "running"), ("8-0a1b2c3d", "received")]);
    assert!(jobs.iter().all(|job| job.runner.as_ref().is_some_and(|runner| runner.name == "kept")));
    let keys = [0, 3].map(|lane| store.lane_key(&jobs[0].runner.as_ref().unwrap().key, lane).unwrap());
    assert_eq!(keys, ["9".repeat(32), "3".repeat(32)]);
}

#[tokio::test]
async fn truncated_file_keeps_complete_lines() {
    let home = tempfile::tempdir().unwrap();
    let first = LOG_1.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    // Jobs after each complete line: version, runner, job 7, lane, job 6, state of 7, deletion of 6, job 8.
    let expected: [&[_]; 8] = [
        &[],
        &[],
        &[("7-0a1b2c3d", "received")],
        &[("7-0a1b2c3d", "received")],
        &[("7-0a1b2c3d", "received"), ("6-0a1b2c3d", "received")],
        &[("7-0a1b2c3d", "running"), ("6-0a1b2c3d", "received")],
        &[("7-0a1b2c3d", "running")],
        &[("7-0a1b2c3d", "running"), ("8-0a1b2c3d", "received")],
    ];
    for length in first..=LOG_1.len() {
        let lines = LOG_1[..length].iter().filter(|byte| **byte == b'\n').count();
        let store = store_of(home.path(), &LOG_1[..length]).await;
        assert_eq!(ids_and_states(&store.jobs()), expected[lines - 1], "{length}");
        store.insert_job(&runner("http://one"), 9, payload(99)).unwrap();
        drop(store);
        let jobs = Store::open(home.path()).await.unwrap().jobs();
        assert_eq!(jobs.len(), expected[lines - 1].len() + 1, "{length}");
    }
}

#[tokio::test]
async fn damaged_line_affects_no_other_line() {
    let home = tempfile::tempdir().unwrap();
    let mut bytes = LOG_1.to_vec();
    let state = LOG_1.windows(7).position(|text| text == b"running").unwrap();
    bytes[state] = b'R';
    let store = store_of(home.path(), &bytes).await;
    assert_eq!(ids_and_states(&store.jobs()), [("7-0a1b2c3d", "received"), ("8-0a1b2c3d", "received")]);
}

#[test]
fn newer_version_is_refused_and_unchanged() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("state.log");
    let text = "{\"version\":2}";
    let bytes = format!("{:08x} {text}\n", crc32fast::hash(text.as_bytes()));
    std::fs::write(&path, &bytes).unwrap();
    let error = StateIndex::open(&path).unwrap_err().to_string();
    assert!(error.contains("has version 2, which this version of Muster does not support"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), bytes);
}

fn content_of(store: &Store, runners: &[Arc<RunnerSettings>]) -> (Vec<String>, Vec<String>) {
    let jobs = store.jobs().iter().map(|job| format!("{job:?}")).collect();
    let keys = runners.iter().flat_map(|runner| (0..3).map(|lane| store.lane_key(&runner.key, lane).unwrap()));
    (jobs, keys.collect())
}

#[tokio::test]
async fn compaction_keeps_content_during_writes() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let home = tempfile::tempdir().unwrap();
    let runners = [runner("http://one"), runner("http://two")];
    let mut active: BTreeMap<i64, usize> = BTreeMap::new();
    let mut store = Store::open(home.path()).await.unwrap();
    let mut id = 0;
    let mut write = |random: &mut StdRng, store: &Store, active: &mut BTreeMap<i64, usize>| {
        for _ in 0..random.random_range(0..12) {
            let known = active.keys().copied().nth(random.random_range(0..active.len().max(1)));
            match (random.random_range(0..3), known) {
                (0, Some(id)) => store.set_state(&run_id(&runners[active[&id]], id), &leased()).unwrap(),
                (1, Some(id)) => store.delete(&run_id(&runners[active.remove(&id).unwrap()], id)).unwrap(),
                _ => {
                    id += 1;
                    let runner_index = random.random_range(0..2);
                    store.insert_job(&runners[runner_index], random.random_range(0..3), payload(id)).unwrap();
                    active.insert(id, runner_index);
                }
            }
        }
    };
    for _ in 0..60 {
        write(&mut random, &store, &mut active);
        store.index.lock().min_compaction_bytes = [0, 0];
        let compactor = store.index.lock().compactor().unwrap();
        let copied = compactor.map(|compactor| {
            let copied = compactor.copy(&index::encode(&Record::Version(record::VERSION)).unwrap()).unwrap();
            write(&mut random, &store, &mut active);
            copied
        });
        let expected = content_of(&store, &runners);
        let stored: BTreeSet<JobRunId> = store.jobs().into_iter().map(|job| job.run).collect();
        let written = active.iter().map(|(id, runner_index)| run_id(&runners[*runner_index], *id));
        assert_eq!(stored, written.collect());
        // In some rounds, the copy is dropped, as if the manager were killed before it uses the copy.
        if let Some(copied) = copied.filter(|_| random.random_bool(0.8)) {
            let before = log_bytes(home.path());
            store.index.lock().replace_with(copied).unwrap();
            // The lengths are equal if all written lines are live.
            let after = log_bytes(home.path());
            assert!(after <= before, "{after} > {before}");
        }
        assert_eq!(content_of(&store, &runners), expected);
        if random.random_bool(0.5) {
            drop(store);
            store = Store::open(home.path()).await.unwrap();
        }
        assert_eq!(content_of(&store, &runners), expected);
    }
    // Many lines are obsolete, even if few jobs were left.
    for id in 1000..1020 {
        store.insert_job(&runners[0], 0, payload(id)).unwrap();
    }
    let stored = store.jobs();
    for job in &stored {
        store.delete(&job.run).unwrap();
    }
    let before = log_bytes(home.path());
    store.index.lock().min_compaction_bytes = [0, 0];
    let compactor = store.index.lock().compactor().unwrap().expect("a file without jobs has lines to drop");
    let copied = compactor.copy(&index::encode(&Record::Version(record::VERSION)).unwrap()).unwrap();
    store.index.lock().replace_with(copied).unwrap();
    let after = log_bytes(home.path());
    assert!(after < before, "the copy must be shorter: {after} >= {before}");
}

/// Returns the length of `state.log`.
fn log_bytes(home: &Path) -> u64 {
    std::fs::metadata(home.join("state.log")).unwrap().len()
}

/// Stores and deletes 400 jobs.
fn write_ended_jobs(store: &Store) {
    let runner = runner("http://one");
    for id in 0..400 {
        store.insert_job(&runner, 0, payload(id)).unwrap();
        store.delete(&run_id(&runner, id)).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn sync_task_ends_when_nothing_is_written() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    write_ended_jobs(&store);
    let long = log_bytes(home.path());
    while store.index.lock().has_sync_task {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(!store.index.lock().unsynced);
    let short = log_bytes(home.path());
    assert!(long > 64 * 1024 && short < 1024, "tokens of ended jobs must be removed: {long}, {short}");
}

#[tokio::test(start_paused = true)]
async fn failed_compaction_is_retried_and_writes_nothing_to_state_log() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    write_ended_jobs(&store);
    let key = store.lane_key(&runner("http://one").key, 0).unwrap();
    let before = log_bytes(home.path());
    let obstacle = home.path().join("state.part");
    std::fs::create_dir(&obstacle).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(log_bytes(home.path()), before);
    std::fs::remove_dir(&obstacle).unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!store.index.lock().has_sync_task);
    let after = log_bytes(home.path());
    assert!(after < 1024, "the compaction must be retried: {before}, {after}");
    drop(store);
    let store = Store::open(home.path()).await.unwrap();
    assert_eq!(store.lane_key(&runner("http://one").key, 0).unwrap(), key);
}

#[tokio::test(start_paused = true)]
async fn idle_manager_with_many_lanes_writes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    let runner = runner("http://one");
    for lane in 0..1500 {
        store.lane_key(&runner.key, lane).unwrap();
    }
    let before = log_bytes(home.path());
    assert!(before > 64 * 1024, "the file must be long enough for a compaction: {before}");
    assert!(store.index.lock().compactor().unwrap().is_none(), "the lines of lanes are not obsolete");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!store.index.lock().has_sync_task);
    assert_eq!(log_bytes(home.path()), before);
}

#[tokio::test(start_paused = true)]
async fn failing_compaction_is_retried_with_growing_waits_and_new_lines_are_synced() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    write_ended_jobs(&store);
    let obstacle = home.path().join("state.part");
    std::fs::create_dir(&obstacle).unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let failures = store.index.lock().compaction_backoff.failures();
    assert!((8..40).contains(&failures), "{failures} attempts in 10 minutes");
    store.lane_key(&runner("http://two").key, 0).unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(!store.index.lock().unsynced);
    std::fs::remove_dir(&obstacle).unwrap();
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert!(!store.index.lock().has_sync_task);
    assert!(log_bytes(home.path()) < 1024, "the compaction must be retried");
}

#[tokio::test(start_paused = true)]
async fn lines_are_copied_to_new_file_after_failed_sync() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    store.insert_job(&runner("http://one"), 0, payload(7)).unwrap();
    // A pipe cannot be synced. Later syncs of the file succeed, as on Linux after a failed one.
    let (reader, _writer) = std::io::pipe().unwrap();
    store.index.lock().unsyncable = Some(File::from(OwnedFd::from(reader)));
    let inode = || std::fs::metadata(home.path().join("state.log")).unwrap().ino();
    let before = inode();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(store.index.lock().unsyncable.is_none());
    assert_ne!(inode(), before, "the lines must be in a new file");
    let after = inode();
    store.insert_job(&runner("http://one"), 0, payload(8)).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!store.index.lock().has_sync_task);
    assert_eq!(inode(), after, "the new file must be synced like any other");
    drop(store);
    assert_eq!(Store::open(home.path()).await.unwrap().jobs().len(), 2);
}

#[tokio::test]
async fn removed_lane_of_a_stored_job_is_not_restored_after_a_compaction() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    let runner = runner("http://one");
    store.insert_job(&runner, 0, payload(7)).unwrap();
    let key = store.lane_key(&runner.key, 0).unwrap();
    store.remove_lanes(&runner.key, |_| false).unwrap();
    store.index.lock().must_rewrite = true;
    super::sync::sync_or_compact(&store.index).await.unwrap();
    drop(store);
    let store = Store::open(home.path()).await.unwrap();
    assert_eq!(store.jobs().len(), 1);
    assert!(store.index.lock().lanes_of(&runner.key).is_empty());
    assert_ne!(store.lane_key(&runner.key, 0).unwrap(), key);
}

#[tokio::test]
async fn removed_lanes_are_not_restored() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    let (one, two) = (runner("http://one").key.clone(), runner("http://two").key.clone());
    let keys = |store: &Store| [(&one, 0), (&one, 1), (&two, 0)].map(|(key, lane)| store.lane_key(key, lane).unwrap());
    let before = keys(&store);
    store.remove_lanes(&one, |lane| lane == 1).unwrap();
    assert_eq!(store.lanes_of(&one), [1].into());
    drop(store);
    let store = Store::open(home.path()).await.unwrap();
    assert_eq!(store.lanes_of(&one), [1].into());
    let after = keys(&store);
    assert_eq!(after[1..], before[1..]);
    assert_ne!(after[0], before[0]);
}
