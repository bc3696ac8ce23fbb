//! Held job requests: their number, and how they end.

#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

use std::sync::Arc;
use std::time::Duration;

use muster_coordinator::RunnerSpec;
use muster_runner_api::service::{JobRequestAnswer, RunnerService};
use muster_runner_api::wire::JobRequest;
use tokio::task::JoinHandle;

use crate::support::{Harness, Manager, TIMEOUT, job};

async fn send_request(manager: &Manager) -> JoinHandle<JobRequestAnswer> {
    let (coordinator, request) = (Arc::clone(&manager.coordinator), manager.request(None));
    let pending =
        tokio::spawn(async move { coordinator.request_job(request).await.expect("the request was rejected") });
    // The runtime of the test has one thread, so the request is in the channel before the query for stuck jobs.
    tokio::task::yield_now().await;
    manager.coordinator.stuck_jobs().await.expect("the coordinator is not running");
    pending
}

async fn job_name(pending: JoinHandle<JobRequestAnswer>) -> Option<String> {
    let answer = tokio::time::timeout(TIMEOUT, pending).await.expect("no answer in time").expect("panicked");
    answer.job.map(|job| job.job_info.name)
}

#[tokio::test]
async fn held_requests_are_limited() {
    let harness = Harness::with(|options| {
        options.limits.held_requests = 2;
        options.long_poll = Duration::from_secs(50);
    })
    .await;
    let plain = harness.manager().await;
    let tagged = harness.manager_with(RunnerSpec { tags: vec!["x".to_owned()], ..RunnerSpec::default() }).await;
    let held = [send_request(&plain).await, send_request(&plain).await];
    assert_eq!(job_name(send_request(&plain).await).await, None, "beyond the limit, the answer must not wait");
    assert!(held.iter().all(|pending| !pending.is_finished()));

    // An answered request does not count toward the limit.
    let mut special = job("special");
    special.tags = vec!["x".to_owned()];
    harness.create(vec![vec![special]]).await;
    assert_eq!(job_name(send_request(&tagged).await).await.as_deref(), Some("special"));
    assert!(held.iter().all(|pending| !pending.is_finished()));

    // A request with a closed connection does not count toward the limit.
    let [closed, first] = held;
    closed.abort();
    let _ = closed.await;
    let second = send_request(&plain).await;
    harness.create(vec![vec![job("a"), job("b")]]).await;
    assert_eq!([job_name(first).await.as_deref(), job_name(second).await.as_deref()], [Some("a"), Some("b")]);
}

#[tokio::test]
async fn first_request_is_answered_immediately() {
    let harness = Harness::with(|options| options.long_poll = Duration::from_secs(50)).await;
    let manager = harness.manager().await;
    let first = || JobRequest { last_update: String::new(), ..manager.request(None) };
    let request = |job_request| tokio::time::timeout(TIMEOUT, harness.coordinator.request_job(job_request));
    let without_job = request(first()).await.expect("no answer in time").expect("the request was rejected");
    assert!(without_job.job.is_none() && !without_job.last_update.is_empty());
    let held = request(JobRequest { last_update: without_job.last_update, ..manager.request(None) });
    let (held, _) = tokio::join!(held, harness.create(vec![vec![job("a")]]));
    assert_eq!(
        held.expect("no answer in time")
            .expect("the request was rejected")
            .job
            .expect("the held request did not get the job")
            .job_info
            .name,
        "a"
    );
    harness.create(vec![vec![job("b")]]).await;
    assert_eq!(
        request(first())
            .await
            .expect("no answer in time")
            .expect("the request was rejected")
            .job
            .expect("no job")
            .job_info
            .name,
        "b"
    );
}

#[tokio::test]
async fn held_requests_end_without_error_at_the_shutdown() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let held = send_request(&manager).await;
    let shutdown = tokio::spawn({
        let coordinator = Arc::clone(&harness.coordinator);
        async move { coordinator.shutdown().await }
    });
    let late = tokio::spawn({
        let (coordinator, request) = (Arc::clone(&harness.coordinator), manager.request(None));
        // This request is in the channel after the shutdown command.
        async move { coordinator.request_job(request).await.expect("the request was rejected") }
    });
    assert_eq!([job_name(held).await, job_name(late).await], [None, None]);
    shutdown.await.expect("did not end");
}
