//! Job requests that the server may have answered, while capacity falls, settings change, or the manager is to end. The
//! server behaves as GitLab: an answer that is not read is a job lost.

use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::result::Outcome;
use muster_config::settings::{RunnerSettings, Settings};
use muster_executor::Capacity;
use muster_job::{JobId, JobStatus, Secret};
use muster_manager::Order;
use muster_runner_api::test_support::{Call, Fault};
use serde_json::json;

use crate::bench::{Bench, Running};

fn push(bench: &Bench, id: i64) {
    bench.push(&json!({ "id": id, "token": format!("secret-{id}") }));
}

/// The server assigns two jobs to the requests in flight.
fn assign_two(bench: &Bench) {
    push(bench, 1);
    push(bench, 2);
    bench.coordinator.look_for_jobs(true);
}

/// A manager for two jobs at once, two of whose requests are at the server, which has not looked for a job yet.
async fn two_in_flight(bench: &Bench) -> (Running, Settings) {
    let settings = bench.settings(|runner| {
        runner.request_concurrency = 2;
        runner.feature_flags.insert("FF_USE_ADAPTIVE_REQUEST_CONCURRENCY".to_owned(), false);
    });
    bench.coordinator.look_for_jobs(false);
    let manager = bench.manager_of(settings.clone()).await;
    bench.coordinator.wait_for_looking(2).await;
    (manager, settings)
}

/// So much time passes for the manager.
async fn pass(manager: &Running, time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    manager.looked_around().await;
    tokio::time::resume();
}

async fn started(bench: &Bench, id: i64) {
    bench.agent.wait_for(|spool| spool.started.contains(&format!("{id}-1"))).await;
}

/// Each of the jobs is started, and ends as its agent says, having been handed out once.
async fn finish(bench: &Bench, ids: impl IntoIterator<Item = i64>) {
    for id in ids {
        started(bench, id).await;
        bench.agent.finish(&format!("{id}-1"), Outcome::Success);
        let job = bench.coordinator.wait_for_end(JobId(id)).await;
        assert_eq!((job.status, job.assignments), (JobStatus::Success, 1), "{}", job.text());
    }
}

#[tokio::test]
async fn jobs_are_run_whose_requests_were_in_flight_when_the_capacity_fell() {
    let bench = Bench::at_gitlab().await;
    let (manager, _) = two_in_flight(&bench).await;
    bench.capacity.send_replace(Capacity::of(0));
    manager.looked_around().await;
    assign_two(&bench);
    finish(&bench, 1..=2).await;
    assert!(manager.control.figures().await.unwrap().runners[0].requests == 0, "no more is asked for");
}

#[tokio::test]
async fn a_job_beyond_a_concurrent_that_fell_waits_for_its_slot() {
    let bench = Bench::at_gitlab().await;
    let (manager, settings) = two_in_flight(&bench).await;
    manager.control.give(Order::Reload(Box::new(Settings { concurrent: 1, ..settings }))).await;
    manager.looked_around().await;
    assign_two(&bench);
    manager.wait_for(|figures| figures.jobs == 2).await;
    // Both are the manager's, and the server hears of the one that waits, so that it does not take it for stuck.
    for id in 1..=2 {
        bench.coordinator.wait_for(JobId(id), |job| !job.updates.is_empty()).await;
    }
    bench.agent.wait_for(|spool| spool.started.len() == 1).await;
    manager.wait_for(|figures| figures.waiting == 1).await;
    let first = bench.agent.spool().started[0].trim_end_matches("-1").parse().unwrap();
    assert_eq!(bench.slots_given().len(), 1, "the other one has no slot");
    finish(&bench, [first, 3 - first]).await;
    assert_eq!(bench.slots_given(), [0, 0]);
}

#[tokio::test]
async fn a_job_beyond_a_limit_that_fell_waits_for_its_slot() {
    let bench = Bench::at_gitlab().await;
    let (manager, settings) = two_in_flight(&bench).await;
    let runner = RunnerSettings { limit: Some(1), ..(*settings.runners[0]).clone() };
    let settings = Settings { runners: vec![Arc::new(runner)], ..settings };
    manager.control.give(Order::Reload(Box::new(settings))).await;
    manager.looked_around().await;
    assign_two(&bench);
    manager.wait_for(|figures| figures.jobs == 2 && figures.waiting == 1).await;
    bench.agent.wait_for(|spool| spool.started.len() == 1).await;
    let first = bench.agent.spool().started[0].trim_end_matches("-1").parse().unwrap();
    finish(&bench, [first, 3 - first]).await;
    assert_eq!(bench.slots_given(), [0, 0]);
}

#[tokio::test]
async fn jobs_that_were_asked_for_with_settings_of_before_a_reload_are_run() {
    let changes: [fn(&mut RunnerSettings); 2] = [
        |runner| runner.output_limit += 1,
        // As by a rotation: the job's own token is what reports it.
        |runner| runner.token = Secret::new("glrt-another"),
    ];
    for change in changes {
        let bench = Bench::at_gitlab().await;
        let (manager, settings) = two_in_flight(&bench).await;
        let mut runner = (*settings.runners[0]).clone();
        change(&mut runner);
        let settings = Settings { runners: vec![Arc::new(runner)], refusal_is_fatal: false, ..settings };
        manager.control.give(Order::Reload(Box::new(settings))).await;
        manager.looked_around().await;
        push(&bench, 1);
        push(&bench, 2);
        bench.coordinator.look_for_jobs(true);
        finish(&bench, 1..=2).await;
        drop(manager);
    }
}

