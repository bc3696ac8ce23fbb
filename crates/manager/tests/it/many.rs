//! One manager with runners at several coordinators.

use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::result::Outcome;
use muster_config::settings::{RunnerSettings, Settings};
use muster_job::{JobId, JobStatus, Secret};
use muster_manager::ControlCommand;
use muster_runner_api::test_support::{Call, Fault, MemoryCoordinator, RUNNER_TOKEN, Served, serve};
use serde_json::json;

use crate::bench::{Bench, Running};

/// Starts a separate coordinator for each runner.
struct Place {
    coordinator: Arc<MemoryCoordinator>,
    served: Served,
}

impl Place {
    async fn start(long_poll: Duration) -> Self {
        let coordinator = Arc::new(MemoryCoordinator::new(long_poll));
        Self { served: serve(coordinator.clone()).await.unwrap(), coordinator }
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
        self.coordinator.enqueue(serde_json::from_value(payload).unwrap());
    }
}

const HELD: Duration = Duration::from_secs(30);

/// Returns settings in which held requests are canceled soon.
fn settings(concurrent: usize, runners: Vec<RunnerSettings>) -> Settings {
    let runners = runners.into_iter().map(Arc::new).collect();
    let soon = Duration::from_millis(50);
    Settings { concurrent, min_hold: soon, answer_timeout: soon, runners, ..Settings::new() }
}

async fn started(bench: &Bench, id: i64) {
    bench.agent.wait_for(|spool| spool.started.contains(&format!("{id}-1"))).await;
}

/// Ends a job at the agent, and waits until its coordinator knows.
async fn finish(bench: &Bench, place: &Place, id: i64) {
    bench.agent.finish(&format!("{id}-1"), Outcome::Success);
    let job = place.coordinator.wait_for_end(JobId(id)).await;
    assert_eq!((job.status, job.assignments), (JobStatus::Success, 1));
}

async fn end(bench: &Bench, manager: Running) {
    manager.drain().await;
    manager.ended().await.unwrap();
    bench.check_forgotten().await;
}

#[tokio::test]
async fn held_requests_do_not_starve_other_runners() {
    let bench = Bench::start().await;
    let places = [Place::start(HELD).await, Place::start(HELD).await, Place::start(HELD).await];
    let runners = places.iter().map(|place| place.runner("r")).collect();
    let manager = bench.manager_of(settings(1, runners)).await;
    for (id, place) in [(1, &places[2]), (2, &places[0]), (3, &places[1]), (4, &places[2])] {
        place.push(id);
        started(&bench, id).await;
        finish(&bench, place, id).await;
    }
    end(&bench, manager).await;
}

#[tokio::test]
async fn limits_hold_over_runners_and_across_a_restart() {
    let bench = Bench::start().await;
    let places = [Place::start(HELD).await, Place::start(HELD).await];
    let limited = RunnerSettings { limit: Some(1), request_concurrency: 4, ..places[0].runner("a") };
    let both = || settings(3, vec![limited.clone(), places[1].runner("b")]);
    let manager = bench.manager_of(both()).await;
    (1..=3).for_each(|id| places[0].push(id));
    (11..=14).for_each(|id| places[1].push(id));
    bench.agent.wait_for(|spool| spool.started.len() == 3).await;
    manager.kill().await;
    let manager = bench.manager_of(both()).await;
    let running = |spool: &crate::agent::Spool, of: std::ops::Range<i64>| {
        of.filter(|id| spool.jobs.get(&format!("{id}-1")).is_some_and(|job| job.result.is_none())).count()
    };
    for id in [1, 11, 12, 2, 13, 14, 3] {
        started(&bench, id).await;
        let spool = bench.agent.spool();
        assert!(running(&spool, 1..10) <= 1, "limit: {:?}", spool.jobs.keys());
        assert!(running(&spool, 1..20) <= 3, "concurrent: {:?}", spool.jobs.keys());
        finish(&bench, &places[usize::from(id > 10)], id).await;
    }
    end(&bench, manager).await;
}

