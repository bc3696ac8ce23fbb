//! Jobs that have ended while the coordinator accepts no logs or reports: they release their slots.

use muster_agent_api::result::Outcome;
use muster_config::settings::Settings;
use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::{Call, Fault};
use serde_json::json;

use crate::bench::{Bench, Running};

/// Starts a manager that runs one job at a time, at a coordinator that accepts no logs.
async fn start_manager(max_unreported_jobs: usize) -> (Bench, Running) {
    let bench = Bench::start().await;
    bench.coordinator.fail(Call::AppendTrace, [Fault::FailBefore; 10_000]);
    let settings = Settings { concurrent: 1, max_unreported_jobs, ..bench.settings(|_| {}) };
    let manager = bench.manager_with_settings(settings).await;
    (bench, manager)
}

fn push(bench: &Bench, id: i64) {
    bench.push(&json!({ "id": id, "token": format!("secret-{id}") }));
}

async fn wait_started(bench: &Bench, id: i64) {
    bench.agent.wait_for(|spool| spool.started.contains(&format!("{id}-1"))).await;
}

/// Starts a job, which writes a log and ends.
async fn run(bench: &Bench, id: i64) {
    push(bench, id);
    wait_started(bench, id).await;
    bench.agent.write(&format!("{id}-1"), "hello\n");
    bench.agent.finish(&format!("{id}-1"), Outcome::Success);
}

async fn reported(bench: &Bench, id: i64) {
    let job = bench.coordinator.wait_for_end(JobId(id)).await;
    assert_eq!((job.status, job.text().as_str(), job.assignments), (JobStatus::Success, "hello\n", 1));
    bench.agent.wait_for(|spool| spool.closed.contains(&format!("{id}-1"))).await;
}

async fn end(bench: &Bench, manager: Running) {
    manager.drain().await;
    manager.ended().await.unwrap();
    bench.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn unreported_job_releases_its_slot() {
    let (bench, manager) = start_manager(100).await;
    run(&bench, 1).await;
    run(&bench, 2).await;
    push(&bench, 3);
    wait_started(&bench, 3).await;
    manager.wait_for(|stats| stats.jobs == 1).await;
    bench.coordinator.clear_faults();
    reported(&bench, 1).await;
    reported(&bench, 2).await;
    bench.agent.finish("3-1", Outcome::Success);
    bench.coordinator.wait_for_end(JobId(3)).await;
    end(&bench, manager).await;
}

#[tokio::test]
async fn job_with_refused_report_releases_its_slot() {
    let bench = Bench::start().await;
    let settings = Settings { concurrent: 1, ..bench.settings(|_| {}) };
    let manager = bench.manager_with_settings(settings).await;
    push(&bench, 1);
    wait_started(&bench, 1).await;
    bench.coordinator.fail(Call::UpdateJob, [Fault::FailBefore; 3]);
    bench.agent.finish("1-1", Outcome::Success);
    manager.wait_for(|stats| stats.jobs == 0).await;
    bench.coordinator.wait_for_end(JobId(1)).await;
    end(&bench, manager).await;
}

#[tokio::test]
async fn unreported_jobs_are_bounded() {
    let (bench, manager) = start_manager(1).await;
    run(&bench, 1).await;
    run(&bench, 2).await;
    push(&bench, 3);
    // The second job is retried and keeps the slot.
    bench.coordinator.faults_left(Call::AppendTrace, 10_000 - 8).await;
    assert_eq!(bench.agent.spool().started, ["1-1", "2-1"]);
    bench.coordinator.clear_faults();
    reported(&bench, 1).await;
    reported(&bench, 2).await;
    wait_started(&bench, 3).await;
    bench.agent.finish("3-1", Outcome::Success);
    bench.coordinator.wait_for_end(JobId(3)).await;
    end(&bench, manager).await;
}

#[tokio::test]
async fn unreported_job_is_restored_without_slot() {
    let (bench, manager) = start_manager(100).await;
    run(&bench, 1).await;
    push(&bench, 2);
    wait_started(&bench, 2).await;
    manager.kill().await;
    let manager = bench.manager_with_settings(Settings { concurrent: 1, ..bench.settings(|_| {}) }).await;
    manager.wait_for(|stats| stats.jobs == 1).await;
    bench.coordinator.clear_faults();
    reported(&bench, 1).await;
    bench.agent.finish("2-1", Outcome::Success);
    bench.coordinator.wait_for_end(JobId(2)).await;
    assert_eq!(bench.agent.spool().started, ["1-1", "2-1"], "a job was started twice");
    end(&bench, manager).await;
}
