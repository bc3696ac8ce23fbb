//! Several instance groups: if one group cannot create instances, the next group does.

use std::process::Command;

use muster_job::{JobId, JobStatus};
use muster_tests::harness::Harness;
use muster_tests::machines::Machines;
use muster_tests::process::{muster, wait_until};
use serde_json::json;

/// Records its start, and waits until the file `go` exists.
const WAITING_SCRIPT: &str =
    "echo $$ >> \"$MARKS/started-$CI_JOB_ID\"; until test -e \"$MARKS/go\"; do sleep 0.02; done; echo continued";

fn instance_count(harness: &Harness, group: &str) -> usize {
    Machines::new(harness.path("machines").join(group)).names().len()
}

/// Returns the output of `muster fleet explain group`, which reads the ledger of the manager.
fn explain_group(harness: &Harness, group: &str) -> String {
    let mut command = Command::new(muster());
    command.args(["fleet", "explain", "group", group, "--state-dir"]).arg(harness.path("state"));
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

/// Queues jobs that wait for the file `go`, and waits until all have started.
async fn start_jobs(harness: &Harness, jobs: std::ops::RangeInclusive<i64>) {
    for job in jobs.clone() {
        harness.push(job, &[WAITING_SCRIPT], &json!({}));
    }
    let all_started = wait_until(|| jobs.clone().all(|job| harness.start_count(JobId(job)) == 1)).await;
    assert!(all_started, "not all jobs started:\n{}", harness.log());
}

async fn finish_jobs(harness: &mut Harness, jobs: std::ops::RangeInclusive<i64>) {
    std::fs::write(harness.path("go"), "").unwrap();
    for job in jobs {
        let job = harness.coordinator.wait_for_end(JobId(job)).await;
        assert_eq!(job.status, JobStatus::Success, "{}\n{}", job.text(), harness.log());
    }
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn cheapest_group_is_used_until_it_is_out_of_stock() {
    let autoscaler = "group_selection = \"price\"\n    delete_instances_on_shutdown = true";
    let expensive = ("expensive", "max_instances = 5\n      price_per_hour = 0.3", "");
    // The provider has capacity for one instance, but `max_instances` permits more requests.
    let cheap = ("cheap", "max_instances = 5\n      price_per_hour = 0.1", "capacity = 1");
    let mut harness = Harness::with_groups(3, autoscaler, &[expensive, cheap]).await;
    start_jobs(&harness, 1..=3).await;
    assert_eq!((instance_count(&harness, "cheap"), instance_count(&harness, "expensive")), (1, 2), "{}", harness.log());
    let explanation = explain_group(&harness, "expensive");
    assert!(explanation.contains("skipped group cheap: "), "{explanation}\n{}", harness.log());
    finish_jobs(&mut harness, 1..=3).await;
    assert_eq!((instance_count(&harness, "cheap"), instance_count(&harness, "expensive")), (0, 0), "{}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn next_group_is_used_when_plugin_of_the_first_does_not_start() {
    let broken = ("broken", "max_instances = 5", "isolation = \"invalid-value\"");
    let mut harness =
        Harness::with_groups(2, "delete_instances_on_shutdown = true", &[broken, ("works", "max_instances = 5", "")])
            .await;
    start_jobs(&harness, 1..=2).await;
    assert_eq!(instance_count(&harness, "works"), 2, "{}", harness.log());
    let explanation = explain_group(&harness, "works");
    assert!(
        explanation.contains("skipped group broken: ") && explanation.contains("isolation: expected one of"),
        "{explanation}\n{}",
        harness.log()
    );
    finish_jobs(&mut harness, 1..=2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repaired_group_is_used_without_a_restart() {
    let broken = ("broken", "max_instances = 5", "isolation = \"invalid-value\"");
    let mut harness =
        Harness::with_groups(2, "delete_instances_on_shutdown = true", &[broken, ("works", "max_instances = 1", "")])
            .await;
    harness.push(1, &[WAITING_SCRIPT], &json!({}));
    harness.push(2, &[WAITING_SCRIPT], &json!({}));
    let started = |harness: &Harness| harness.start_count(JobId(1)) + harness.start_count(JobId(2));
    assert!(wait_until(|| started(&harness) == 1).await, "no job started:\n{}", harness.log());
    assert_eq!((instance_count(&harness, "broken"), instance_count(&harness, "works")), (0, 1), "{}", harness.log());
    harness.replace_in_config("invalid-value", "namespaces");
    assert!(wait_until(|| started(&harness) == 2).await, "the second job did not start:\n{}", harness.log());
    assert_eq!((instance_count(&harness, "broken"), instance_count(&harness, "works")), (1, 1), "{}", harness.log());
    finish_jobs(&mut harness, 1..=2).await;
}
