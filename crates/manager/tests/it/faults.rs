//! Faults on both sides, cancellations, and outcomes that only the manager knows.

use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_agent_api::result::{MAX_RESULT_BYTES, Outcome};
use muster_config::settings::Settings;
use muster_job::{FailureReason, JobStatus, TerminationCause};
use muster_manager::{ControlCommand, ManagerError};
use muster_runner_api::test_support::{Call, Fault};
use serde_json::json;

use crate::harness::{Harness, JOB, RUN, RunningManager};

fn canceled() -> Outcome {
    let cause = Some(TerminationCause::CanceledByUser);
    Outcome::Failed { reason: FailureReason::JobCanceled, exit_code: None, cause }
}

async fn wait_started(harness: &Harness) {
    harness.agent.wait_for(|spool| !spool.started.is_empty()).await;
}

async fn with_started_job() -> (Harness, RunningManager) {
    let harness = Harness::start().await;
    harness.push(&json!({}));
    let manager = harness.manager().await;
    wait_started(&harness).await;
    (harness, manager)
}

#[tokio::test]
async fn lost_answers_duplicate_no_log_bytes() {
    let harness = Harness::start().await;
    use Fault::{FailAfter, FailBefore};
    harness.coordinator.fail(Call::AppendTrace, [FailBefore, FailAfter, FailBefore, FailAfter]);
    harness.coordinator.fail(Call::UpdateJob, [FailAfter]);
    harness.push(&json!({}));
    let manager = harness.manager().await;
    wait_started(&harness).await;
    let log: String = (0..100).map(|number| format!("line {number}\n")).collect();
    for line in log.split_inclusive('\n') {
        harness.agent.write(RUN, line);
    }
    harness.agent.finish(RUN, Outcome::Success);
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, job.text()), (JobStatus::Success, log));
    harness.agent.wait_for(|spool| spool.closed == [RUN]).await;
    manager.drain().await;
    manager.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn long_log_arrives_completely_with_result_tree() {
    let (harness, _manager) = with_started_job().await;
    let log = "0123456789abcdef".repeat(200_000);
    harness.agent.write(RUN, &log);
    harness.agent.finish(RUN, Outcome::Success);
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!(job.trace.len(), log.len());
    assert!(job.text() == log, "the bytes must be equal");
    assert_eq!(job.updates.last().unwrap().result_tree.as_ref().unwrap()["name"], "job");
}

#[tokio::test]
async fn log_of_reconnected_agent_is_followed() {
    let (harness, _manager) = with_started_job().await;
    harness.agent.write(RUN, "before\n");
    harness.wait_for_trace("before").await;
    harness.agent.kill();
    harness.agent.write(RUN, "meanwhile\n");
    harness.agent.restart();
    harness.wait_for_trace("meanwhile").await;
    harness.agent.finish(RUN, Outcome::Success);
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, job.text().as_str()), (JobStatus::Success, "before\nmeanwhile\n"));
    assert_eq!(harness.agent.spool().started, [RUN]);
}

#[tokio::test]
async fn lost_agent_fails_job_with_one_message() {
    let harness = Harness::start().await;
    harness.push(&json!({}));
    let manager = harness.manager_with_reconnect_timeout(Duration::from_secs(1)).await;
    wait_started(&harness).await;
    harness.agent.write(RUN, "before\n");
    harness.wait_for_trace("before").await;
    harness.coordinator.fail(Call::UpdateJob, [Fault::FailBefore, Fault::FailBefore]);
    harness.agent.kill();
    harness.wait_for_trace("environment was lost").await;
    manager.kill().await;
    let _manager = harness.manager().await;
    let job = harness.coordinator.wait_for_end(JOB).await;
    let text = job.text();
    assert_eq!(text.matches("before\n").count(), 1, "{text}");
    assert_eq!(text.matches("ERROR: Job failed (system failure): the job's environment was lost").count(), 1, "{text}");
    let line = text.lines().find(|line| line.contains("environment was lost")).unwrap();
    assert!(line.contains("; retry the job, or set `retry: "), "advice must follow the reason: {line}");
    let last = job.updates.last().unwrap();
    assert_eq!(last.failure_reason.as_deref(), Some("runner_system_failure"));
    assert_eq!(last.output.bytesize, Some(job.trace.len() as u64));
}

