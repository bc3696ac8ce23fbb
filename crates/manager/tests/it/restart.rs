//! A manager that is killed in each state of a job, and its next start.

use muster_agent_api::result::Outcome;
use muster_job::JobStatus;
use muster_runner_api::test_support::{Call, Fault};
use serde_json::json;

use crate::bench::{Bench, JOB, RUN};

/// Asserts that the log arrived completely, that the script was started once, and that the agent has closed the job.
async fn check_success(bench: &Bench, log: &str) {
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, job.text().as_str(), job.assignments), (JobStatus::Success, log, 1));
    let output = &job.updates.last().unwrap().output;
    assert_eq!(output.checksum, Some(format!("crc32:{:08x}", crc32fast::hash(log.as_bytes()))));
    let spool = bench.agent.wait_for(|spool| spool.jobs.is_empty()).await;
    assert_eq!(spool.started, [RUN]);
}

#[tokio::test]
async fn killed_before_answer_gets_same_job_again() {
    let bench = Bench::start().await;
    bench.coordinator.fail(Call::RequestJob, [Fault::FailAfter]);
    bench.push(&json!({}));
    let manager = bench.manager().await;
    bench.coordinator.wait_for(JOB, |job| job.assignments == 1).await;
    manager.kill().await;
    let _manager = bench.manager().await;
    bench.agent.wait_for(|spool| !spool.started.is_empty()).await;
    bench.agent.write(RUN, "log\n");
    bench.agent.finish(RUN, Outcome::Success);
    check_success(&bench, "log\n").await;
}

#[tokio::test]
async fn killed_after_dispatch_attaches_to_running_job() {
    let bench = Bench::start().await;
    bench.push(&json!({}));
    bench.agent.change(|spool| spool.lose_next_answer = true);
    let manager = bench.manager().await;
    bench.agent.wait_for(|spool| !spool.started.is_empty()).await;
    manager.kill().await;
    bench.agent.write(RUN, "log\n");
    let _manager = bench.manager().await;
    bench.wait_for_trace("log").await;
    bench.agent.finish(RUN, Outcome::Success);
    check_success(&bench, "log\n").await;
}

#[tokio::test]
async fn killed_while_agent_is_away_dispatches_later() {
    let bench = Bench::start().await;
    bench.agent.kill();
    bench.push(&json!({}));
    let manager = bench.manager().await;
    bench.coordinator.wait_for(JOB, |job| job.assignments == 1).await;
    manager.kill().await;
    let _manager = bench.manager().await;
    bench.agent.restart();
    bench.agent.wait_for(|spool| !spool.started.is_empty()).await;
    bench.agent.write(RUN, "log\n");
    bench.agent.finish(RUN, Outcome::Success);
    check_success(&bench, "log\n").await;
}

#[tokio::test]
async fn killed_while_streaming_continues_at_acknowledged_byte() {
    let bench = Bench::start().await;
    bench.push(&json!({}));
    let mut log = String::new();
    let mut manager = bench.manager().await;
    bench.agent.wait_for(|spool| !spool.started.is_empty()).await;
    for number in 0..10 {
        let line = format!("line {number}\n");
        bench.agent.write(RUN, &line);
        log.push_str(&line);
        // Every second time, the manager is killed while bytes are in transit.
        if number % 2 == 0 {
            bench.wait_for_trace(&line).await;
        }
        manager.kill().await;
        manager = bench.manager().await;
    }
    bench.agent.finish(RUN, Outcome::Success);
    check_success(&bench, &log).await;
}

#[tokio::test]
async fn killed_before_acknowledgement_reports_again() {
    let bench = Bench::start().await;
    bench.push(&json!({}));
    let manager = bench.manager().await;
    bench.agent.wait_for(|spool| !spool.started.is_empty()).await;
    bench.agent.write(RUN, "log\n");
    bench.wait_for_trace("log").await;
    bench.coordinator.fail(Call::UpdateJob, [Fault::FailBefore, Fault::FailBefore, Fault::FailBefore]);
    bench.agent.finish(RUN, Outcome::Success);
    manager.kill().await;
    let _manager = bench.manager().await;
    check_success(&bench, "log\n").await;
}

#[tokio::test]
async fn killed_after_acknowledgement_only_cleans_up() {
    let bench = Bench::start().await;
    bench.push(&json!({}));
    let manager = bench.manager().await;
    bench.agent.wait_for(|spool| !spool.started.is_empty()).await;
    // The answer to the final update is lost, and the manager is killed.
    bench.coordinator.fail(Call::UpdateJob, [Fault::FailAfter]);
    bench.agent.write(RUN, "log\n");
    bench.agent.finish(RUN, Outcome::Success);
    bench.coordinator.wait_for_end(JOB).await;
    manager.kill().await;
    let manager = bench.manager().await;
    check_success(&bench, "log\n").await;
    manager.drain().await;
    manager.ended().await.unwrap();
    bench.assert_no_jobs_stored().await;
}
