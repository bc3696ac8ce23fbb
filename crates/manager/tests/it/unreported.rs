//! Jobs that have ended while the coordinator accepts no logs or reports: they release their slots.

use muster_agent_api::result::Outcome;
use muster_config::settings::Settings;
use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::{Call, Fault};
use serde_json::json;

use crate::harness::{Harness, RunningManager};

/// One job at a time may run. The coordinator accepts no logs.
async fn start_manager(max_unreported_jobs: usize) -> (Harness, RunningManager) {
    let harness = Harness::start().await;
    harness.coordinator.fail(Call::AppendTrace, [Fault::FailBefore; 10_000]);
    let settings = Settings { concurrent: 1, max_unreported_jobs, ..harness.settings(|_| {}) };
    let manager = harness.manager_with_settings(settings).await;
    (harness, manager)
}

fn push(harness: &Harness, id: i64) {
    harness.push(&json!({ "id": id, "token": format!("secret-{id}") }));
}

async fn wait_started(harness: &Harness, id: i64) {
    harness.agent.wait_for(|spool| spool.started.contains(&format!("{id}-1"))).await;
}

async fn run_to_end(harness: &Harness, id: i64) {
    push(harness, id);
    wait_started(harness, id).await;
    harness.agent.write(&format!("{id}-1"), "hello\n");
    harness.agent.finish(&format!("{id}-1"), Outcome::Success);
}

async fn wait_reported(harness: &Harness, id: i64) {
    let job = harness.coordinator.wait_for_end(JobId(id)).await;
    assert_eq!((job.status, job.text().as_str(), job.assignments), (JobStatus::Success, "hello\n", 1));
    harness.agent.wait_for(|spool| spool.closed.contains(&format!("{id}-1"))).await;
}

async fn drain(harness: &Harness, manager: RunningManager) {
    manager.drain().await;
    manager.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn unreported_job_releases_its_slot() {
    let (harness, manager) = start_manager(100).await;
    run_to_end(&harness, 1).await;
    run_to_end(&harness, 2).await;
    push(&harness, 3);
    wait_started(&harness, 3).await;
    manager.wait_for(|stats| stats.jobs == 1).await;
    harness.coordinator.clear_faults();
    wait_reported(&harness, 1).await;
    wait_reported(&harness, 2).await;
    harness.agent.finish("3-1", Outcome::Success);
    harness.coordinator.wait_for_end(JobId(3)).await;
    drain(&harness, manager).await;
}

#[tokio::test]
async fn job_whose_report_fails_releases_its_slot() {
    let harness = Harness::start().await;
    let settings = Settings { concurrent: 1, ..harness.settings(|_| {}) };
    let manager = harness.manager_with_settings(settings).await;
    push(&harness, 1);
    wait_started(&harness, 1).await;
    harness.coordinator.fail(Call::UpdateJob, [Fault::FailBefore; 3]);
    harness.agent.finish("1-1", Outcome::Success);
    manager.wait_for(|stats| stats.jobs == 0).await;
    harness.coordinator.wait_for_end(JobId(1)).await;
    drain(&harness, manager).await;
}

#[tokio::test]
async fn job_above_the_limit_of_unreported_jobs_keeps_its_slot() {
    let (harness, manager) = start_manager(1).await;
    run_to_end(&harness, 1).await;
    run_to_end(&harness, 2).await;
    push(&harness, 3);
    // After eight failed uploads of the two logs, the second job still keeps the slot.
    harness.coordinator.wait_for_faults_left(Call::AppendTrace, 10_000 - 8).await;
    assert_eq!(harness.agent.spool().started, ["1-1", "2-1"]);
    harness.coordinator.clear_faults();
    wait_reported(&harness, 1).await;
    wait_reported(&harness, 2).await;
    wait_started(&harness, 3).await;
    harness.agent.finish("3-1", Outcome::Success);
    harness.coordinator.wait_for_end(JobId(3)).await;
    drain(&harness, manager).await;
}

#[tokio::test]
async fn unreported_job_is_restored_without_slot() {
    let (harness, manager) = start_manager(100).await;
    run_to_end(&harness, 1).await;
    push(&harness, 2);
    wait_started(&harness, 2).await;
    manager.kill().await;
    let manager = harness.manager_with_settings(Settings { concurrent: 1, ..harness.settings(|_| {}) }).await;
    manager.wait_for(|stats| stats.jobs == 1).await;
    harness.coordinator.clear_faults();
    wait_reported(&harness, 1).await;
    harness.agent.finish("2-1", Outcome::Success);
    harness.coordinator.wait_for_end(JobId(2)).await;
    assert_eq!(harness.agent.spool().started, ["1-1", "2-1"], "each job is started once");
    drain(&harness, manager).await;
}
