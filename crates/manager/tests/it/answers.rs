//! Answers of a coordinator, or of a proxy in front of it, that must not end a job.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use muster_agent_api::result::Outcome;
use muster_job::JobStatus;
use muster_manager::ControlCommand;
use muster_runner_api::test_support::{Call, Fault};
use serde_json::json;

use crate::harness::{Harness, JOB, RUN};

async fn wait_started(harness: &Harness, jobs: usize) {
    harness.agent.wait_for(|spool| spool.started.len() == jobs).await;
}

#[tokio::test]
async fn trace_404_does_not_end_job() {
    let harness = Harness::start().await;
    harness.push(&json!({}));
    let _manager = harness.manager().await;
    wait_started(&harness, 1).await;
    harness.coordinator.fail(Call::AppendTrace, [Fault::Missing; 3]);
    harness.agent.write(RUN, "log\n");
    harness.wait_for_trace("log\n").await;
    harness.agent.finish(RUN, Outcome::Success);
    assert_eq!(harness.coordinator.wait_for_end(JOB).await.status, JobStatus::Success);
}

#[tokio::test]
async fn job_runs_if_acceptance_is_rejected() {
    let harness = Harness::start().await;
    harness.coordinator.fail(Call::UpdateJob, [Fault::Rejected]);
    harness.push(&json!({}));
    let _manager = harness.manager_with_settings(harness.settings(|runner| runner.final_update_retry_limit = 1)).await;
    wait_started(&harness, 1).await;
    harness.agent.finish(RUN, Outcome::Success);
    assert_eq!(harness.coordinator.wait_for_end(JOB).await.status, JobStatus::Success);
}

#[tokio::test]
async fn rejected_trace_does_not_delay_report() {
    for refusal in [Fault::Rejected, Fault::Missing] {
        let harness = Harness::start().await;
        harness.push(&json!({}));
        let _manager =
            harness.manager_with_settings(harness.settings(|runner| runner.final_update_retry_limit = 2)).await;
        wait_started(&harness, 1).await;
        harness.coordinator.fail(Call::AppendTrace, [refusal; 100]);
        harness.agent.write(RUN, "log\n");
        // After three rejected uploads, the job still runs, although a final update has only two attempts.
        harness.coordinator.wait_for_faults_left(Call::AppendTrace, 97).await;
        assert!(!harness.agent.spool().jobs[RUN].canceled);
        harness.agent.finish(RUN, Outcome::Success);
        let job = harness.coordinator.wait_for_end(JOB).await;
        assert_eq!((job.status, job.reports().count(), job.text()), (JobStatus::Success, 1, String::new()));
        harness.agent.wait_for(|spool| spool.closed == [RUN]).await;
    }
}

#[tokio::test]
async fn huge_job_timeout_does_not_overflow() {
    let harness = Harness::start().await;
    harness.push(&json!({ "runner_info": { "timeout": i64::MAX } }));
    let _manager = harness.manager().await;
    wait_started(&harness, 1).await;
    harness.agent.finish(RUN, Outcome::Success);
    assert_eq!(harness.coordinator.wait_for_end(JOB).await.status, JobStatus::Success);
}

#[tokio::test]
async fn abort_cancels_the_job_while_an_upload_hangs() {
    let harness = Harness::start().await;
    harness.push(&json!({}));
    let manager = harness.manager().await;
    wait_started(&harness, 1).await;
    harness.coordinator.fail(Call::AppendTrace, [Fault::Hung]);
    harness.agent.write(RUN, "log\n");
    harness.coordinator.wait_for_faults_left(Call::AppendTrace, 0).await;
    manager.control.send(ControlCommand::Abort).await;
    harness.agent.wait_for(|spool| spool.jobs[RUN].canceled).await;
}

#[tokio::test]
async fn uploads_without_progress_slow_down() {
    let harness = Harness::start().await;
    harness.push(&json!({}));
    let _manager = harness.manager().await;
    wait_started(&harness, 1).await;
    let began = Instant::now();
    harness.coordinator.fail(Call::AppendTrace, [Fault::TraceReset; 6]);
    harness.agent.write(RUN, "log\n");
    harness.agent.finish(RUN, Outcome::Success);
    assert_eq!(harness.coordinator.wait_for_end(JOB).await.text(), "log\n");
    let took = began.elapsed();
    assert!(took > Duration::from_millis(300), "the waits must double from 50 ms: {took:?}");
}

#[tokio::test]
async fn slot_is_kept_until_release_is_stored() {
    let harness = Harness::start().await;
    harness.push(&json!({}));
    let manager = harness.manager().await;
    wait_started(&harness, 1).await;
    harness.agent.write(RUN, "log\n");
    harness.wait_for_trace("log\n").await;
    let mut free_slots = manager.free_slots.clone();
    free_slots.mark_unchanged();
    let limit = manager.state_limit.swap(0, Ordering::Relaxed);
    harness.agent.finish(RUN, Outcome::Success);
    harness.coordinator.wait_for_end(JOB).await;
    // The job is reported and closed, but this cannot be stored, so the manager closes it again.
    harness.agent.wait_for(|spool| spool.closed.len() >= 2).await;
    assert!(!free_slots.has_changed().unwrap(), "no other job may get the slot");
    manager.state_limit.store(limit, Ordering::Relaxed);
    free_slots.changed().await.unwrap();
    manager.drain().await;
    manager.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
}