#[tokio::test]
async fn jobs_of_two_coordinators_may_share_number() {
    let bench = Bench::start().await;
    let places = [Place::start(HELD).await, Place::start(HELD).await];
    let manager = bench.manager_of(settings(2, places.iter().map(|place| place.runner("r")).collect())).await;
    places[0].push(7);
    started(&bench, 7).await;
    finish(&bench, &places[0], 7).await;
    bench.agent.wait_for(|spool| spool.jobs.is_empty()).await;
    places[1].push(7);
    bench.agent.wait_for(|spool| spool.started.len() == 2).await;
    finish(&bench, &places[1], 7).await;
    end(&bench, manager).await;
}

#[tokio::test]
async fn failing_coordinator_does_not_affect_others() {
    let bench = Bench::start().await;
    let places = [Place::start(HELD).await, Place::start(HELD).await, Place::start(HELD).await];
    places[0].coordinator.fail(Call::RequestJob, [Fault::FailBefore; 3]);
    places[1].coordinator.refuse_runners();
    let manager = bench.manager_of(settings(3, places.iter().map(|place| place.runner("r")).collect())).await;
    places[2].push(1);
    started(&bench, 1).await;
    finish(&bench, &places[2], 1).await;
    places[0].push(2);
    started(&bench, 2).await;
    manager.wait_for(|figures| figures.jobs == 1).await;
    let figures = manager.control.stats().await.unwrap();
    assert_eq!(figures.concurrent, 3);
    assert_eq!(figures.runners.iter().map(|runner| runner.jobs).collect::<Vec<_>>(), [1, 0, 0]);
    assert!(figures.runners[1].refusals_total > 0);
    finish(&bench, &places[0], 2).await;
    end(&bench, manager).await;
}

#[tokio::test]
async fn new_settings_add_and_remove_runners_and_drop_no_job() {
    let bench = Bench::start().await;
    let places = [Place::start(HELD).await, Place::start(HELD).await];
    let manager = bench.manager_of(settings(1, vec![places[0].runner("a")])).await;
    places[0].push(1);
    started(&bench, 1).await;
    let reload = |settings| manager.control.send(ControlCommand::Reload(Box::new(settings)));
    reload(settings(2, vec![places[1].runner("b")])).await;
    places[0].push(2);
    places[1].push(11);
    started(&bench, 11).await;
    finish(&bench, &places[0], 1).await;
    finish(&bench, &places[1], 11).await;
    assert_eq!(places[0].coordinator.job(JobId(2)).unwrap().status, JobStatus::Pending, "the runner is gone");
    reload(settings(1, vec![places[1].runner("b"), places[0].runner("a")])).await;
    started(&bench, 2).await;
    finish(&bench, &places[0], 2).await;
    end(&bench, manager).await;
}

#[tokio::test]
async fn reduced_capacity_lets_jobs_end() {
    let bench = Bench::start().await;
    let place = Place::start(HELD).await;
    let runner = RunnerSettings { request_concurrency: 3, ..place.runner("a") };
    let manager = bench.manager_of(settings(3, vec![runner.clone()])).await;
    (1..=5).for_each(|id| place.push(id));
    bench.agent.wait_for(|spool| spool.started.len() == 3).await;
    manager.control.send(ControlCommand::Reload(Box::new(settings(1, vec![runner])))).await;
    for id in 1..=2 {
        finish(&bench, &place, id).await;
    }
    manager.wait_for(|figures| figures.jobs == 1).await;
    assert_eq!(manager.control.stats().await.unwrap().runners[0].requests, 0, "the one place is taken");
    for id in 3..=5 {
        started(&bench, id).await;
        finish(&bench, &place, id).await;
    }
    end(&bench, manager).await;
}

#[tokio::test]
async fn job_of_removed_runner_is_reported_after_restart() {
    let bench = Bench::start().await;
    let place = Place::start(HELD).await;
    let manager = bench.manager_of(settings(1, vec![place.runner("a")])).await;
    place.push(1);
    started(&bench, 1).await;
    manager.kill().await;
    let manager = bench.manager_of(settings(1, Vec::new())).await;
    finish(&bench, &place, 1).await;
    end(&bench, manager).await;
}
