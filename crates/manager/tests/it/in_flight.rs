//! Job requests in flight, while capacity falls, settings change, or the manager stops.
//!
//! As at GitLab, a job whose answer is not read is lost.

use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::result::Outcome;
use muster_config::settings::{RunnerSettings, Settings};
use muster_executor::Capacity;
use muster_job::{JobId, JobStatus, Secret};
use muster_manager::ControlCommand;
use muster_runner_api::test_support::{Call, Fault};
use serde_json::json;

use crate::harness::{Harness, RunningManager};

fn push(harness: &Harness, id: i64) {
    harness.push(&json!({ "id": id, "token": format!("secret-{id}") }));
}

fn assign_two(harness: &Harness) {
    push(harness, 1);
    push(harness, 2);
    harness.coordinator.set_assignment_enabled(true);
}

/// Starts a manager, and waits for two requests. The server does not look for jobs yet.
async fn two_in_flight(harness: &Harness) -> (RunningManager, Settings) {
    let settings = harness.settings(|runner| {
        runner.request_concurrency = 2;
        runner.feature_flags.insert("FF_USE_ADAPTIVE_REQUEST_CONCURRENCY".to_owned(), false);
    });
    harness.coordinator.set_assignment_enabled(false);
    let manager = harness.manager_with_settings(settings.clone()).await;
    harness.coordinator.wait_for_pending_requests(2).await;
    (manager, settings)
}

async fn advance_clock(manager: &RunningManager, time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    manager.wait_for_main_loop().await;
    tokio::time::resume();
}

async fn wait_started(harness: &Harness, id: i64) {
    harness.agent.wait_for(|spool| spool.started.contains(&format!("{id}-1"))).await;
}

/// Asserts that each job was assigned once, is started, and succeeds.
async fn finish(harness: &Harness, ids: impl IntoIterator<Item = i64>) {
    for id in ids {
        wait_started(harness, id).await;
        harness.agent.finish(&format!("{id}-1"), Outcome::Success);
        let job = harness.coordinator.wait_for_end(JobId(id)).await;
        assert_eq!((job.status, job.assignments), (JobStatus::Success, 1), "{}", job.text());
    }
}

#[tokio::test]
async fn jobs_requested_before_capacity_fell_are_run() {
    let harness = Harness::like_gitlab().await;
    let (manager, _) = two_in_flight(&harness).await;
    harness.capacity.send_replace(Capacity::of(0));
    manager.wait_for_main_loop().await;
    assign_two(&harness);
    finish(&harness, 1..=2).await;
    assert!(manager.control.stats().await.unwrap().runners[0].requests == 0, "no more jobs may be requested");
}

#[tokio::test]
async fn job_beyond_reduced_concurrent_waits() {
    let harness = Harness::like_gitlab().await;
    let (manager, settings) = two_in_flight(&harness).await;
    manager.control.send(ControlCommand::Reload(Box::new(Settings { concurrent: 1, ..settings }))).await;
    manager.wait_for_main_loop().await;
    assign_two(&harness);
    manager.wait_for(|stats| stats.jobs == 2).await;
    // The manager contacts the server for both jobs, so that the waiting one does not seem stuck.
    for id in 1..=2 {
        harness.coordinator.wait_for(JobId(id), |job| !job.updates.is_empty()).await;
    }
    harness.agent.wait_for(|spool| spool.started.len() == 1).await;
    manager.wait_for(|stats| stats.waiting == 1).await;
    let first = harness.agent.spool().started[0].trim_end_matches("-1").parse().unwrap();
    assert_eq!(harness.assigned_slots().len(), 1, "the waiting job must not get a slot");
    finish(&harness, [first, 3 - first]).await;
    assert_eq!(harness.assigned_slots(), [0, 0]);
}

#[tokio::test]
async fn job_beyond_reduced_limit_waits() {
    let harness = Harness::like_gitlab().await;
    let (manager, settings) = two_in_flight(&harness).await;
    let runner = RunnerSettings { limit: Some(1), ..(*settings.runners[0]).clone() };
    let settings = Settings { runners: vec![Arc::new(runner)], ..settings };
    manager.control.send(ControlCommand::Reload(Box::new(settings))).await;
    manager.wait_for_main_loop().await;
    assign_two(&harness);
    manager.wait_for(|stats| stats.jobs == 2 && stats.waiting == 1).await;
    harness.agent.wait_for(|spool| spool.started.len() == 1).await;
    let first = harness.agent.spool().started[0].trim_end_matches("-1").parse().unwrap();
    finish(&harness, [first, 3 - first]).await;
    assert_eq!(harness.assigned_slots(), [0, 0]);
}

#[tokio::test]
async fn jobs_requested_before_a_reload_are_run() {
    let changes: [fn(&mut RunnerSettings); 2] = [
        |runner| runner.output_limit += 1,
        // As after a rotation: the job is reported with its own token.
        |runner| runner.token = Secret::new("glrt-another"),
    ];
    for change in changes {
        let harness = Harness::like_gitlab().await;
        let (manager, settings) = two_in_flight(&harness).await;
        let mut runner = (*settings.runners[0]).clone();
        change(&mut runner);
        let settings = Settings { runners: vec![Arc::new(runner)], exit_on_refusal: false, ..settings };
        manager.control.send(ControlCommand::Reload(Box::new(settings))).await;
        manager.wait_for_main_loop().await;
        push(&harness, 1);
        push(&harness, 2);
        harness.coordinator.set_assignment_enabled(true);
        finish(&harness, 1..=2).await;
        drop(manager);
    }
}

