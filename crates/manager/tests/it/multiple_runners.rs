//! One manager with runners at several coordinators.

use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::result::Outcome;
use muster_config::settings::{RunnerSettings, Settings};
use muster_job::{JobId, JobStatus, Secret};
use muster_manager::ControlCommand;
use muster_runner_api::test_support::{Call, Fault, MemoryCoordinator, RUNNER_TOKEN, Served, serve};
use serde_json::json;

use crate::harness::{Harness, RunningManager};

struct TestCoordinator {
    memory: Arc<MemoryCoordinator>,
    served: Served,
}

impl TestCoordinator {
    async fn start(long_poll: Duration) -> Self {
        let memory = Arc::new(MemoryCoordinator::new(long_poll));
        Self { served: serve(memory.clone()).await.unwrap(), memory }
    }

    fn runner(&self, name: &str) -> RunnerSettings {
        RunnerSettings {
            name: name.to_owned(),
            ..RunnerSettings::new(self.served.url.clone(), Secret::new(RUNNER_TOKEN), 1)
        }
    }

    fn push(&self, id: i64) {
        let payload = json!({
            "id": id, "token": format!("secret-{id}"), "steps": [{ "name": "script", "script": ["true"] }],
            "features": { "failure_reasons": ["runner_interrupted"] }, "muster": { "trace_interval_ms": 5 }
        });
        self.memory.enqueue(serde_json::from_value(payload).unwrap());
    }
}

const LONG_POLL: Duration = Duration::from_secs(30);

/// Held requests may be canceled after 50 ms.
fn settings(concurrent: usize, runners: Vec<RunnerSettings>) -> Settings {
    let runners = runners.into_iter().map(Arc::new).collect();
    let min_hold = Duration::from_millis(50);
    Settings { concurrent, min_hold, answer_timeout: min_hold, runners, ..Settings::new() }
}

async fn wait_started(harness: &Harness, id: i64) {
    harness.agent.wait_for(|spool| spool.started.contains(&format!("{id}-1"))).await;
}

/// Ends a job at the agent, and waits for its report.
async fn finish(harness: &Harness, coordinator: &TestCoordinator, id: i64) {
    harness.agent.finish(&format!("{id}-1"), Outcome::Success);
    let job = coordinator.memory.wait_for_end(JobId(id)).await;
    assert_eq!((job.status, job.assignments), (JobStatus::Success, 1));
}

