//! Held job requests: their number, and how they end.

#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

use std::sync::Arc;
use std::time::Duration;

use muster_coordinator::NewRunner;
use muster_runner_api::service::{JobRequestAnswer, RunnerService};
use muster_runner_api::wire::JobRequest;
use tokio::task::JoinHandle;

use crate::support::{Bench, Manager, SOON, job};

/// Sends a job request, and returns once it is in the coordinator's channel.
async fn ask(manager: &Manager) -> JoinHandle<JobRequestAnswer> {
    let (coordinator, request) = (Arc::clone(&manager.coordinator), manager.request(None));
    let asking = tokio::spawn(async move { coordinator.request_job(request).await.expect("a job or 204") });
    // The runtime of the test has one thread, so the request is in the channel before this call.
    tokio::task::yield_now().await;
    manager.coordinator.stuck_jobs().await.expect("running");
    asking
}

async fn answer(asking: JoinHandle<JobRequestAnswer>) -> Option<String> {
    let answer = tokio::time::timeout(SOON, asking).await.expect("soon").expect("no panic");
    answer.job.map(|job| job.job_info.name)
}

#[tokio::test]
async fn held_requests_are_limited() {
    let bench = Bench::with(|options| {
        options.limits.held_requests = 2;
        options.long_poll = Duration::from_secs(50);
    })
    .await;
    let plain = bench.manager().await;
    let tagged = bench.manager_with(NewRunner { tags: vec!["x".to_owned()], ..NewRunner::default() }).await;
    let held = [ask(&plain).await, ask(&plain).await];
    assert_eq!(answer(ask(&plain).await).await, None, "an answer although the clock stands still");
    assert!(held.iter().all(|asking| !asking.is_finished()));

    // A closed request frees its slot.
    let mut special = job("special");
    special.tags = vec!["x".to_owned()];
    bench.create(vec![vec![special]]).await;
    assert_eq!(answer(ask(&tagged).await).await.as_deref(), Some("special"));
    assert!(held.iter().all(|asking| !asking.is_finished()));

    // A request that was given up frees its slot.
    let [given_up, first] = held;
    given_up.abort();
    let _ = given_up.await;
    let second = ask(&plain).await;
    bench.create(vec![vec![job("a"), job("b")]]).await;
    assert_eq!([answer(first).await.as_deref(), answer(second).await.as_deref()], [Some("a"), Some("b")]);
}

#[tokio::test]
async fn first_request_gets_queue_version_or_job_at_once() {
    let bench = Bench::with(|options| options.long_poll = Duration::from_secs(50)).await;
    let manager = bench.manager().await;
    let first = || JobRequest { last_update: String::new(), ..manager.request(None) };
    let ask = |request| tokio::time::timeout(SOON, bench.coordinator.request_job(request));
    let nothing = ask(first()).await.expect("an answer although the clock stands still").expect("204");
    assert!(nothing.job.is_none() && !nothing.last_update.is_empty());
    let held = ask(JobRequest { last_update: nothing.last_update, ..manager.request(None) });
    let (held, _) = tokio::join!(held, bench.create(vec![vec![job("a")]]));
    assert_eq!(held.expect("soon").expect("201").job.expect("the held request got the job").job_info.name, "a");
    bench.create(vec![vec![job("b")]]).await;
    assert_eq!(ask(first()).await.expect("soon").expect("201").job.expect("a job").job_info.name, "b");
}

#[tokio::test]
async fn held_requests_end_without_error_at_the_shutdown() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    let held = ask(&manager).await;
    let ending = tokio::spawn({
        let coordinator = Arc::clone(&bench.coordinator);
        async move { coordinator.shutdown().await }
    });
    let behind = tokio::spawn({
        let (coordinator, request) = (Arc::clone(&bench.coordinator), manager.request(None));
        // This request is in the channel after the shutdown command.
        async move { coordinator.request_job(request).await.expect("204") }
    });
    assert_eq!([answer(held).await, answer(behind).await], [None, None]);
    ending.await.expect("ended");
}
