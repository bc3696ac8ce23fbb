//! Faults on both sides, cancels, and outcomes that only the manager knows.

use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_agent_api::result::Outcome;
use muster_config::settings::Settings;
use muster_job::{FailureReason, JobStatus, TerminationCause};
use muster_manager::{ControlCommand, ManagerError};
use muster_runner_api::test_support::{Call, Fault};
use serde_json::json;

use crate::bench::{Bench, JOB, RUN, Running};

/// Returns an agent's outcome of a canceled job.
fn canceled() -> Outcome {
    let cause = Some(TerminationCause::CanceledByUser);
    Outcome::Failed { reason: FailureReason::JobCanceled, exit_code: None, cause }
}

async fn wait_started(bench: &Bench) {
    bench.agent.wait_for(|spool| !spool.started.is_empty()).await;
}

/// Starts a manager whose agent has started the one job.
async fn with_started_job() -> (Bench, Running) {
    let bench = Bench::start().await;
    bench.push(&json!({}));
    let manager = bench.manager().await;
    wait_started(&bench).await;
    (bench, manager)
}

#[tokio::test]
async fn lost_answers_duplicate_no_log_bytes() {
    let bench = Bench::start().await;
    use Fault::{FailAfter, FailBefore};
    bench.coordinator.fail(Call::AppendTrace, [FailBefore, FailAfter, FailBefore, FailAfter]);
    bench.coordinator.fail(Call::UpdateJob, [FailAfter]);
    bench.push(&json!({}));
    let manager = bench.manager().await;
    wait_started(&bench).await;
    let log: String = (0..100).map(|number| format!("line {number}\n")).collect();
    for line in log.split_inclusive('\n') {
        bench.agent.write(RUN, line);
    }
    bench.agent.finish(RUN, Outcome::Success);
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, job.text()), (JobStatus::Success, log));
    bench.agent.wait_for(|spool| spool.closed == [RUN]).await;
    manager.drain().await;
    manager.ended().await.unwrap();
    bench.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn long_log_arrives_completely_with_result_tree() {
    let (bench, _manager) = with_started_job().await;
    let log = "0123456789abcdef".repeat(200_000);
    bench.agent.write(RUN, &log);
    bench.agent.finish(RUN, Outcome::Success);
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert_eq!(job.trace.len(), log.len());
    assert!(job.text() == log, "the bytes differ");
    assert_eq!(job.updates.last().unwrap().result_tree.as_ref().unwrap()["name"], "job");
}

#[tokio::test]
async fn reconnected_agent_is_followed() {
    let (bench, _manager) = with_started_job().await;
    bench.agent.write(RUN, "before\n");
    bench.wait_for_trace("before").await;
    bench.agent.kill();
    bench.agent.write(RUN, "meanwhile\n");
    bench.agent.restart();
    bench.wait_for_trace("meanwhile").await;
    bench.agent.finish(RUN, Outcome::Success);
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, job.text().as_str()), (JobStatus::Success, "before\nmeanwhile\n"));
    assert_eq!(bench.agent.spool().started, [RUN]);
}

#[tokio::test]
async fn lost_agent_fails_job_with_one_message() {
    let bench = Bench::start().await;
    bench.push(&json!({}));
    let manager = bench.manager_with_timeout(Duration::from_secs(1)).await;
    wait_started(&bench).await;
    bench.agent.write(RUN, "before\n");
    bench.wait_for_trace("before").await;
    bench.coordinator.fail(Call::UpdateJob, [Fault::FailBefore, Fault::FailBefore]);
    bench.agent.kill();
    bench.wait_for_trace("environment was lost").await;
    manager.kill().await;
    let _manager = bench.manager().await;
    let job = bench.coordinator.wait_for_end(JOB).await;
    let text = job.text();
    assert_eq!(text.matches("before\n").count(), 1, "{text}");
    assert_eq!(text.matches("ERROR: Job failed (system failure): the job's environment was lost").count(), 1, "{text}");
    let line = text.lines().find(|line| line.contains("environment was lost")).unwrap();
    assert!(line.contains("; retry the job, or set `retry: "), "the advice follows the reason: {line}");
    let last = job.updates.last().unwrap();
    assert_eq!(last.failure_reason.as_deref(), Some("runner_system_failure"));
    assert_eq!(last.output.bytesize, Some(job.trace.len() as u64));
}

