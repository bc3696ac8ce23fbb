use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use muster_executor::{LeaseRecord, Slot, SlotKey};
use muster_job::{JobId, Secret};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

/// A state.log of version 1: jobs 7 (running) and 8 (received) of one runner, a deleted job, and two lanes.
const LOG_1: &[u8] = include_bytes!("../../tests/samples/state_v1.log");

fn payload(id: i64) -> JobPayload {
    serde_json::from_value(serde_json::json!({ "id": id, "token": "secret" })).unwrap()
}

fn runner(url: &str) -> Arc<RunnerSettings> {
    Arc::new(RunnerSettings::new(url.parse().unwrap(), Secret::new("glrt-token"), 1))
}

fn name(runner: &RunnerSettings, id: i64) -> RunName {
    RunName::new(JobId(id), &runner.url)
}

fn leased() -> JobState {
    let slot = Slot { id: 0, project_slot: 0, key: SlotKey { runner: "short".to_owned(), project_id: 1 } };
    let lease = LeaseRecord::local("host", slot);
    JobState::taken().lease(lease, 0).unwrap()
}

#[tokio::test]
async fn a_job_is_stored_once_and_its_lane_asks_with_a_new_key() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    let (one, two) = (runner("http://one"), runner("http://two"));
    let key = store.lane_key(&one.key, 0).unwrap();
    assert_eq!(store.lane_key(&one.key, 0).unwrap(), key, "the same until a job came");
    let of_two = store.lane_key(&two.key, 0).unwrap();
    assert_ne!(of_two, key, "each runner has lanes of its own");
    assert!(store.take(&one, 0, payload(7)).unwrap().is_some());
    assert_ne!(store.lane_key(&one.key, 0).unwrap(), key);
    assert_eq!(store.lane_key(&two.key, 0).unwrap(), of_two);
    store.set_state(&name(&one, 7), &leased()).unwrap();
    assert_eq!(store.take(&one, 0, payload(7)).unwrap(), None, "a repetition changes nothing");
    assert_eq!(store.job(&name(&one, 7), &one).unwrap().unwrap().state, leased());
    assert!(store.take(&two, 0, payload(7)).unwrap().is_some(), "another coordinator's job of the same number");
}

#[tokio::test]
async fn what_is_stored_is_there_after_a_new_start_with_its_runner() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    assert!(matches!(Store::open(home.path()).await, Err(StoreError::InUse(_))));
    let (old, new) =
        (runner("http://one"), Arc::new(RunnerSettings { limit: Some(3), ..(*runner("http://one")).clone() }));
    let key = store.lane_key(&old.key, 1).unwrap();
    let first = store.take(&old, 0, payload(7)).unwrap().unwrap();
    store.take(&old, 0, payload(8)).unwrap();
    let last = store.take(&new, 0, payload(9)).unwrap().unwrap();
    store.delete(&name(&old, 8)).unwrap();
    drop(store);
    let store = Store::open(home.path()).await.unwrap();
    let stored = |id, runner: &Arc<RunnerSettings>, taken_ms| StoredJob {
        run: name(runner, id),
        runner: Some(Arc::clone(runner)),
        payload: payload(id),
        state: JobState::taken(),
        taken_ms,
    };
    assert_eq!(store.jobs(), [stored(7, &old, first.taken_ms), stored(9, &new, last.taken_ms)]);
    assert_eq!(store.lane_key(&old.key, 1).unwrap(), key);
    let mode = std::fs::metadata(home.path().join("state.log")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "payloads hold tokens");
}

#[tokio::test]
async fn a_copy_of_the_lock_that_a_killed_managers_child_still_has_is_waited_for() {
    let home = tempfile::tempdir().unwrap();
    let copy = private_file(&home.path().join("manager.lock")).unwrap();
    flock(&copy, FlockOperation::NonBlockingLockExclusive).unwrap();
    // The store is polled first, so it finds the lock held.
    let (opened, ()) = tokio::join!(Store::open(home.path()), async { drop(copy) });
    opened.unwrap();
}

#[tokio::test]
async fn only_its_owner_looks_into_a_new_state_directory_and_one_that_was_there_stays_as_it_is() {
    let home = tempfile::tempdir().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let state = home.path().join("above/state");
    drop(Store::open(&state).await.unwrap());
    assert_eq!(mode(&state), 0o700);
    let shared = home.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o755)).unwrap();
    drop(Store::open(&shared).await.unwrap());
    assert_eq!(mode(&shared), 0o755, "someone may need it so");
    for entry in std::fs::read_dir(&shared).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()) & 0o077, 0);
    }
}

async fn store_of(home: &Path, bytes: &[u8]) -> Store {
    std::fs::write(home.join("state.log"), bytes).unwrap();
    Store::open(home).await.unwrap()
}

fn named(jobs: &[StoredJob]) -> Vec<(&str, &str)> {
    jobs.iter().map(|job| (job.run.as_str(), job.state.name())).collect()
}

#[tokio::test]
async fn a_kept_state_log_is_read() {
    let home = tempfile::tempdir().unwrap();
    let store = store_of(home.path(), LOG_1).await;
    let jobs = store.jobs();
    assert_eq!(named(&jobs), [("7-0a1b2c3d", "running"), ("8-0a1b2c3d", "taken")]);
    assert!(jobs.iter().all(|job| job.runner.as_ref().is_some_and(|runner| runner.name == "kept")));
    let keys = [0, 3].map(|lane| store.lane_key(&jobs[0].runner.as_ref().unwrap().key, lane).unwrap());
    assert_eq!(keys, ["9".repeat(32), "3".repeat(32)]);
}