async fn with_job_of_lost_agent() -> (Harness, RunningManager) {
    let harness = Harness::with_short_hold().await;
    harness.push(&json!({}));
    let manager = harness.manager_with_reconnect_timeout(Duration::from_secs(1)).await;
    wait_started(&harness).await;
    harness.agent.kill();
    harness.coordinator.wait_for_end(JOB).await;
    (harness, manager)
}

#[tokio::test]
async fn reported_job_keeps_its_slot_until_its_agent_is_reached_again() {
    let (harness, manager) = with_job_of_lost_agent().await;
    let mut free_slots = manager.free_slots.clone();
    let all = *free_slots.borrow() + 1;
    // The clock advances to the next timer.
    tokio::time::pause();
    let released = free_slots.wait_for(|free| *free == all);
    let is_held = tokio::time::timeout(Duration::from_secs(120), released).await.is_err();
    assert!(is_held, "the job may still run, so no other job may get its slot");
    harness.agent.restart();
    // Ends the pause before the next attempt.
    tokio::time::advance(Duration::from_secs(30)).await;
    tokio::time::resume();
    harness.agent.wait_for(|spool| spool.closed == [RUN]).await;
    free_slots.wait_for(|free| *free == all).await.unwrap();
    manager.drain().await;
    manager.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn shutdown_leaves_job_of_unreachable_agent_to_next_start() {
    let (harness, manager) = with_job_of_lost_agent().await;
    manager.drain().await;
    manager.ended().await.unwrap();
    assert_eq!(harness.store().await.jobs().len(), 1, "the next start must close the job");
    harness.agent.restart();
    let next = harness.manager().await;
    harness.agent.wait_for(|spool| spool.closed == [RUN]).await;
    next.drain().await;
    next.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
}

/// The job was canceled while no manager was running. The next keep-alive is due after 30 s.
async fn with_silent_canceled_job() -> Harness {
    let harness = Harness::start().await;
    harness.push(&json!({ "muster": { "trace_interval_ms": 60_000 } }));
    let manager = harness.manager().await;
    harness.wait_for_state("\"state\":\"running\"").await;
    manager.kill().await;
    harness.coordinator.set_status(JOB, JobStatus::Canceling);
    harness
}

#[tokio::test]
async fn silent_job_that_was_canceled_during_a_restart_is_canceled_at_once() {
    let harness = with_silent_canceled_job().await;
    let _manager = harness.manager().await;
    harness.agent.wait_for(|spool| spool.jobs[RUN].canceled).await;
    harness.agent.finish(RUN, canceled());
    assert_eq!(harness.coordinator.wait_for_end(JOB).await.status, JobStatus::Canceled);
}

#[tokio::test]
async fn canceled_job_that_its_agent_lost_is_not_started_again() {
    let harness = with_silent_canceled_job().await;
    harness.agent.change(|spool| spool.jobs.clear());
    let _manager = harness.manager().await;
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("job_canceled"));
    assert_eq!(harness.agent.spool().started, [RUN]);
}

#[tokio::test]
async fn canceled_job_ends_and_its_log_arrives() {
    let (harness, _manager) = with_started_job().await;
    harness.coordinator.set_status(JOB, JobStatus::Canceling);
    harness.agent.write(RUN, "working\n");
    harness.agent.wait_for(|spool| spool.jobs[RUN].canceled).await;
    harness.agent.write(RUN, "after_script\n");
    harness.agent.finish(RUN, canceled());
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, job.text().as_str()), (JobStatus::Canceled, "working\nafter_script\n"));
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("job_canceled"));
}

