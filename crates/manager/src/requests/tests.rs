use std::path::Path;

use muster_job::Secret;
use muster_telemetry::spans::SpanSettings;
use muster_telemetry::{Build, Telemetry};

use super::*;

fn settings(runners: &[Arc<RunnerSettings>]) -> Settings {
    Settings { runners: runners.to_vec(), ..Settings::new() }
}

/// Returns the requests of one runner with lanes 0 to 2 of an earlier process. Lanes 0 and 1 have a request in flight.
async fn two_in_flight(home: &Path) -> (Requests, Arc<RunnerSettings>, [String; 3]) {
    let store = Arc::new(Store::open(home).await.unwrap());
    let telemetry = Telemetry::new(&Build::default(), &Arc::default(), SpanSettings::default());
    let mut requests = Requests::new(store, Observer::new(telemetry));
    let runner = Arc::new(RunnerSettings::new("http://127.0.0.1:1".parse().unwrap(), Secret::new("glrt-token"), 1));
    let keys = keys(&requests, &runner);
    requests.configure(&settings(&[Arc::clone(&runner)]));
    requests.runners.get_mut(&runner.key).unwrap().busy = [0, 1].into();
    (requests, runner, keys)
}

fn keys(requests: &Requests, runner: &RunnerSettings) -> [String; 3] {
    [0, 1, 2].map(|lane| requests.store.lane_key(&runner.key, lane).unwrap())
}

fn end(requests: &mut Requests, runner: &RunnerSettings, lane: u32, answer: &PollResult, honors_key: bool) {
    requests.runners.get_mut(&runner.key).unwrap().request_ended(lane, answer, honors_key);
    requests.forget_removed_runners();
}

#[tokio::test]
async fn answered_lanes_of_removed_runner_are_deleted_after_its_last_request() {
    let home = tempfile::tempdir().unwrap();
    let (mut requests, runner, before) = two_in_flight(home.path()).await;
    end(&mut requests, &runner, 0, &PollResult::Empty { changed: false }, true);
    requests.configure(&settings(&[]));
    assert_eq!(keys(&requests, &runner), before, "a request is in flight");
    end(&mut requests, &runner, 1, &PollResult::Canceled, true);
    assert!(requests.runners.is_empty());
    let after = keys(&requests, &runner);
    assert_ne!(after[0], before[0], "an answered lane is deleted");
    assert_eq!(after[1], before[1], "a canceled request may have been answered with a job");
    assert_eq!(after[2], before[2], "a request of an earlier process may have been answered with a job");
}

#[tokio::test]
async fn all_lanes_are_deleted_if_the_coordinator_ignores_their_keys() {
    let home = tempfile::tempdir().unwrap();
    let (mut requests, runner, before) = two_in_flight(home.path()).await;
    end(&mut requests, &runner, 0, &PollResult::Empty { changed: false }, false);
    requests.configure(&settings(&[]));
    end(&mut requests, &runner, 1, &PollResult::Canceled, false);
    let after = keys(&requests, &runner);
    assert!(before.iter().all(|key| !after.contains(key)), "{before:?} {after:?}");
}

#[tokio::test]
async fn lanes_of_configured_runner_are_kept() {
    let home = tempfile::tempdir().unwrap();
    let (mut requests, runner, before) = two_in_flight(home.path()).await;
    for lane in [0, 1] {
        end(&mut requests, &runner, lane, &PollResult::Empty { changed: false }, false);
    }
    requests.configure(&settings(&[Arc::clone(&runner)]));
    assert_eq!(keys(&requests, &runner), before);
}

#[tokio::test]
async fn each_lane_whose_answer_may_be_lost_needs_a_request() {
    let home = tempfile::tempdir().unwrap();
    let (mut requests, runner, _) = two_in_flight(home.path()).await;
    let needed = |requests: &Requests| requests.needed_requests().map(|(_, needed)| needed).collect::<Vec<_>>();
    let no_job = PollResult::Empty { changed: false };
    assert_eq!(needed(&requests), [0], "the coordinator may ignore keys");
    end(&mut requests, &runner, 0, &no_job, true);
    assert_eq!(needed(&requests), [2], "lanes 1 and 2");
    requests.runners.get_mut(&runner.key).unwrap().busy.insert(2);
    assert_eq!(needed(&requests), [0], "both have a request in flight");
    let unsent = ClientError::Setup("an invalid certificate".to_owned());
    end(&mut requests, &runner, 1, &PollResult::Canceled, true);
    assert_eq!(needed(&requests), [2]);
    assert_eq!(requests.runners[&runner.key].next_free(), 1);
    end(&mut requests, &runner, 2, &no_job, true);
    assert_eq!(needed(&requests), [1]);
    end(&mut requests, &runner, 0, &PollResult::Failed(unsent), true);
    assert_eq!(needed(&requests), [1], "a request that was not sent has lost no job");
    end(&mut requests, &runner, 1, &no_job, true);
    assert_eq!(needed(&requests), [0]);
    end(&mut requests, &runner, 0, &PollResult::Superseding, true);
    assert_eq!(needed(&requests), [1], "the same key brings the later assignment again");
}

#[tokio::test]
async fn no_lane_needs_a_request_if_the_coordinator_ignores_their_keys() {
    let home = tempfile::tempdir().unwrap();
    let (mut requests, runner, _) = two_in_flight(home.path()).await;
    end(&mut requests, &runner, 0, &PollResult::Empty { changed: false }, false);
    assert!(requests.needed_requests().all(|(_, needed)| needed == 0));
}