async fn end(harness: &Harness, manager: RunningManager) {
    manager.drain().await;
    manager.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn held_requests_do_not_starve_other_runners() {
    let harness = Harness::start().await;
    let coordinators = [
        TestCoordinator::start(LONG_POLL).await,
        TestCoordinator::start(LONG_POLL).await,
        TestCoordinator::start(LONG_POLL).await,
    ];
    let runners = coordinators.iter().map(|coordinator| coordinator.runner("r")).collect();
    let manager = harness.manager_with_settings(settings(1, runners)).await;
    for (id, coordinator) in
        [(1, &coordinators[2]), (2, &coordinators[0]), (3, &coordinators[1]), (4, &coordinators[2])]
    {
        coordinator.push(id);
        wait_started(&harness, id).await;
        finish(&harness, coordinator, id).await;
    }
    end(&harness, manager).await;
}

#[tokio::test]
async fn limits_apply_across_runners_and_restarts() {
    let harness = Harness::start().await;
    let coordinators = [TestCoordinator::start(LONG_POLL).await, TestCoordinator::start(LONG_POLL).await];
    let limited = RunnerSettings { limit: Some(1), request_concurrency: 4, ..coordinators[0].runner("a") };
    let both = || settings(3, vec![limited.clone(), coordinators[1].runner("b")]);
    let manager = harness.manager_with_settings(both()).await;
    (1..=3).for_each(|id| coordinators[0].push(id));
    (11..=14).for_each(|id| coordinators[1].push(id));
    harness.agent.wait_for(|spool| spool.started.len() == 3).await;
    manager.kill().await;
    let manager = harness.manager_with_settings(both()).await;
    let running = |spool: &crate::agent::Spool, ids: std::ops::Range<i64>| {
        ids.filter(|id| spool.jobs.get(&format!("{id}-1")).is_some_and(|job| job.result.is_none())).count()
    };
    for id in [1, 11, 12, 2, 13, 14, 3] {
        wait_started(&harness, id).await;
        let spool = harness.agent.spool();
        assert!(running(&spool, 1..10) <= 1, "limit: {:?}", spool.jobs.keys());
        assert!(running(&spool, 1..20) <= 3, "concurrent: {:?}", spool.jobs.keys());
        finish(&harness, &coordinators[usize::from(id > 10)], id).await;
    }
    end(&harness, manager).await;
}

#[tokio::test]
async fn jobs_of_two_coordinators_may_have_the_same_id() {
    let harness = Harness::start().await;
    let coordinators = [TestCoordinator::start(LONG_POLL).await, TestCoordinator::start(LONG_POLL).await];
    let manager = harness
        .manager_with_settings(settings(2, coordinators.iter().map(|coordinator| coordinator.runner("r")).collect()))
        .await;
    coordinators[0].push(7);
    wait_started(&harness, 7).await;
    finish(&harness, &coordinators[0], 7).await;
    harness.agent.wait_for(|spool| spool.jobs.is_empty()).await;
    coordinators[1].push(7);
    harness.agent.wait_for(|spool| spool.started.len() == 2).await;
    finish(&harness, &coordinators[1], 7).await;
    end(&harness, manager).await;
}

#[tokio::test]
async fn failing_coordinator_does_not_affect_others() {
    let harness = Harness::start().await;
    let coordinators = [
        TestCoordinator::start(LONG_POLL).await,
        TestCoordinator::start(LONG_POLL).await,
        TestCoordinator::start(LONG_POLL).await,
    ];
    coordinators[0].memory.fail(Call::RequestJob, [Fault::FailBefore; 3]);
    coordinators[1].memory.refuse_runners();
    let manager = harness
        .manager_with_settings(settings(3, coordinators.iter().map(|coordinator| coordinator.runner("r")).collect()))
        .await;
    coordinators[2].push(1);
    wait_started(&harness, 1).await;
    finish(&harness, &coordinators[2], 1).await;
    coordinators[0].push(2);
    wait_started(&harness, 2).await;
    manager.wait_for(|stats| stats.jobs == 1).await;
    let stats = manager.control.stats().await.unwrap();
    assert_eq!(stats.concurrent, 3);
    assert_eq!(stats.runners.iter().map(|runner| runner.jobs).collect::<Vec<_>>(), [1, 0, 0]);
    assert!(stats.runners[1].refusals_total > 0);
    finish(&harness, &coordinators[0], 2).await;
    end(&harness, manager).await;
}

#[tokio::test]
async fn new_settings_add_and_remove_runners_without_losing_jobs() {
    let harness = Harness::start().await;
    let coordinators = [TestCoordinator::start(LONG_POLL).await, TestCoordinator::start(LONG_POLL).await];
    let manager = harness.manager_with_settings(settings(1, vec![coordinators[0].runner("a")])).await;
    coordinators[0].push(1);
    wait_started(&harness, 1).await;
    let reload = |settings| manager.control.send(ControlCommand::Reload(Box::new(settings)));
    reload(settings(2, vec![coordinators[1].runner("b")])).await;
    coordinators[0].push(2);
    coordinators[1].push(11);
    wait_started(&harness, 11).await;
    finish(&harness, &coordinators[0], 1).await;
    finish(&harness, &coordinators[1], 11).await;
    assert_eq!(
        coordinators[0].memory.job(JobId(2)).unwrap().status,
        JobStatus::Pending,
        "no job may be requested for a removed runner"
    );
    reload(settings(1, vec![coordinators[1].runner("b"), coordinators[0].runner("a")])).await;
    wait_started(&harness, 2).await;
    finish(&harness, &coordinators[0], 2).await;
    end(&harness, manager).await;
}

#[tokio::test]
async fn reduced_capacity_lets_jobs_end() {
    let harness = Harness::start().await;
    let coordinator = TestCoordinator::start(LONG_POLL).await;
    let runner = RunnerSettings { request_concurrency: 3, ..coordinator.runner("a") };
    let manager = harness.manager_with_settings(settings(3, vec![runner.clone()])).await;
    (1..=5).for_each(|id| coordinator.push(id));
    harness.agent.wait_for(|spool| spool.started.len() == 3).await;
    manager.control.send(ControlCommand::Reload(Box::new(settings(1, vec![runner])))).await;
    for id in 1..=2 {
        finish(&harness, &coordinator, id).await;
    }
    manager.wait_for(|stats| stats.jobs == 1).await;
    assert_eq!(
        manager.control.stats().await.unwrap().runners[0].requests,
        0,
        "no job may be requested without free capacity"
    );
    for id in 3..=5 {
        wait_started(&harness, id).await;
        finish(&harness, &coordinator, id).await;
    }
    end(&harness, manager).await;
}

#[tokio::test]
async fn job_of_removed_runner_is_reported_after_restart() {
    let harness = Harness::start().await;
    let coordinator = TestCoordinator::start(LONG_POLL).await;
    let manager = harness.manager_with_settings(settings(1, vec![coordinator.runner("a")])).await;
    coordinator.push(1);
    wait_started(&harness, 1).await;
    manager.kill().await;
    let manager = harness.manager_with_settings(settings(1, Vec::new())).await;
    finish(&harness, &coordinator, 1).await;
    end(&harness, manager).await;
}
