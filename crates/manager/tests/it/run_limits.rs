//! Managers with a limit on their jobs or on their idle time.

use std::time::Duration;

use muster_agent_api::result::Outcome;
use muster_config::settings::Settings;
use muster_job::{JobId, JobStatus};
use muster_manager::{ControlCommand, RunLimits};
use serde_json::json;

use crate::harness::{Harness, JOB, RUN};

#[tokio::test]
async fn manager_receives_at_most_max_jobs() {
    let harness = Harness::start().await;
    for id in [JOB.0, JOB.0 + 1, JOB.0 + 2] {
        harness.push(&json!({ "id": id, "token": format!("secret-{id}") }));
    }
    let mut settings = harness.settings(|runner| runner.request_concurrency = 2);
    settings.concurrent = 2;
    let manager = harness.manager_with_run_limits(settings, RunLimits { jobs: Some(1), idle: None }).await;
    harness.agent.wait_for(|spool| !spool.started.is_empty()).await;
    harness.agent.finish(RUN, Outcome::Success);
    manager.ended().await.unwrap();
    let status = |id: i64| harness.coordinator.job(JobId(id)).unwrap().status;
    assert_eq!(status(JOB.0), JobStatus::Success);
    assert_eq!([status(JOB.0 + 1), status(JOB.0 + 2)], [JobStatus::Pending; 2]);
}

#[tokio::test]
async fn job_from_before_restart_counts_towards_max_jobs() {
    let harness = Harness::start().await;
    harness.push(&json!({}));
    let manager = harness.manager().await;
    harness.agent.wait_for(|spool| !spool.started.is_empty()).await;
    manager.kill().await;
    // The coordinator detects the death of the manager when the connection of its request is closed.
    harness.coordinator.wait_for_held_requests(0).await;
    harness.push(&json!({ "id": JOB.0 + 1, "token": "other" }));
    let manager =
        harness.manager_with_run_limits(harness.settings(|_| {}), RunLimits { jobs: Some(1), idle: None }).await;
    harness.agent.finish(RUN, Outcome::Success);
    manager.ended().await.unwrap();
    assert_eq!(harness.coordinator.job(JobId(JOB.0 + 1)).unwrap().assignments, 0);
}

#[tokio::test]
async fn running_job_is_not_idle_time() {
    let harness = Harness::start().await;
    harness.push(&json!({}));
    let idle = Duration::from_secs(1);
    let run_limits = RunLimits { jobs: None, idle: Some(idle) };
    // The manager requests the second job only after the end of the first.
    let settings = Settings { concurrent: 1, ..harness.settings(|_| {}) };
    let manager = harness.manager_with_run_limits(settings, run_limits).await;
    harness.agent.wait_for(|spool| !spool.started.is_empty()).await;
    tokio::time::pause();
    tokio::time::advance(3 * idle).await;
    tokio::time::resume();
    manager.wait_for_main_loop().await;
    harness.push(&json!({ "id": JOB.0 + 1, "token": "other" }));
    harness.agent.finish(RUN, Outcome::Success);
    // A manager that had counted the first job as idle time would end without the second job.
    harness.agent.wait_for(|spool| spool.started == [RUN, "8-1"]).await;
    harness.agent.finish("8-1", Outcome::Success);
    for job in [JOB, JobId(JOB.0 + 1)] {
        assert_eq!(harness.coordinator.wait_for_end(job).await.status, JobStatus::Success);
    }
    manager.ended().await.unwrap();
}

#[tokio::test]
async fn idle_timeout_ends_manager() {
    let harness = Harness::start().await;
    let run_limits = RunLimits { jobs: None, idle: Some(Duration::from_millis(50)) };
    let manager = harness.manager_with_run_limits(harness.settings(|_| {}), run_limits).await;
    manager.ended().await.unwrap();
}

#[tokio::test]
async fn leaving_manager_does_not_wait_for_last_job() {
    let harness = Harness::like_gitlab().await;
    harness.coordinator.set_assignment_enabled(false);
    let run_limits = RunLimits { jobs: Some(1), idle: None };
    let manager = harness.manager_with_run_limits(harness.settings(|_| {}), run_limits).await;
    harness.coordinator.wait_for_pending_requests(1).await;
    manager.control.send(ControlCommand::Leave).await;
    manager.wait_for_main_loop().await;
    harness.push(&json!({}));
    harness.coordinator.set_assignment_enabled(true);
    // The manager exits before the job ends.
    manager.ended().await.unwrap();
    let _next = harness.manager().await;
    harness.agent.wait_for(|spool| !spool.started.is_empty()).await;
    harness.agent.finish(RUN, Outcome::Success);
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, job.assignments), (JobStatus::Success, 1));
}
