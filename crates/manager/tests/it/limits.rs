//! Timeouts and limits that an operator sets: for preparing a job, and for rejected reports.

use std::time::Duration;

use muster_agent_api::result::Outcome;
use muster_job::JobStatus;
use muster_runner_api::test_support::{Call, Fault};
use serde_json::json;

use crate::harness::{Harness, JOB, RUN};

#[tokio::test]
async fn job_without_agent_ends_after_prepare_timeout() {
    let harness = Harness::start().await;
    harness.agent.kill();
    harness.push(&json!({}));
    let settings = harness.settings(|runner| runner.prepare_timeout = Some(Duration::from_millis(100)));
    let manager = harness.manager_with_settings(settings).await;
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!(job.reports().last().unwrap().failure_reason.as_deref(), Some("job_execution_timeout"));
    assert!(job.text().contains("prepare timeout: exceeded timeout of 100ms"), "{}", job.text());
    harness.agent.restart();
    manager.drain().await;
    manager.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
    assert!(harness.agent.spool().started.is_empty(), "no job may be started");
}

#[tokio::test]
async fn prepare_timeout_does_not_end_job_that_agent_has() {
    let harness = Harness::start().await;
    harness.push(&json!({}));
    let settings = harness.settings(|runner| runner.prepare_timeout = Some(Duration::from_secs(5)));
    let manager = harness.manager_with_settings(settings).await;
    harness.wait_for_state(r#""state":"running""#).await;
    harness.agent.kill();
    // The manager notices the lost connection first, and then the end of the prepare timeout.
    tokio::time::pause();
    for _ in 0..60 {
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    tokio::time::resume();
    harness.agent.restart();
    harness.agent.finish(RUN, Outcome::Success);
    assert_eq!(harness.coordinator.wait_for_end(JOB).await.status, JobStatus::Success);
    manager.drain().await;
    manager.ended().await.unwrap();
}

#[tokio::test]
async fn refused_report_is_retried_as_configured() {
    let harness = Harness::start().await;
    harness.push(&json!({}));
    let settings = harness.settings(|runner| runner.final_update_retry_limit = 2);
    let manager = harness.manager_with_settings(settings).await;
    harness.agent.wait_for(|spool| !spool.started.is_empty()).await;
    // Failures of the server do not count.
    harness.coordinator.fail(Call::UpdateJob, [Fault::FailBefore, Fault::FailBefore, Fault::FailBefore]);
    harness.coordinator.fail(Call::UpdateJob, [Fault::Rejected, Fault::Rejected]);
    harness.agent.finish(RUN, Outcome::Success);
    harness.agent.wait_for(|spool| spool.closed == [RUN]).await;
    manager.drain().await;
    manager.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
    assert_eq!(
        harness.coordinator.job(JOB).unwrap().status,
        JobStatus::Running,
        "the coordinator must not have accepted a final update"
    );
}