#[tokio::test]
async fn jobs_of_a_runner_that_left_the_file_while_they_were_asked_for_are_run() {
    let bench = Bench::at_gitlab().await;
    let (manager, settings) = two_in_flight(&bench).await;
    manager.control.give(Order::Reload(Box::new(Settings { runners: Vec::new(), ..settings }))).await;
    manager.looked_around().await;
    assign_two(&bench);
    finish(&bench, 1..=2).await;
}

#[tokio::test]
async fn jobs_that_come_during_a_drain_are_run() {
    let bench = Bench::at_gitlab().await;
    let (manager, _) = two_in_flight(&bench).await;
    manager.drain().await;
    manager.looked_around().await;
    assign_two(&bench);
    finish(&bench, 1..=2).await;
    manager.ended().await.unwrap();
    bench.check_forgotten().await;
}

#[tokio::test]
async fn jobs_that_come_during_a_forced_stop_are_reported_with_a_reason_that_can_be_retried() {
    let bench = Bench::at_gitlab().await;
    let (manager, _) = two_in_flight(&bench).await;
    manager.control.give(Order::Abort).await;
    manager.looked_around().await;
    assign_two(&bench);
    for id in 1..=2 {
        let job = bench.coordinator.wait_for_end(JobId(id)).await;
        let report = job.reports().last().unwrap();
        assert_eq!(report.failure_reason.as_deref(), Some("runner_system_failure"));
        assert!(job.text().contains("the manager was stopped before the job began"), "{}", job.text());
    }
    manager.ended().await.unwrap();
    assert!(bench.agent.spool().started.is_empty(), "nothing of them was started");
    bench.check_forgotten().await;
}

#[tokio::test]
async fn jobs_that_come_while_the_manager_leaves_are_stored_for_the_next_start() {
    let bench = Bench::at_gitlab().await;
    let (manager, settings) = two_in_flight(&bench).await;
    manager.control.give(Order::Leave).await;
    manager.looked_around().await;
    assign_two(&bench);
    manager.ended().await.unwrap();
    let _next = bench.manager_of(settings).await;
    finish(&bench, 1..=2).await;
}

/// GitLab's front end holds such a request, and looks for no job.
#[tokio::test]
async fn a_request_that_was_held_for_long_does_not_delay_the_end() {
    for order in [Order::Drain, Order::Abort, Order::Leave] {
        let bench = Bench::at_gitlab().await;
        let manager = bench.manager().await;
        // The first answer tells the queue's version, and the next request is held.
        bench.coordinator.wait_for_requests(2).await;
        tokio::time::pause();
        manager.control.give(order).await;
        tokio::time::advance(Duration::from_secs(9)).await;
        manager.looked_around().await;
        tokio::time::advance(Duration::from_secs(1)).await;
        tokio::time::resume();
        manager.ended_within(Duration::from_secs(5)).await.unwrap();
    }
}

/// It knows no version of the queue, so that the front end passes it on at once (runner-api 2.3).
#[tokio::test]
async fn a_first_request_is_waited_for_as_long_as_gitlab_works_on_it() {
    let bench = Bench::at_gitlab().await;
    let (manager, _) = two_in_flight(&bench).await;
    manager.drain().await;
    pass(&manager, Duration::from_secs(59)).await;
    assign_two(&bench);
    finish(&bench, 1..=2).await;
    manager.ended().await.unwrap();
}

#[tokio::test]
async fn a_first_request_that_gitlab_has_given_up_does_not_delay_the_end() {
    let bench = Bench::at_gitlab().await;
    let (manager, _) = two_in_flight(&bench).await;
    tokio::time::pause();
    manager.drain().await;
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    manager.ended_within(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn a_job_that_is_canceled_while_it_waits_for_its_slot_is_not_counted_as_waiting() {
    let bench = Bench::at_gitlab().await;
    let (manager, settings) = two_in_flight(&bench).await;
    manager.control.give(Order::Reload(Box::new(Settings { concurrent: 1, ..settings }))).await;
    manager.looked_around().await;
    assign_two(&bench);
    manager.wait_for(|figures| figures.jobs == 2 && figures.waiting == 1).await;
    bench.agent.wait_for(|spool| spool.started.len() == 1).await;
    let first: i64 = bench.agent.spool().started[0].trim_end_matches("-1").parse().unwrap();
    let waiting = JobId(3 - first);
    manager.wait_for(|_| manager.metric("muster_waiting_jobs") == 1.0).await;
    // Its trace, which comes before its end, is not taken for a while.
    bench.coordinator.fail(Call::AppendTrace, [Fault::FailBefore; 1000]);
    bench.coordinator.set_status(waiting, JobStatus::Canceling);
    manager.wait_for(|_| manager.metric("muster_waiting_jobs") == 0.0).await;
    assert_eq!(bench.coordinator.job(waiting).unwrap().status, JobStatus::Canceling, "its end is not reported");
    bench.coordinator.clear_faults();
    assert_eq!(bench.coordinator.wait_for_end(waiting).await.status, JobStatus::Canceled);
    finish(&bench, [first]).await;
}
