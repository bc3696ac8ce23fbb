//! Tests that logs and reports wait on disk until they can be sent, also across a restart.

use muster_job::JobId;
use muster_runner_api::test_support::{self, Call};
use muster_tests::bench::Bench;
use muster_tests::proxy::Fault;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;

use crate::life::{self, Lines};

/// 30 failed log uploads and 10 failed reports with 40 jobs.
#[tokio::test(flavor = "multi_thread")]
async fn forty_jobs_of_forty_are_whole_after_thirty_failed_uploads_and_ten_failed_reports() {
    use test_support::Fault::{FailAfter, FailBefore};
    let bench = Bench::start(8).await;
    let mut rng = StdRng::seed_from_u64(1);
    bench.coordinator.fail(Call::AppendTrace, [FailBefore, FailAfter, FailBefore].repeat(10));
    bench.coordinator.fail(Call::UpdateJob, [FailBefore, FailAfter].repeat(5));
    let jobs: Vec<_> = (1..=40).map(|id| (JobId(id), Lines::any(&mut rng))).collect();
    for (id, lines) in &jobs {
        bench.push(id.0, &[&lines.script()], &json!({}));
    }
    for (id, lines) in &jobs {
        let job = bench.coordinator.wait_for_end(*id).await;
        life::check_success(&bench, *id, &job, *lines);
    }
    life::check_world(&bench, 8, jobs.iter().map(|(id, _)| *id)).await;
}

/// The coordinator is unreachable while jobs end, and the manager and the agent are killed, as when the machine crashes.
#[tokio::test(flavor = "multi_thread")]
async fn logs_and_reports_wait_on_disk_for_a_coordinator_that_is_away() {
    let mut bench = Bench::start(4).await;
    let mut rng = StdRng::seed_from_u64(2);
    let jobs: Vec<_> = (1..=4).map(|id| (JobId(id), Lines::any(&mut rng))).collect();
    let gate = "touch \"$MARKS/ready-$CI_JOB_ID\"; until [ -e \"$MARKS/gate\" ]; do sleep 0.01; done";
    for (id, lines) in &jobs {
        bench.push(id.0, &[gate, &lines.script()], &json!({}));
    }
    let ready: Vec<_> = jobs.iter().map(|(id, _)| bench.path(&format!("ready-{id}"))).collect();
    until(&bench, || ready.iter().all(|file| file.exists())).await;
    bench.proxy.decide(Box::new(|_| Some(Fault::DropBefore)));
    std::fs::write(bench.path("gate"), "").unwrap();
    // Each job has ended when its result is in the spool.
    until(&bench, || bench.results() == jobs.len()).await;
    bench.kill_manager();
    assert!(bench.kill_agent());
    bench.start_manager();
    bench.proxy.decide(Box::new(|_| None));
    for (id, lines) in &jobs {
        let job = bench.coordinator.wait_for_end(*id).await;
        life::check_success(&bench, *id, &job, *lines);
    }
    life::check_world(&bench, 4, jobs.iter().map(|(id, _)| *id)).await;
}

/// Waits until the condition holds.
async fn until(bench: &Bench, reached: impl Fn() -> bool) {
    assert!(muster_tests::process::until(reached).await, "waited in vain:\n{}", bench.log());
}
