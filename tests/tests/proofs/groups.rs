//! Tests of several groups of instances that replace each other.

use std::process::Command;

use muster_job::{JobId, JobStatus};
use muster_tests::bench::Bench;
use muster_tests::machines::Machines;
use muster_tests::process::{muster, until};
use serde_json::json;

const WAITS: &str =
    "echo $$ >> \"$MARKS/started-$CI_JOB_ID\"; until test -e \"$MARKS/go\"; do sleep 0.02; done; echo went on";

fn machines(bench: &Bench, group: &str) -> usize {
    Machines::new(bench.path("machines").join(group)).names().len()
}

/// Returns the explanation of the fleet's state, from the ledger of the manager.
fn explained(bench: &Bench, group: &str) -> String {
    let mut explain = Command::new(muster());
    explain.args(["fleet", "explain", "group", group, "--state-dir"]).arg(bench.path("state"));
    String::from_utf8(explain.output().unwrap().stdout).unwrap()
}

async fn all_start(bench: &Bench, jobs: std::ops::RangeInclusive<i64>) {
    for job in jobs.clone() {
        bench.push(job, &[WAITS], &json!({}));
    }
    let start = until(|| jobs.clone().all(|job| bench.starts(JobId(job)) == 1)).await;
    assert!(start, "not all jobs start: {}", bench.log());
}

async fn all_succeed(bench: &mut Bench, jobs: std::ops::RangeInclusive<i64>) {
    std::fs::write(bench.path("go"), "").unwrap();
    for job in jobs {
        let job = bench.coordinator.wait_for_end(JobId(job)).await;
        assert_eq!(job.status, JobStatus::Success, "{}\n{}", job.text(), bench.log());
    }
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cheapest_group_is_asked_first_and_the_next_one_when_it_is_out_of_stock() {
    let autoscaler = "group_selection = \"price\"\n    delete_instances_on_shutdown = true";
    let dear = ("dear", "max_instances = 5\n      price_per_hour = 0.3", "");
    // The provider has capacity for one instance; `max_instances` permits more requests.
    let cheap = ("cheap", "max_instances = 5\n      price_per_hour = 0.1", "capacity = 1");
    let mut bench = Bench::with_groups(3, autoscaler, &[dear, cheap]).await;
    all_start(&bench, 1..=3).await;
    assert_eq!((machines(&bench, "cheap"), machines(&bench, "dear")), (1, 2), "{}", bench.log());
    let why = explained(&bench, "dear");
    assert!(why.contains("skipped group cheap: "), "{why}\n{}", bench.log());
    all_succeed(&mut bench, 1..=3).await;
    assert_eq!((machines(&bench, "cheap"), machines(&bench, "dear")), (0, 0), "{}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_whose_plugin_does_not_start_is_stood_in_for() {
    let broken = ("broken", "max_instances = 5", "isolation = \"of some kind\"");
    let mut bench =
        Bench::with_groups(2, "delete_instances_on_shutdown = true", &[broken, ("works", "max_instances = 5", "")])
            .await;
    all_start(&bench, 1..=2).await;
    assert_eq!(machines(&bench, "works"), 2, "{}", bench.log());
    let why = explained(&bench, "works");
    assert!(why.contains("skipped group broken: ") && why.contains("of some kind"), "{why}\n{}", bench.log());
    all_succeed(&mut bench, 1..=2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_mended_while_the_manager_works_joins_the_others() {
    let broken = ("broken", "max_instances = 5", "isolation = \"of some kind\"");
    let mut bench =
        Bench::with_groups(2, "delete_instances_on_shutdown = true", &[broken, ("works", "max_instances = 1", "")])
            .await;
    bench.push(1, &[WAITS], &json!({}));
    bench.push(2, &[WAITS], &json!({}));
    let started = |bench: &Bench| bench.starts(JobId(1)) + bench.starts(JobId(2));
    assert!(until(|| started(&bench) == 1).await, "none starts: {}", bench.log());
    assert_eq!((machines(&bench, "broken"), machines(&bench, "works")), (0, 1), "{}", bench.log());
    bench.edit("of some kind", "namespaces");
    assert!(until(|| started(&bench) == 2).await, "the other does not start: {}", bench.log());
    assert_eq!((machines(&bench, "broken"), machines(&bench, "works")), (1, 1), "{}", bench.log());
    all_succeed(&mut bench, 1..=2).await;
}