#[tokio::test]
async fn canceled_job_ends_and_its_log_arrives() {
    let (bench, _manager) = with_started_job().await;
    bench.coordinator.set_status(JOB, JobStatus::Canceling);
    bench.agent.write(RUN, "working\n");
    bench.agent.wait_for(|spool| spool.jobs[RUN].canceled).await;
    bench.agent.write(RUN, "after_script\n");
    bench.agent.finish(RUN, canceled());
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, job.text().as_str()), (JobStatus::Canceled, "working\nafter_script\n"));
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("job_canceled"));
}

#[tokio::test]
async fn job_ended_by_coordinator_is_closed_unreported() {
    let (bench, manager) = with_started_job().await;
    bench.coordinator.set_status(JOB, JobStatus::Canceled);
    bench.agent.write(RUN, "working\n");
    bench.agent.wait_for(|spool| spool.closed == [RUN]).await;
    manager.drain().await;
    manager.ended().await.unwrap();
    bench.assert_no_jobs_stored().await;
    assert!(bench.coordinator.job(JOB).unwrap().updates.iter().all(|update| update.state == "running"));
}

#[tokio::test]
async fn cancel_is_noticed_while_no_agent_responds() {
    let bench = Bench::start().await;
    bench.agent.kill();
    bench.push(&json!({}));
    let manager = bench.manager_with_timeout(Duration::from_secs(600)).await;
    bench.coordinator.wait_for(JOB, |job| job.assignments == 1).await;
    bench.coordinator.set_status(JOB, JobStatus::Canceling);
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("job_canceled"));
    bench.agent.restart();
    manager.drain().await;
    manager.ended().await.unwrap();
    assert!(bench.agent.spool().started.is_empty(), "a canceled job was started later");
}

#[tokio::test]
async fn cancel_is_noticed_while_agent_of_running_job_is_away() {
    let bench = Bench::start().await;
    bench.push(&json!({}));
    let _manager = bench.manager_with_timeout(Duration::from_secs(600)).await;
    wait_started(&bench).await;
    bench.agent.kill();
    bench.coordinator.set_status(JOB, JobStatus::Canceling);
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("job_canceled"));
}