#[tokio::test]
async fn job_ended_by_coordinator_is_closed_unreported() {
    let (harness, manager) = with_started_job().await;
    harness.coordinator.set_status(JOB, JobStatus::Canceled);
    harness.agent.write(RUN, "working\n");
    harness.agent.wait_for(|spool| spool.closed == [RUN]).await;
    manager.drain().await;
    manager.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
    assert!(harness.coordinator.job(JOB).unwrap().updates.iter().all(|update| update.state == "running"));
}

#[tokio::test]
async fn cancel_is_noticed_while_no_agent_responds() {
    let harness = Harness::start().await;
    harness.agent.kill();
    harness.push(&json!({}));
    let manager = harness.manager_with_reconnect_timeout(Duration::from_secs(600)).await;
    harness.coordinator.wait_for(JOB, |job| job.assignments == 1).await;
    harness.coordinator.set_status(JOB, JobStatus::Canceling);
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("job_canceled"));
    harness.agent.restart();
    manager.drain().await;
    manager.ended().await.unwrap();
    assert!(harness.agent.spool().started.is_empty(), "a canceled job must not be started later");
}

#[tokio::test]
async fn cancel_is_noticed_while_agent_of_running_job_is_away() {
    let harness = Harness::start().await;
    harness.push(&json!({}));
    let _manager = harness.manager_with_reconnect_timeout(Duration::from_secs(600)).await;
    wait_started(&harness).await;
    harness.agent.kill();
    harness.coordinator.set_status(JOB, JobStatus::Canceling);
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("job_canceled"));
}

#[tokio::test]
async fn job_continues_once_state_can_be_stored() {
    let harness = Harness::start().await;
    let manager = harness.manager().await;
    // The job is stored, but not started when the disk becomes full.
    harness.coordinator.fail(Call::UpdateJob, [Fault::FailBefore, Fault::FailBefore]);
    harness.push(&json!({}));
    harness.wait_for_state("\"job\":").await;
    let limit = manager.state_limit.swap(0, Ordering::Relaxed);
    harness.coordinator.wait_for(JOB, |job| !job.updates.is_empty()).await;
    assert!(tokio::time::timeout(Duration::from_millis(300), wait_started(&harness)).await.is_err());
    manager.state_limit.store(limit, Ordering::Relaxed);
    wait_started(&harness).await;
    harness.agent.finish(RUN, Outcome::Success);
    harness.coordinator.wait_for_end(JOB).await;
    manager.drain().await;
    manager.ended().await.unwrap();
    assert_eq!(harness.agent.spool().started, [RUN]);
    harness.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn unstorable_state_ends_manager_and_next_start_continues() {
    let harness = Harness::start().await;
    let settings = harness.settings(|_| {});
    let manager =
        harness.manager_with_settings(Settings { state_write_timeout: Duration::from_millis(400), ..settings }).await;
    harness.push(&json!({}));
    wait_started(&harness).await;
    manager.state_limit.store(0, Ordering::Relaxed);
    harness.agent.finish(RUN, Outcome::Success);
    let error = manager.ended().await.unwrap_err();
    assert!(matches!(error, ManagerError::Store(_)), "{error}");
    let next = harness.manager().await;
    assert_eq!(harness.coordinator.wait_for_end(JOB).await.assignments, 1);
    next.drain().await;
    next.ended().await.unwrap();
    assert_eq!(harness.agent.spool().started, [RUN]);
    harness.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn unstorable_state_is_retried_for_five_minutes() {
    let (harness, manager) = with_started_job().await;
    manager.state_limit.store(0, Ordering::Relaxed);
    // From here on, the clock advances to the next timer.
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    harness.agent.finish(RUN, Outcome::Success);
    let error = manager.ended_within(Duration::from_secs(3600)).await.unwrap_err();
    assert!(matches!(error, ManagerError::Store(_)), "{error}");
    let tried_s = began.elapsed().as_secs();
    assert!((300..360).contains(&tried_s), "gave up after {tried_s} s, expected 300 s to 360 s");
}

#[tokio::test]
async fn aborted_job_is_canceled_and_reported_as_interrupted() {
    let (harness, manager) = with_started_job().await;
    manager.control.send(ControlCommand::Abort).await;
    harness.agent.wait_for(|spool| spool.jobs[RUN].canceled).await;
    harness.agent.finish(RUN, canceled());
    manager.ended().await.unwrap();
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("runner_interrupted"));
    harness.assert_no_jobs_stored().await;
}

/// The first manager is killed while its jobs are still being canceled, as by a second SIGTERM.
#[tokio::test]
async fn job_aborted_by_earlier_manager_is_interrupted() {
    let (harness, manager) = with_started_job().await;
    manager.control.send(ControlCommand::Abort).await;
    harness.agent.wait_for(|spool| spool.jobs[RUN].canceled).await;
    manager.kill().await;
    harness.agent.finish(RUN, canceled());
    let next = harness.manager().await;
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("runner_interrupted"));
    next.drain().await;
    next.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn payload_that_cannot_be_lowered_fails_with_reason() {
    let harness = Harness::start().await;
    harness.push(&json!({ "variables": [{ "key": "GIT_SUBMODULE_STRATEGY", "value": "deep" }] }));
    let _manager = harness.manager().await;
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!(job.text(), "\u{1b}[31;1mERROR: Job failed: unknown GIT_SUBMODULE_STRATEGY\u{1b}[0;m\n");
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("runner_configuration_error"));
    assert!(harness.agent.spool().started.is_empty());
}