#[tokio::test]
async fn a_file_that_was_cut_off_anywhere_holds_what_was_whole_and_what_comes_then() {
    let home = tempfile::tempdir().unwrap();
    let first = LOG_1.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    // By complete lines: version, runner, job 7, lane, job 6, state of 7, deletion of 6, job 8.
    let expected: [&[_]; 8] = [
        &[],
        &[],
        &[("7-0a1b2c3d", "taken")],
        &[("7-0a1b2c3d", "taken")],
        &[("7-0a1b2c3d", "taken"), ("6-0a1b2c3d", "taken")],
        &[("7-0a1b2c3d", "running"), ("6-0a1b2c3d", "taken")],
        &[("7-0a1b2c3d", "running")],
        &[("7-0a1b2c3d", "running"), ("8-0a1b2c3d", "taken")],
    ];
    for length in first..=LOG_1.len() {
        let lines = LOG_1[..length].iter().filter(|byte| **byte == b'\n').count();
        let store = store_of(home.path(), &LOG_1[..length]).await;
        assert_eq!(named(&store.jobs()), expected[lines - 1], "{length}");
        store.take(&runner("http://one"), 9, payload(99)).unwrap();
        drop(store);
        let jobs = Store::open(home.path()).await.unwrap().jobs();
        assert_eq!(jobs.len(), expected[lines - 1].len() + 1, "{length}");
    }
}

#[tokio::test]
async fn a_damaged_line_costs_only_what_it_said() {
    let home = tempfile::tempdir().unwrap();
    let mut bytes = LOG_1.to_vec();
    let state = LOG_1.windows(7).position(|text| text == b"running").unwrap();
    bytes[state] = b'R';
    let store = store_of(home.path(), &bytes).await;
    assert_eq!(named(&store.jobs()), [("7-0a1b2c3d", "taken"), ("8-0a1b2c3d", "taken")]);
}

#[test]
fn a_newer_version_is_refused_and_left_as_it_is() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("state.log");
    let text = "{\"version\":2}";
    let bytes = format!("{:08x} {text}\n", crc32fast::hash(text.as_bytes()));
    std::fs::write(&path, &bytes).unwrap();
    let error = Books::open(&path).unwrap_err().to_string();
    assert!(error.contains("is of version 2, which this Muster does not know"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), bytes);
}

/// Returns the content of a store as text.
fn picture(store: &Store, runners: &[Arc<RunnerSettings>]) -> (Vec<String>, Vec<String>) {
    let jobs = store.jobs().iter().map(|job| format!("{job:?}")).collect();
    let keys = runners.iter().flat_map(|runner| (0..3).map(|lane| store.lane_key(&runner.key, lane).unwrap()));
    (jobs, keys.collect())
}

#[tokio::test]
async fn a_shorter_copy_says_the_same_whatever_is_written_meanwhile() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let home = tempfile::tempdir().unwrap();
    let runners = [runner("http://one"), runner("http://two")];
    let mut live: BTreeMap<i64, usize> = BTreeMap::new();
    let mut store = Store::open(home.path()).await.unwrap();
    let mut saved = 0;
    let mut id = 0;
    let mut write = |random: &mut StdRng, store: &Store| {
        for _ in 0..random.random_range(0..12) {
            let known = live.keys().copied().nth(random.random_range(0..live.len().max(1)));
            match (random.random_range(0..3), known) {
                (0, Some(id)) => store.set_state(&name(&runners[live[&id]], id), &leased()).unwrap(),
                (1, Some(id)) => store.delete(&name(&runners[live.remove(&id).unwrap()], id)).unwrap(),
                _ => {
                    id += 1;
                    let which = random.random_range(0..2);
                    store.take(&runners[which], random.random_range(0..3), payload(id)).unwrap();
                    live.insert(id, which);
                }
            }
        }
    };
    for _ in 0..60 {
        write(&mut random, &store);
        store.books.lock().small_bytes = [0, 0];
        let copier = store.books.lock().copier().unwrap();
        if let Some(copier) = copier {
            let copied = copier.copy(&books::encode(&Record::Version(record::VERSION)).unwrap()).unwrap();
            write(&mut random, &store);
            if random.random_bool(0.2) {
                // Killed before the copy is in use.
                drop(copied);
            } else {
                let before = std::fs::metadata(home.path().join("state.log")).unwrap().len();
                store.books.lock().copied(copied).unwrap();
                // The length is the same if all that was written still counts.
                let after = std::fs::metadata(home.path().join("state.log")).unwrap().len();
                assert!(after <= before, "{after} > {before}");
                saved += before - after;
            }
        }
        let expected = picture(&store, &runners);
        assert_eq!(expected.0.len(), store.jobs().len());
        if random.random_bool(0.5) {
            drop(store);
            store = Store::open(home.path()).await.unwrap();
        }
        assert_eq!(picture(&store, &runners), expected);
    }
    assert!(saved > 0, "no copy was shorter");
}

#[tokio::test(start_paused = true)]
async fn what_was_written_is_synced_by_a_task_that_ends_when_nothing_is_written() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).await.unwrap();
    let runner = runner("http://one");
    for id in 0..400 {
        store.take(&runner, 0, payload(id)).unwrap();
        store.delete(&name(&runner, id)).unwrap();
    }
    let long = std::fs::metadata(home.path().join("state.log")).unwrap().len();
    while store.books.lock().kept {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(!store.books.lock().unsynced);
    let short = std::fs::metadata(home.path().join("state.log")).unwrap().len();
    assert!(long > 64 * 1024 && short < 1024, "tokens of jobs that are done do not stay: {long}, {short}");
}
