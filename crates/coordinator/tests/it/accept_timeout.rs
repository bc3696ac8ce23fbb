//! Who has a job: hand-outs, their leases and keys, and takers that are silent, late or gone.

use std::time::Duration;

use muster_job::JobStatus;
use muster_runner_api::service::ServiceError;

use crate::support::{House, forbidden, job};

#[tokio::test]
async fn the_same_key_gets_the_same_job_again_until_it_has_ended() {
    let house = House::open().await;
    let manager = house.manager().await;
    house.create(vec![vec![job("a"), job("b")]]).await;
    let first = manager.take_with(Some("k1")).await;
    let again = manager.take_with(Some("k1")).await;
    assert_eq!((again.id, &again.token), (first.id, &first.token));
    let other = manager.take_with(Some("k2")).await;
    assert_ne!(other.id, first.id);
    manager.succeed(&first).await;
    house.create(vec![vec![job("c")]]).await;
    assert_ne!(manager.take_with(Some("k1")).await.id, first.id);
}

#[tokio::test]
async fn a_silent_taker_loses_its_job_and_is_told_to_stop() {
    let house = House::open().await;
    let manager = house.manager().await;
    let pipeline = house.create(vec![vec![job("a")]]).await;
    let silent = manager.take().await;
    house.clock.advance(Duration::from_secs(60));
    let second = manager.take().await;
    assert_eq!(second.id, silent.id);
    assert_ne!(second.token, silent.token);
    assert_eq!(forbidden(manager.update(&silent, "running", |_| {}).await), Some(JobStatus::Canceled));
    assert_eq!(forbidden(manager.log(&silent, 0, "late").await), Some(JobStatus::Canceled));
    assert_eq!(forbidden(manager.update(&silent, "success", |_| {}).await), Some(JobStatus::Canceled));
    manager.succeed(&second).await;
    assert_eq!(house.status(pipeline, "a").await, JobStatus::Success);
}

#[tokio::test]
async fn a_taker_that_showed_life_keeps_its_job() {
    for sign in ["running", "trace", "upload"] {
        let house = House::open().await;
        let manager = house.manager().await;
        let pipeline = house.create(vec![vec![job("a")]]).await;
        let taken = manager.take().await;
        match sign {
            "running" => manager.running(&taken).await,
            "upload" => manager.upload(&taken, ("junit", "raw", None), b"x".to_vec()).await.expect("kept"),
            _ => assert!(manager.log(&taken, 0, "x").await.expect("taken").accepted),
        }
        house.clock.advance(Duration::from_secs(600));
        assert_eq!(house.status(pipeline, "a").await, JobStatus::Running, "after {sign}");
        assert_eq!(manager.succeed(&taken).await, JobStatus::Success);
    }
}

#[tokio::test]
async fn a_request_that_was_given_up_loses_no_job() {
    let house = House::open().await;
    let manager = house.manager().await;
    let given_up = tokio::spawn({
        let manager = manager.clone();
        async move { manager.take().await }
    });
    house.coordinator.stuck_jobs().await.expect("alive");
    given_up.abort();
    let _ = given_up.await;
    house.create(vec![vec![job("a")]]).await;
    assert_eq!(manager.take().await.job_info.name, "a");
}

#[tokio::test]
async fn a_canceled_job_that_nobody_started_ends_with_its_lease() {
    let house = House::open().await;
    let manager = house.manager().await;
    let pipeline = house.create(vec![vec![job("a")]]).await;
    let _silent = manager.take().await;
    house.coordinator.cancel_pipeline(pipeline).await.expect("canceled");
    assert_eq!(house.status(pipeline, "a").await, JobStatus::Canceling);
    house.clock.advance(Duration::from_secs(60));
    house.until(pipeline, |view| view.summary.status == JobStatus::Canceled).await;
}

#[tokio::test]
async fn a_job_that_is_said_again_has_a_whole_lease() {
    let house = House::open().await;
    let manager = house.manager().await;
    house.create(vec![vec![job("a")]]).await;
    let lost = manager.take_with(Some("k")).await;
    house.clock.advance(Duration::from_secs(59));
    let again = manager.take_with(Some("k")).await;
    assert_eq!(again.token, lost.token);
    house.clock.advance(Duration::from_secs(30));
    house.coordinator.stuck_jobs().await.expect("alive");
    manager.running(&again).await;
    house.clock.advance(Duration::from_secs(600));
    assert_eq!(manager.succeed(&again).await, JobStatus::Success);

    house.create(vec![vec![job("b")]]).await;
    let silent = manager.take_with(Some("l")).await;
    house.clock.advance(Duration::from_secs(59));
    manager.take_with(Some("l")).await;
    house.clock.advance(Duration::from_secs(60));
    assert_ne!(manager.take().await.token, silent.token, "the second lease ends, too");
}

/// Two-phase commit (runner-api 2.6): the job is offered, kept for who says that it prepares, and given to who accepts it.
#[tokio::test]
async fn an_offer_is_kept_for_who_prepares_and_taken_back_from_who_does_not_accept() {
    let house = House::open().await;
    let manager = house.manager().await;
    let pipeline = house.create(vec![vec![job("a")]]).await;
    let offered = manager.take().await;
    for _ in 0..3 {
        house.clock.advance(Duration::from_secs(50));
        let answer = manager.update(&offered, "pending", |_| {}).await.expect("it is kept");
        assert_eq!(answer.status, JobStatus::Running, "nothing that would make a runner stop");
    }
    house.clock.advance(Duration::from_secs(60));
    let second = manager.take().await;
    assert_eq!((second.id, second.token == offered.token), (offered.id, false));
    assert_eq!(forbidden(manager.update(&offered, "pending", |_| {}).await), Some(JobStatus::Canceled));
    assert_eq!(forbidden(manager.update(&offered, "running", |_| {}).await), Some(JobStatus::Canceled), "too late");
    manager.running(&second).await;
    manager.succeed(&second).await;
    assert_eq!(house.status(pipeline, "a").await, JobStatus::Success);
}

#[tokio::test]
async fn an_acceptance_may_be_said_twice_and_ends_the_preparing() {
    let house = House::open().await;
    let manager = house.manager().await;
    house.create(vec![vec![job("a")]]).await;
    let offered = manager.take().await;
    manager.running(&offered).await;
    manager.running(&offered).await;
    let refused = manager.update(&offered, "pending", |_| {}).await.expect_err("it was accepted");
    assert!(matches!(refused, ServiceError::Conflict(_)), "{refused}");
    house.clock.advance(Duration::from_secs(600));
    assert_eq!(manager.succeed(&offered).await, JobStatus::Success);
}

/// Whether a job was accepted survives the coordinator: what was accepted is nobody else's, what was not is taken back.
#[tokio::test]
async fn offers_and_acceptances_survive_a_coordinator_that_is_killed() {
    for accepted in [true, false] {
        let house = House::open().await;
        let manager = house.manager().await;
        house.create(vec![vec![job("a")]]).await;
        let offered = manager.take().await;
        if accepted {
            manager.running(&offered).await;
        }
        let house = house.as_if_killed().await;
        let manager = manager.at(&house);
        house.clock.advance(Duration::from_secs(60));
        if accepted {
            assert_eq!(manager.succeed(&offered).await, JobStatus::Success);
        } else {
            assert_ne!(manager.take().await.token, offered.token);
            assert_eq!(forbidden(manager.update(&offered, "running", |_| {}).await), Some(JobStatus::Canceled));
        }
    }
}