#[tokio::test]
async fn job_refused_by_agent_is_system_failure() {
    let harness = Harness::start().await;
    harness.agent.change(|spool| spool.run_error = Some("no space left".to_owned()));
    harness.push(&json!({}));
    let _manager = harness.manager().await;
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert!(job.text().contains("(system failure): no space left"), "{}", job.text());
}

#[tokio::test]
async fn result_of_more_than_8_mib_is_rejected() {
    for (length, is_rejected) in [(MAX_RESULT_BYTES / 2, false), (MAX_RESULT_BYTES, true)] {
        let (harness, _manager) = with_started_job().await;
        harness.agent.finish_with(RUN, Outcome::Success, |result| result.tree.message = "x".repeat(length));
        let job = harness.coordinator.wait_for_end(JOB).await;
        let text = job.text();
        assert_eq!(text.contains("invalid result of the job: it has more than 8 MiB"), is_rejected, "{text}");
        let state = if is_rejected { "failed" } else { "success" };
        assert_eq!(job.updates.last().unwrap().state, state);
    }
}

#[tokio::test]
async fn refused_token_ends_manager_with_advice() {
    let harness = Harness::start().await;
    harness.coordinator.refuse_runners();
    let error = harness.manager().await.ended().await.unwrap_err();
    assert!(matches!(error, ManagerError::TokenRefused { .. }), "{error}");
    assert!(error.to_string().contains("register the runner again"), "{error}");
}

#[tokio::test]
async fn jobs_are_requested_only_for_free_slots() {
    let harness = Harness::start().await;
    for id in 1..=5 {
        harness.push(&json!({ "id": id }));
    }
    let _manager = harness.manager().await;
    harness.agent.wait_for(|spool| spool.started.len() == 2).await;
    harness.agent.finish("1-1", Outcome::Success);
    harness.agent.wait_for(|spool| spool.started.len() == 3).await;
    let running = |spool: &crate::agent::Spool| spool.jobs.values().filter(|job| job.result.is_none()).count();
    assert_eq!(running(&harness.agent.spool()), 2);
    assert!(harness.coordinator.max_waiting() <= 2);
}
