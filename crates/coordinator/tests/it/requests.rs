//! Requests that are held: how many, and how they end.

#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

use std::sync::Arc;
use std::time::Duration;

use muster_coordinator::NewRunner;
use muster_runner_api::service::{JobRequestAnswer, RunnerService};
use muster_runner_api::wire::JobRequest;
use tokio::task::JoinHandle;

use crate::support::{House, Manager, SOON, job};

/// A request on its way, sent before this returns.
async fn ask(manager: &Manager) -> JoinHandle<JobRequestAnswer> {
    let (coordinator, request) = (Arc::clone(&manager.coordinator), manager.request(None));
    let asking = tokio::spawn(async move { coordinator.request_job(request).await.expect("a job or 204") });
    // The test's runtime has one thread: the request is in the channel before this is asked.
    tokio::task::yield_now().await;
    manager.coordinator.stuck_jobs().await.expect("alive");
    asking
}

async fn answer(asking: JoinHandle<JobRequestAnswer>) -> Option<String> {
    let answer = tokio::time::timeout(SOON, asking).await.expect("soon").expect("no panic");
    answer.job.map(|job| job.job_info.name)
}

#[tokio::test]
async fn no_more_requests_are_held_than_the_limit_says() {
    let house = House::with(|options| {
        options.limits.held_requests = 2;
        options.long_poll = Duration::from_secs(50);
    })
    .await;
    let plain = house.manager().await;
    let tagged = house.manager_with(NewRunner { tags: vec!["x".to_owned()], ..NewRunner::default() }).await;
    let held = [ask(&plain).await, ask(&plain).await];
    assert_eq!(answer(ask(&plain).await).await, None, "the clock stands still, and it is answered");
    assert!(held.iter().all(|asking| !asking.is_finished()));

    // One who can have a job gets it all the same.
    let mut special = job("special");
    special.tags = vec!["x".to_owned()];
    house.create(vec![vec![special]]).await;
    assert_eq!(answer(ask(&tagged).await).await.as_deref(), Some("special"));
    assert!(held.iter().all(|asking| !asking.is_finished()));

    // A request that was given up frees its slot.
    let [given_up, first] = held;
    given_up.abort();
    let _ = given_up.await;
    let second = ask(&plain).await;
    house.create(vec![vec![job("a"), job("b")]]).await;
    assert_eq!([answer(first).await.as_deref(), answer(second).await.as_deref()], [Some("a"), Some("b")]);
}

#[tokio::test]
async fn a_first_request_is_answered_at_once_with_the_queue_version_and_with_a_job_where_there_is_one() {
    let house = House::with(|options| options.long_poll = Duration::from_secs(50)).await;
    let manager = house.manager().await;
    let first = || JobRequest { last_update: String::new(), ..manager.request(None) };
    let ask = |request| tokio::time::timeout(SOON, house.coordinator.request_job(request));
    let nothing = ask(first()).await.expect("the clock stands still, and it is answered").expect("204");
    assert!(nothing.job.is_none() && !nothing.last_update.is_empty());
    let held = ask(JobRequest { last_update: nothing.last_update, ..manager.request(None) });
    let (held, _) = tokio::join!(held, house.create(vec![vec![job("a")]]));
    assert_eq!(held.expect("soon").expect("201").job.expect("it was held for it").job_info.name, "a");
    house.create(vec![vec![job("b")]]).await;
    assert_eq!(ask(first()).await.expect("soon").expect("201").job.expect("a job").job_info.name, "b");
}

#[tokio::test]
async fn requests_end_without_a_job_and_without_an_error_when_the_coordinator_ends() {
    let house = House::open().await;
    let manager = house.manager().await;
    let held = ask(&manager).await;
    let ending = tokio::spawn({
        let coordinator = Arc::clone(&house.coordinator);
        async move { coordinator.shutdown().await }
    });
    let behind = tokio::spawn({
        let (coordinator, request) = (Arc::clone(&house.coordinator), manager.request(None));
        // In the channel, behind the order to end.
        async move { coordinator.request_job(request).await.expect("204") }
    });
    assert_eq!([answer(held).await, answer(behind).await], [None, None]);
    ending.await.expect("ended");
}
