//! Jobs are accepted before anything is started (invariant J2).

use muster_agent_api::result::Outcome;
use muster_job::JobStatus;
use muster_runner_api::test_support::{Call, Fault};
use serde_json::json;

use crate::harness::{Harness, JOB, RUN};

async fn harness_with_offered_job() -> Harness {
    let harness = Harness::start().await;
    harness.coordinator.offer_in_two_phases();
    harness.push(&json!({}));
    harness
}

async fn assert_started_once(harness: &Harness) {
    harness.agent.wait_for(|spool| !spool.started.is_empty()).await;
    harness.agent.write(RUN, "log\n");
    harness.agent.finish(RUN, Outcome::Success);
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, job.text().as_str()), (JobStatus::Success, "log\n"));
    let spool = harness.agent.wait_for(|spool| spool.jobs.is_empty()).await;
    assert_eq!(spool.started, [RUN]);
}

#[tokio::test]
async fn job_is_accepted_before_it_is_started() {
    let harness = harness_with_offered_job().await;
    let _manager = harness.manager().await;
    let accepted = harness.coordinator.wait_for(JOB, |job| !job.updates.is_empty()).await;
    assert_eq!((accepted.updates[0].state.as_str(), accepted.trace.len()), ("running", 0));
    assert_started_once(&harness).await;
}

#[tokio::test]
async fn acceptance_is_repeated_if_answer_is_lost() {
    let harness = harness_with_offered_job().await;
    harness.coordinator.fail(Call::UpdateJob, [Fault::FailAfter, Fault::FailBefore, Fault::FailAfter]);
    let _manager = harness.manager().await;
    assert_started_once(&harness).await;
    assert_eq!(harness.coordinator.job(JOB).unwrap().assignments, 1);
}

#[tokio::test]
async fn job_requeued_before_acceptance_is_never_started() {
    let harness = harness_with_offered_job().await;
    harness.coordinator.fail(Call::UpdateJob, [Fault::FailBefore]);
    let manager = harness.manager().await;
    harness.coordinator.wait_for(JOB, |job| job.assignments == 1).await;
    harness.coordinator.take_back(JOB);
    manager.drain().await;
    manager.ended().await.unwrap();
    assert_eq!(harness.agent.spool().started, Vec::<String>::new());
    let job = harness.coordinator.job(JOB).unwrap();
    assert!(job.updates.is_empty() && job.trace.is_empty(), "a requeued job must not be reported: {job:?}");
    harness.assert_no_jobs_stored().await;

    harness.coordinator.offer_again(JOB);
    let _manager = harness.manager().await;
    assert_started_once(&harness).await;
    assert_eq!(harness.coordinator.job(JOB).unwrap().assignments, 2);
}

#[tokio::test]
async fn job_not_accepted_before_a_kill_is_accepted_after_restart() {
    let harness = harness_with_offered_job().await;
    harness.coordinator.fail(Call::UpdateJob, vec![Fault::FailBefore; 3]);
    let manager = harness.manager().await;
    harness.coordinator.wait_for(JOB, |job| job.assignments == 1).await;
    manager.kill().await;
    let _manager = harness.manager().await;
    assert_started_once(&harness).await;
    assert_eq!(harness.coordinator.job(JOB).unwrap().assignments, 1);
}

#[tokio::test]
async fn job_canceled_before_acceptance_is_reported() {
    let harness = harness_with_offered_job().await;
    harness.coordinator.fail(Call::UpdateJob, [Fault::FailBefore]);
    let _manager = harness.manager().await;
    harness.coordinator.wait_for(JOB, |job| job.assignments == 1).await;
    harness.coordinator.set_status(JOB, JobStatus::Canceling);
    let job = harness.coordinator.wait_for_end(JOB).await;
    let last = job.updates.last().unwrap();
    assert_eq!((job.status, last.failure_reason.as_deref()), (JobStatus::Canceled, Some("job_canceled")));
    assert_eq!(harness.agent.spool().started, Vec::<String>::new());
}
