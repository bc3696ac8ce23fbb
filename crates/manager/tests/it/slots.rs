//! A slot whose job may still run is never given to another job, even after failures.

use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_agent_api::result::Outcome;
use muster_config::settings::{RunnerSettings, Settings};
use muster_job::{JobId, JobStatus, Secret};
use muster_runner_api::test_support::{Call, Fault};
use serde_json::json;

use crate::harness::{Harness, JOB};

fn push(harness: &Harness, id: i64) {
    harness.push(&json!({ "id": id, "token": format!("secret-{id}") }));
}

async fn wait_started(harness: &Harness, id: i64) {
    harness.agent.wait_for(|spool| spool.started.contains(&format!("{id}-1"))).await;
}

async fn finish(harness: &Harness, id: i64) {
    harness.agent.finish(&format!("{id}-1"), Outcome::Success);
    let job = harness.coordinator.wait_for_end(JobId(id)).await;
    assert_eq!((job.status, job.assignments), (JobStatus::Success, 1), "{}", job.text());
}

#[tokio::test]
async fn unresponsive_agent_is_retried_with_same_slot() {
    let harness = Harness::start().await;
    harness.agent.change(|spool| spool.lose_all_answers = true);
    harness.push(&json!({}));
    let manager = harness.manager_with_reconnect_timeout(Duration::from_secs(1)).await;
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!(job.reports().last().unwrap().failure_reason.as_deref(), Some("runner_system_failure"));
    manager.drain().await;
    manager.ended().await.unwrap();
    assert_eq!(harness.assigned_slots(), [0], "no other slot may be used, because the agent may have the job");
    assert_eq!(harness.agent.spool().started, ["7-1"]);
}

#[tokio::test]
async fn job_keeps_slot_while_state_cannot_be_stored() {
    let harness = Harness::start().await;
    harness.agent.kill();
    push(&harness, 1);
    let manager = harness.manager_with_settings(harness.settings(|_| {})).await;
    harness.wait_for_slots(1).await;
    harness.coordinator.fail(Call::UpdateJob, [Fault::FailBefore; 1000]);
    push(&harness, 2);
    // The second job is stored, but the coordinator does not know yet that the manager accepts it.
    harness.coordinator.wait_for_faults_left(Call::UpdateJob, 998).await;
    let limit = manager.state_limit.swap(0, Ordering::Relaxed);
    harness.agent.restart();
    wait_started(&harness, 1).await;
    // The agent accepts the first job, but its new state cannot be stored.
    for _ in 0..100 {
        manager.control.stats().await.unwrap();
        tokio::task::yield_now().await;
    }
    manager.state_limit.store(limit, Ordering::Relaxed);
    harness.coordinator.clear_faults();
    wait_started(&harness, 2).await;
    finish(&harness, 1).await;
    finish(&harness, 2).await;
    assert_eq!(harness.assigned_slots(), [0, 1]);
    manager.drain().await;
    manager.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn job_counts_for_runner_after_restart_with_new_token() {
    let harness = Harness::start().await;
    harness.coordinator.add_runner("glrt-new", None);
    let settings = |token: &str| {
        let settings = harness.settings(|runner| {
            let (url, name) = (runner.url.clone(), runner.name.clone());
            let new = RunnerSettings::new(url, Secret::new(token), 0);
            *runner = RunnerSettings { name, limit: Some(1), ..new };
        });
        Settings { concurrent: 5, ..settings }
    };
    let manager = harness.manager_with_settings(settings(muster_runner_api::test_support::RUNNER_TOKEN)).await;
    push(&harness, 1);
    wait_started(&harness, 1).await;
    manager.kill().await;
    // The coordinator detects the death of the manager when the connection of its request is closed.
    harness.coordinator.wait_for_held_requests(0).await;
    push(&harness, 2);
    let manager = harness.manager_with_settings(settings("glrt-new")).await;
    manager.wait_for(|stats| stats.jobs == 1).await;
    let stats = manager.control.stats().await.unwrap();
    assert_eq!((stats.runners[0].jobs, stats.runners[0].requests), (1, 0), "the restored job counts against the limit");
    finish(&harness, 1).await;
    wait_started(&harness, 2).await;
    finish(&harness, 2).await;
    manager.drain().await;
    manager.ended().await.unwrap();
}
