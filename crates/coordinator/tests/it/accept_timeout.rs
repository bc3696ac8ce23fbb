//! Assignments: accept timeout, idempotency keys, and managers that are silent or lost the job.

use std::time::Duration;

use muster_job::JobStatus;
use muster_runner_api::service::ServiceError;

use crate::support::{Bench, forbidden, job};

#[tokio::test]
async fn same_key_gets_the_same_job_until_it_ends() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    bench.create(vec![vec![job("a"), job("b")]]).await;
    let first = manager.take_with(Some("k1")).await;
    let again = manager.take_with(Some("k1")).await;
    assert_eq!((again.id, &again.token), (first.id, &first.token));
    let other = manager.take_with(Some("k2")).await;
    assert_ne!(other.id, first.id);
    manager.succeed(&first).await;
    bench.create(vec![vec![job("c")]]).await;
    assert_ne!(manager.take_with(Some("k1")).await.id, first.id);
}

#[tokio::test]
async fn silent_assignee_loses_its_job() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    let pipeline = bench.create(vec![vec![job("a")]]).await;
    let silent = manager.take().await;
    bench.clock.advance(Duration::from_secs(60));
    let second = manager.take().await;
    assert_eq!(second.id, silent.id);
    assert_ne!(second.token, silent.token);
    assert_eq!(forbidden(manager.update(&silent, "running", |_| {}).await), Some(JobStatus::Canceled));
    assert_eq!(forbidden(manager.log(&silent, 0, "late").await), Some(JobStatus::Canceled));
    assert_eq!(forbidden(manager.update(&silent, "success", |_| {}).await), Some(JobStatus::Canceled));
    manager.succeed(&second).await;
    assert_eq!(bench.status(pipeline, "a").await, JobStatus::Success);
}

#[tokio::test]
async fn active_assignee_keeps_its_job() {
    for sign in ["running", "trace", "upload"] {
        let bench = Bench::open().await;
        let manager = bench.manager().await;
        let pipeline = bench.create(vec![vec![job("a")]]).await;
        let taken = manager.take().await;
        match sign {
            "running" => manager.running(&taken).await,
            "upload" => manager.upload(&taken, ("junit", "raw", None), b"x".to_vec()).await.expect("kept"),
            _ => assert!(manager.log(&taken, 0, "x").await.expect("accepted").accepted),
        }
        bench.clock.advance(Duration::from_secs(600));
        assert_eq!(bench.status(pipeline, "a").await, JobStatus::Running, "after {sign}");
        assert_eq!(manager.succeed(&taken).await, JobStatus::Success);
    }
}

#[tokio::test]
async fn closed_request_loses_no_job() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    let given_up = tokio::spawn({
        let manager = manager.clone();
        async move { manager.take().await }
    });
    bench.coordinator.stuck_jobs().await.expect("running");
    given_up.abort();
    let _ = given_up.await;
    bench.create(vec![vec![job("a")]]).await;
    assert_eq!(manager.take().await.job_info.name, "a");
}

#[tokio::test]
async fn canceled_job_ends_with_accept_timeout() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    let pipeline = bench.create(vec![vec![job("a")]]).await;
    let _silent = manager.take().await;
    bench.coordinator.cancel_pipeline(pipeline).await.expect("canceled");
    assert_eq!(bench.status(pipeline, "a").await, JobStatus::Canceling);
    bench.clock.advance(Duration::from_secs(60));
    bench.until(pipeline, |view| view.summary.status == JobStatus::Canceled).await;
}

#[tokio::test]
async fn repeated_assignment_restarts_the_accept_timeout() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    bench.create(vec![vec![job("a")]]).await;
    let lost = manager.take_with(Some("k")).await;
    bench.clock.advance(Duration::from_secs(59));
    let again = manager.take_with(Some("k")).await;
    assert_eq!(again.token, lost.token);
    bench.clock.advance(Duration::from_secs(30));
    bench.coordinator.stuck_jobs().await.expect("running");
    manager.running(&again).await;
    bench.clock.advance(Duration::from_secs(600));
    assert_eq!(manager.succeed(&again).await, JobStatus::Success);

    bench.create(vec![vec![job("b")]]).await;
    let silent = manager.take_with(Some("l")).await;
    bench.clock.advance(Duration::from_secs(59));
    manager.take_with(Some("l")).await;
    bench.clock.advance(Duration::from_secs(60));
    assert_ne!(manager.take().await.token, silent.token, "the second lease ends, too");
}

/// Two-phase commit (docs/spec/runner-api.md, section 2.6): a manager keeps an offered job while it prepares, until it accepts it.
#[tokio::test]
async fn offer_is_kept_during_preparation_and_then_requeued() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    let pipeline = bench.create(vec![vec![job("a")]]).await;
    let offered = manager.take().await;
    for _ in 0..3 {
        bench.clock.advance(Duration::from_secs(50));
        let answer = manager.update(&offered, "pending", |_| {}).await.expect("it is kept");
        assert_eq!(answer.status, JobStatus::Running, "nothing that would make a runner stop");
    }
    bench.clock.advance(Duration::from_secs(60));
    let second = manager.take().await;
    assert_eq!((second.id, second.token == offered.token), (offered.id, false));
    assert_eq!(forbidden(manager.update(&offered, "pending", |_| {}).await), Some(JobStatus::Canceled));
    assert_eq!(forbidden(manager.update(&offered, "running", |_| {}).await), Some(JobStatus::Canceled), "too late");
    manager.running(&second).await;
    manager.succeed(&second).await;
    assert_eq!(bench.status(pipeline, "a").await, JobStatus::Success);
}

#[tokio::test]
async fn acceptance_is_idempotent_and_ends_the_preparation() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    bench.create(vec![vec![job("a")]]).await;
    let offered = manager.take().await;
    manager.running(&offered).await;
    manager.running(&offered).await;
    let refused = manager.update(&offered, "pending", |_| {}).await.expect_err("it was accepted");
    assert!(matches!(refused, ServiceError::Conflict(_)), "{refused}");
    bench.clock.advance(Duration::from_secs(600));
    assert_eq!(manager.succeed(&offered).await, JobStatus::Success);
}

/// An accepted job keeps its manager after a restart, and an offered one returns to the queue.
#[tokio::test]
async fn offers_and_acceptances_survive_a_kill() {
    for accepted in [true, false] {
        let bench = Bench::open().await;
        let manager = bench.manager().await;
        bench.create(vec![vec![job("a")]]).await;
        let offered = manager.take().await;
        if accepted {
            manager.running(&offered).await;
        }
        let bench = bench.restart_after_kill().await;
        let manager = manager.at(&bench);
        bench.clock.advance(Duration::from_secs(60));
        if accepted {
            assert_eq!(manager.succeed(&offered).await, JobStatus::Success);
        } else {
            assert_ne!(manager.take().await.token, offered.token);
            assert_eq!(forbidden(manager.update(&offered, "running", |_| {}).await), Some(JobStatus::Canceled));
        }
    }
}
