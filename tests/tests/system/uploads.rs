//! Logs and reports are stored on disk until the coordinator accepts them, even if processes are restarted.

use muster_job::JobId;
use muster_runner_api::test_support::{self, Call};
use muster_tests::harness::Harness;
use muster_tests::proxy::Fault;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;

use crate::checks::{self, Lines};

/// Runs 40 jobs with 30 failed log uploads and 10 failed reports.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_complete_after_failed_log_uploads_and_reports() {
    use test_support::Fault::{FailAfter, FailBefore};
    let harness = Harness::start(8).await;
    let mut rng = StdRng::seed_from_u64(1);
    harness.coordinator.fail(Call::AppendTrace, [FailBefore, FailAfter, FailBefore].repeat(10));
    harness.coordinator.fail(Call::UpdateJob, [FailBefore, FailAfter].repeat(5));
    let jobs: Vec<_> = (1..=40).map(|id| (JobId(id), Lines::random(&mut rng))).collect();
    for (id, lines) in &jobs {
        harness.push(id.0, &[&lines.script()], &json!({}));
    }
    for (id, lines) in &jobs {
        let job = harness.coordinator.wait_for_end(*id).await;
        checks::check_success(&harness, *id, &job, *lines);
    }
    checks::check_all_jobs(&harness, 8, jobs.iter().map(|(id, _)| *id)).await;
}

/// The coordinator is unreachable when the jobs end. Then the manager and the agent are killed, as in a crash of the
/// machine.
#[tokio::test(flavor = "multi_thread")]
async fn logs_and_reports_are_stored_until_coordinator_returns() {
    let mut harness = Harness::start(4).await;
    let mut rng = StdRng::seed_from_u64(2);
    let jobs: Vec<_> = (1..=4).map(|id| (JobId(id), Lines::random(&mut rng))).collect();
    let wait_for_gate = "touch \"$MARKS/ready-$CI_JOB_ID\"; until [ -e \"$MARKS/gate\" ]; do sleep 0.01; done";
    for (id, lines) in &jobs {
        harness.push(id.0, &[wait_for_gate, &lines.script()], &json!({}));
    }
    let ready: Vec<_> = jobs.iter().map(|(id, _)| harness.path(&format!("ready-{id}"))).collect();
    wait_until(&harness, || ready.iter().all(|file| file.exists())).await;
    harness.proxy.select_faults(Box::new(|_| Some(Fault::DropBefore)));
    std::fs::write(harness.path("gate"), "").unwrap();
    // A job has ended when its result is in the spool.
    wait_until(&harness, || harness.stored_result_count() == jobs.len()).await;
    harness.kill_manager();
    assert!(harness.kill_agent());
    harness.start_manager();
    harness.proxy.select_faults(Box::new(|_| None));
    for (id, lines) in &jobs {
        let job = harness.coordinator.wait_for_end(*id).await;
        checks::check_success(&harness, *id, &job, *lines);
    }
    checks::check_all_jobs(&harness, 4, jobs.iter().map(|(id, _)| *id)).await;
}

async fn wait_until(harness: &Harness, condition: impl Fn() -> bool) {
    assert!(
        muster_tests::process::wait_until(condition).await,
        "the condition was not reached in time:\n{}",
        harness.log()
    );
}