#[tokio::test]
async fn jobs_requested_before_the_removal_of_their_runner_are_run() {
    let harness = Harness::like_gitlab().await;
    let (manager, settings) = two_in_flight(&harness).await;
    manager.control.send(ControlCommand::Reload(Box::new(Settings { runners: Vec::new(), ..settings }))).await;
    manager.wait_for_main_loop().await;
    assign_two(&harness);
    finish(&harness, 1..=2).await;
}

#[tokio::test]
async fn jobs_received_during_a_drain_are_run() {
    let harness = Harness::like_gitlab().await;
    let (manager, _) = two_in_flight(&harness).await;
    manager.drain().await;
    manager.wait_for_main_loop().await;
    assign_two(&harness);
    finish(&harness, 1..=2).await;
    manager.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn jobs_received_during_abort_are_retryable_failures() {
    let harness = Harness::like_gitlab().await;
    let (manager, _) = two_in_flight(&harness).await;
    manager.control.send(ControlCommand::Abort).await;
    manager.wait_for_main_loop().await;
    assign_two(&harness);
    for id in 1..=2 {
        let job = harness.coordinator.wait_for_end(JobId(id)).await;
        let report = job.reports().last().unwrap();
        assert_eq!(report.failure_reason.as_deref(), Some("runner_system_failure"));
        assert!(job.text().contains("the runner manager was stopped before the job started"), "{}", job.text());
    }
    manager.ended().await.unwrap();
    assert!(harness.agent.spool().started.is_empty(), "no job may be started");
    harness.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn jobs_received_while_leaving_are_stored() {
    let harness = Harness::like_gitlab().await;
    let (manager, settings) = two_in_flight(&harness).await;
    manager.control.send(ControlCommand::Leave).await;
    manager.wait_for_main_loop().await;
    assign_two(&harness);
    manager.ended().await.unwrap();
    let _next = harness.manager_with_settings(settings).await;
    finish(&harness, 1..=2).await;
}

/// GitLab's front end holds a request with the current queue version without looking for a job.
#[tokio::test]
async fn held_request_does_not_delay_exit() {
    for command in [ControlCommand::Drain, ControlCommand::Abort, ControlCommand::Leave] {
        let harness = Harness::like_gitlab().await;
        let manager = harness.manager().await;
        // The first answer contains the queue's version, so the next request is held.
        harness.coordinator.wait_for_requests(2).await;
        tokio::time::pause();
        manager.control.send(command).await;
        tokio::time::advance(Duration::from_secs(9)).await;
        manager.wait_for_main_loop().await;
        tokio::time::advance(Duration::from_secs(1)).await;
        tokio::time::resume();
        manager.ended_within(Duration::from_secs(5)).await.unwrap();
    }
}

/// The request has no queue version, so the front end passes it on at once.
#[tokio::test]
async fn first_request_is_awaited_while_gitlab_handles_it() {
    let harness = Harness::like_gitlab().await;
    let (manager, _) = two_in_flight(&harness).await;
    manager.drain().await;
    advance_clock(&manager, Duration::from_secs(59)).await;
    assign_two(&harness);
    finish(&harness, 1..=2).await;
    manager.ended().await.unwrap();
}

#[tokio::test]
async fn first_request_abandoned_by_gitlab_does_not_delay_exit() {
    let harness = Harness::like_gitlab().await;
    let (manager, _) = two_in_flight(&harness).await;
    tokio::time::pause();
    manager.drain().await;
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    manager.ended_within(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn canceled_job_is_not_counted_as_waiting() {
    let harness = Harness::like_gitlab().await;
    let (manager, settings) = two_in_flight(&harness).await;
    manager.control.send(ControlCommand::Reload(Box::new(Settings { concurrent: 1, ..settings }))).await;
    manager.wait_for_main_loop().await;
    assign_two(&harness);
    manager.wait_for(|stats| stats.jobs == 2 && stats.waiting == 1).await;
    harness.agent.wait_for(|spool| spool.started.len() == 1).await;
    let first: i64 = harness.agent.spool().started[0].trim_end_matches("-1").parse().unwrap();
    let waiting = JobId(3 - first);
    manager.wait_for(|_| manager.metric("muster_waiting_jobs") == 1.0).await;
    // The trace is sent before the result, and is not accepted for a while.
    harness.coordinator.fail(Call::AppendTrace, [Fault::FailBefore; 1000]);
    harness.coordinator.set_status(waiting, JobStatus::Canceling);
    manager.wait_for(|_| manager.metric("muster_waiting_jobs") == 0.0).await;
    assert_eq!(
        harness.coordinator.job(waiting).unwrap().status,
        JobStatus::Canceling,
        "the end of the job must not be reported yet"
    );
    harness.coordinator.clear_faults();
    assert_eq!(harness.coordinator.wait_for_end(waiting).await.status, JobStatus::Canceled);
    finish(&harness, [first]).await;
}
