//! A manager that is killed in each state of a job, and its next start.

use muster_agent_api::result::Outcome;
use muster_job::JobStatus;
use muster_runner_api::service::RunnerService;
use muster_runner_api::test_support::{Call, Fault};
use muster_runner_api::wire::JobRequest;
use serde_json::json;

use crate::harness::{Harness, JOB, RUN};

/// Asserts that the log is complete, the script started once, and the agent closed the job.
async fn check_success(harness: &Harness, log: &str) {
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, job.text().as_str(), job.assignments), (JobStatus::Success, log, 1));
    let output = &job.updates.last().unwrap().output;
    assert_eq!(output.checksum, Some(format!("crc32:{:08x}", crc32fast::hash(log.as_bytes()))));
    let spool = harness.agent.wait_for(|spool| spool.jobs.is_empty()).await;
    assert_eq!(spool.started, [RUN]);
}

#[tokio::test]
async fn killed_before_answer_gets_same_job_again() {
    let harness = Harness::start().await;
    harness.coordinator.fail(Call::RequestJob, [Fault::FailAfter]);
    harness.push(&json!({}));
    let manager = harness.manager().await;
    harness.coordinator.wait_for(JOB, |job| job.assignments == 1).await;
    manager.kill().await;
    let _manager = harness.manager().await;
    harness.agent.wait_for(|spool| !spool.started.is_empty()).await;
    harness.agent.write(RUN, "log\n");
    harness.agent.finish(RUN, Outcome::Success);
    check_success(&harness, "log\n").await;
}

#[tokio::test]
async fn job_assigned_to_any_request_of_killed_manager_is_run() {
    let harness = Harness::with_short_hold().await;
    let settings = harness.settings(|runner| runner.request_concurrency = 2);
    let runner = &settings.runners[0];
    let store = harness.store().await;
    let keys = [0, 1].map(|lane| store.lane_key(&runner.key, lane).unwrap());
    drop(store);
    harness.push(&json!({}));
    let request = JobRequest {
        token: runner.token.expose().to_owned(),
        idempotency_key: Some(keys[1].clone()),
        ..JobRequest::default()
    };
    // As if a manager was killed before it read this answer.
    assert!(harness.coordinator.request_job(request).await.unwrap().job.is_some());
    let _manager = harness.manager_with_settings(settings).await;
    harness.agent.wait_for(|spool| !spool.started.is_empty()).await;
    harness.agent.write(RUN, "log\n");
    harness.agent.finish(RUN, Outcome::Success);
    check_success(&harness, "log\n").await;
}

#[tokio::test]
async fn killed_after_dispatch_attaches_to_running_job() {
    let harness = Harness::start().await;
    harness.push(&json!({}));
    harness.agent.change(|spool| spool.lose_next_answer = true);
    let manager = harness.manager().await;
    harness.agent.wait_for(|spool| !spool.started.is_empty()).await;
    manager.kill().await;
    harness.agent.write(RUN, "log\n");
    let _manager = harness.manager().await;
    harness.wait_for_trace("log").await;
    harness.agent.finish(RUN, Outcome::Success);
    check_success(&harness, "log\n").await;
}

#[tokio::test]
async fn killed_while_agent_is_away_dispatches_later() {
    let harness = Harness::start().await;
    harness.agent.kill();
    harness.push(&json!({}));
    let manager = harness.manager().await;
    harness.coordinator.wait_for(JOB, |job| job.assignments == 1).await;
    manager.kill().await;
    let _manager = harness.manager().await;
    harness.agent.restart();
    harness.agent.wait_for(|spool| !spool.started.is_empty()).await;
    harness.agent.write(RUN, "log\n");
    harness.agent.finish(RUN, Outcome::Success);
    check_success(&harness, "log\n").await;
}

#[tokio::test]
async fn killed_while_streaming_continues_at_acknowledged_byte() {
    let harness = Harness::start().await;
    harness.push(&json!({}));
    let mut log = String::new();
    let mut manager = harness.manager().await;
    harness.agent.wait_for(|spool| !spool.started.is_empty()).await;
    for number in 0..10 {
        let line = format!("line {number}\n");
        harness.agent.write(RUN, &line);
        log.push_str(&line);
        // Every second time, the manager is killed while bytes are in transit.
        if number % 2 == 0 {
            harness.wait_for_trace(&line).await;
        }
        manager.kill().await;
        manager = harness.manager().await;
    }
    harness.agent.finish(RUN, Outcome::Success);
    check_success(&harness, &log).await;
}

#[tokio::test]
async fn killed_before_acknowledgement_reports_again() {
    let harness = Harness::start().await;
    harness.push(&json!({}));
    let manager = harness.manager().await;
    harness.agent.wait_for(|spool| !spool.started.is_empty()).await;
    harness.agent.write(RUN, "log\n");
    harness.wait_for_trace("log").await;
    harness.coordinator.fail(Call::UpdateJob, [Fault::FailBefore, Fault::FailBefore, Fault::FailBefore]);
    harness.agent.finish(RUN, Outcome::Success);
    manager.kill().await;
    let _manager = harness.manager().await;
    check_success(&harness, "log\n").await;
}

#[tokio::test]
async fn killed_after_acknowledgement_only_cleans_up() {
    let harness = Harness::start().await;
    harness.push(&json!({}));
    let manager = harness.manager().await;
    harness.agent.wait_for(|spool| !spool.started.is_empty()).await;
    // The answer to the final update is lost.
    harness.coordinator.fail(Call::UpdateJob, [Fault::FailAfter]);
    harness.agent.write(RUN, "log\n");
    harness.agent.finish(RUN, Outcome::Success);
    harness.coordinator.wait_for_end(JOB).await;
    manager.kill().await;
    let manager = harness.manager().await;
    check_success(&harness, "log\n").await;
    manager.drain().await;
    manager.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
}
