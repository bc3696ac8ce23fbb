//! Assignments: accept timeout, idempotency keys, and managers that are silent or lost the job.

use std::time::Duration;

use futures::FutureExt as _;
use muster_job::JobStatus;
use muster_runner_api::service::ServiceError;

use crate::support::{Harness, forbidden, job};

#[tokio::test]
async fn request_with_the_same_key_gets_the_same_job_until_it_ends() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    harness.create(vec![vec![job("a"), job("b")]]).await;
    let first = manager.next_job_with_key(Some("k1")).await;
    let repeated = manager.next_job_with_key(Some("k1")).await;
    assert_eq!((repeated.id, &repeated.token), (first.id, &first.token));
    let other = manager.next_job_with_key(Some("k2")).await;
    assert_ne!(other.id, first.id);
    manager.succeed(&first).await;
    harness.create(vec![vec![job("c")]]).await;
    assert_ne!(manager.next_job_with_key(Some("k1")).await.id, first.id);
}

#[tokio::test]
async fn job_of_a_silent_manager_is_requeued() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let pipeline = harness.create(vec![vec![job("a")]]).await;
    let silent = manager.next_job().await;
    harness.clock.advance(Duration::from_secs(60));
    let second = manager.next_job().await;
    assert_eq!(second.id, silent.id);
    assert_ne!(second.token, silent.token);
    assert_eq!(forbidden(manager.update(&silent, "running", |_| {}).await), Some(JobStatus::Canceled));
    assert_eq!(forbidden(manager.log(&silent, 0, "late").await), Some(JobStatus::Canceled));
    assert_eq!(forbidden(manager.update(&silent, "success", |_| {}).await), Some(JobStatus::Canceled));
    manager.succeed(&second).await;
    assert_eq!(harness.status(pipeline, "a").await, JobStatus::Success);
}

#[tokio::test]
async fn job_of_an_active_manager_is_not_requeued() {
    for activity in ["running", "trace", "upload"] {
        let harness = Harness::open().await;
        let manager = harness.manager().await;
        let pipeline = harness.create(vec![vec![job("a")]]).await;
        let assigned = manager.next_job().await;
        match activity {
            "running" => manager.report_running(&assigned).await,
            "upload" => {
                manager.upload(&assigned, ("junit", "raw", None), b"x".to_vec()).await.expect("failed to store")
            }
            _ => assert!(manager.log(&assigned, 0, "x").await.expect("was not accepted").accepted),
        }
        harness.clock.advance(Duration::from_secs(600));
        assert_eq!(harness.status(pipeline, "a").await, JobStatus::Running, "after {activity}");
        assert_eq!(manager.succeed(&assigned).await, JobStatus::Success);
    }
}

#[tokio::test]
async fn job_is_not_lost_when_a_request_is_closed() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let mut closed = Box::pin(manager.next_job());
    // The first poll sends the request.
    assert!(closed.as_mut().now_or_never().is_none());
    harness.handle_commands_and_timers().await;
    drop(closed);
    harness.create(vec![vec![job("a")]]).await;
    assert_eq!(manager.next_job().await.job_info.name, "a");
}

#[tokio::test]
async fn canceled_job_that_was_not_accepted_ends_after_the_accept_timeout() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let pipeline = harness.create(vec![vec![job("a")]]).await;
    let _silent = manager.next_job().await;
    harness.coordinator.cancel_pipeline(pipeline).await.expect("was not canceled");
    assert_eq!(harness.status(pipeline, "a").await, JobStatus::Canceling);
    harness.clock.advance(Duration::from_secs(60));
    harness.wait_until(pipeline, |view| view.summary.status == JobStatus::Canceled).await;
}

#[tokio::test]
async fn repeated_assignment_restarts_the_accept_timeout() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    harness.create(vec![vec![job("a")]]).await;
    let lost = manager.next_job_with_key(Some("k")).await;
    harness.clock.advance(Duration::from_secs(59));
    let repeated = manager.next_job_with_key(Some("k")).await;
    assert_eq!(repeated.token, lost.token);
    harness.clock.advance(Duration::from_secs(30));
    harness.handle_commands_and_timers().await;
    manager.report_running(&repeated).await;
    harness.clock.advance(Duration::from_secs(600));
    assert_eq!(manager.succeed(&repeated).await, JobStatus::Success);

    harness.create(vec![vec![job("b")]]).await;
    let silent = manager.next_job_with_key(Some("l")).await;
    harness.clock.advance(Duration::from_secs(59));
    manager.next_job_with_key(Some("l")).await;
    harness.clock.advance(Duration::from_secs(60));
    assert_ne!(
        manager.next_job().await.token,
        silent.token,
        "the job must be requeued when the restarted timeout ends"
    );
}

/// Two-phase commit (docs/spec/runner-api.md, section 2.6): the job stays assigned as long as its manager reports
/// `pending`.
#[tokio::test]
async fn job_is_requeued_only_when_its_preparation_is_no_longer_reported() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let pipeline = harness.create(vec![vec![job("a")]]).await;
    let assigned = manager.next_job().await;
    for _ in 0..3 {
        harness.clock.advance(Duration::from_secs(50));
        let answer = manager.update(&assigned, "pending", |_| {}).await.expect("the assignment is no longer valid");
        assert_eq!(answer.status, JobStatus::Running, "the answer must not stop the runner");
    }
    harness.clock.advance(Duration::from_secs(60));
    let second = manager.next_job().await;
    assert_eq!((second.id, second.token == assigned.token), (assigned.id, false));
    assert_eq!(forbidden(manager.update(&assigned, "pending", |_| {}).await), Some(JobStatus::Canceled));
    assert_eq!(
        forbidden(manager.update(&assigned, "running", |_| {}).await),
        Some(JobStatus::Canceled),
        "a late acceptance must be rejected"
    );
    manager.report_running(&second).await;
    manager.succeed(&second).await;
    assert_eq!(harness.status(pipeline, "a").await, JobStatus::Success);
}

#[tokio::test]
async fn acceptance_is_idempotent_and_ends_the_preparation() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    harness.create(vec![vec![job("a")]]).await;
    let assigned = manager.next_job().await;
    manager.report_running(&assigned).await;
    manager.report_running(&assigned).await;
    let rejected = manager
        .update(&assigned, "pending", |_| {})
        .await
        .expect_err("a `pending` report after the acceptance must be rejected");
    assert!(matches!(rejected, ServiceError::Conflict(_)), "{rejected}");
    harness.clock.advance(Duration::from_secs(600));
    assert_eq!(manager.succeed(&assigned).await, JobStatus::Success);
}

/// After a restart, an accepted job stays assigned to its manager.
///
/// A job that was not accepted is requeued after the accept timeout.
#[tokio::test]
async fn assignments_and_acceptances_survive_a_kill() {
    for accepted in [true, false] {
        let harness = Harness::open().await;
        let manager = harness.manager().await;
        harness.create(vec![vec![job("a")]]).await;
        let assigned = manager.next_job().await;
        if accepted {
            manager.report_running(&assigned).await;
        }
        let harness = harness.restart_after_kill().await;
        let manager = manager.connected_to(&harness);
        harness.clock.advance(Duration::from_secs(60));
        if accepted {
            assert_eq!(manager.succeed(&assigned).await, JobStatus::Success);
        } else {
            assert_ne!(manager.next_job().await.token, assigned.token);
            assert_eq!(forbidden(manager.update(&assigned, "running", |_| {}).await), Some(JobStatus::Canceled));
        }
    }
}