#[tokio::test]
async fn job_continues_once_state_can_be_stored() {
    let bench = Bench::start().await;
    let manager = bench.manager().await;
    // The first attempt to accept the job fails, so the job is stored but not started when the disk is full.
    bench.coordinator.fail(Call::UpdateJob, [Fault::FailBefore, Fault::FailBefore]);
    bench.push(&json!({}));
    bench.wait_for_state("\"job\":").await;
    let limit = manager.state_limit.swap(0, Ordering::Relaxed);
    bench.coordinator.wait_for(JOB, |job| !job.updates.is_empty()).await;
    // Longer than the first attempt takes.
    assert!(tokio::time::timeout(Duration::from_millis(300), wait_started(&bench)).await.is_err());
    manager.state_limit.store(limit, Ordering::Relaxed);
    wait_started(&bench).await;
    bench.agent.finish(RUN, Outcome::Success);
    bench.coordinator.wait_for_end(JOB).await;
    manager.drain().await;
    manager.ended().await.unwrap();
    assert_eq!(bench.agent.spool().started, [RUN]);
    bench.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn unstorable_state_ends_manager_and_next_start_continues() {
    let bench = Bench::start().await;
    let settings = bench.settings(|_| {});
    let manager =
        bench.manager_with_settings(Settings { state_write_timeout: Duration::from_millis(400), ..settings }).await;
    bench.push(&json!({}));
    wait_started(&bench).await;
    let limit = manager.state_limit.swap(0, Ordering::Relaxed);
    bench.agent.finish(RUN, Outcome::Success);
    let error = manager.ended().await.unwrap_err();
    assert!(matches!(error, ManagerError::Store(_)), "{error}");
    assert!(limit > 0);
    let next = bench.manager().await;
    assert_eq!(bench.coordinator.wait_for_end(JOB).await.assignments, 1);
    next.drain().await;
    next.ended().await.unwrap();
    assert_eq!(bench.agent.spool().started, [RUN]);
    bench.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn unstorable_state_is_retried_for_five_minutes() {
    let (bench, manager) = with_started_job().await;
    manager.state_limit.store(0, Ordering::Relaxed);
    // From here on the clock advances automatically to the next timer.
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    bench.agent.finish(RUN, Outcome::Success);
    let error = manager.ended_within(Duration::from_secs(3600)).await.unwrap_err();
    assert!(matches!(error, ManagerError::Store(_)), "{error}");
    let tried_s = began.elapsed().as_secs();
    assert!((300..360).contains(&tried_s), "{tried_s} s; a retry waits for at most 30 s");
}

#[tokio::test]
async fn stop_cancels_jobs_with_reason() {
    let (bench, manager) = with_started_job().await;
    manager.control.send(ControlCommand::Abort).await;
    bench.agent.wait_for(|spool| spool.jobs[RUN].canceled).await;
    bench.agent.finish(RUN, canceled());
    manager.ended().await.unwrap();
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("runner_interrupted"));
    bench.assert_no_jobs_stored().await;
}

/// The first manager is stopped while its jobs are still being canceled, as by a second SIGTERM.
#[tokio::test]
async fn job_aborted_by_earlier_manager_is_interrupted() {
    let (bench, manager) = with_started_job().await;
    manager.control.send(ControlCommand::Abort).await;
    bench.agent.wait_for(|spool| spool.jobs[RUN].canceled).await;
    manager.kill().await;
    bench.agent.finish(RUN, canceled());
    let next = bench.manager().await;
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("runner_interrupted"));
    next.drain().await;
    next.ended().await.unwrap();
    bench.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn payload_that_cannot_be_lowered_fails_with_reason() {
    let bench = Bench::start().await;
    bench.push(&json!({ "variables": [{ "key": "GIT_SUBMODULE_STRATEGY", "value": "deep" }] }));
    let _manager = bench.manager().await;
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert_eq!(job.text(), "\u{1b}[31;1mERROR: Job failed: unknown GIT_SUBMODULE_STRATEGY\u{1b}[0;m\n");
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("runner_configuration_error"));
    assert!(bench.agent.spool().started.is_empty());
}

#[tokio::test]
async fn job_refused_by_agent_is_system_failure() {
    let bench = Bench::start().await;
    bench.agent.change(|spool| spool.refuse = Some("no space left".to_owned()));
    bench.push(&json!({}));
    let _manager = bench.manager().await;
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert!(job.text().contains("(system failure): no space left"), "{}", job.text());
}

#[tokio::test]
async fn refused_token_ends_manager_with_advice() {
    let bench = Bench::start().await;
    bench.coordinator.refuse_runners();
    let error = bench.manager().await.ended().await.unwrap_err();
    assert!(matches!(error, ManagerError::TokenRefused { .. }), "{error}");
    assert!(error.to_string().contains("register the runner again"), "{error}");
}

#[tokio::test]
async fn jobs_are_requested_only_for_free_slots() {
    let bench = Bench::start().await;
    for id in 1..=5 {
        bench.push(&json!({ "id": id }));
    }
    let _manager = bench.manager().await;
    bench.agent.wait_for(|spool| spool.started.len() == 2).await;
    bench.agent.finish("1-1", Outcome::Success);
    bench.agent.wait_for(|spool| spool.started.len() == 3).await;
    let running = |spool: &crate::agent::Spool| spool.jobs.values().filter(|job| job.result.is_none()).count();
    assert_eq!(running(&bench.agent.spool()), 2);
    assert!(bench.coordinator.max_waiting() <= 2);
}
