//! Tests of `muster fleet cordon`, `drain`, `uncordon` and `delete` with a running manager.

use std::process::Command;

use muster_job::{JobId, JobStatus};
use muster_tests::bench::Bench;
use muster_tests::process::{muster, wait_until};
use serde_json::json;

/// Script that records its start and waits until the file `go` exists.
const WAITING_SCRIPT: &str =
    "echo $$ >> \"$MARKS/started-$CI_JOB_ID\"; until test -e \"$MARKS/go\"; do sleep 0.02; done; echo continued";

/// Runs `muster fleet` with the state directory of the manager. Returns its exit status and its output.
fn fleet(bench: &Bench, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(muster());
    command.arg("fleet").args(arguments).arg("--state-dir").arg(bench.path("state")).env("USER", "ann");
    let output = command.env_remove("SUDO_USER").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Runs `muster fleet`, which must succeed. Returns its output.
fn fleet_ok(bench: &Bench, arguments: &[&str]) -> String {
    let (code, text) = fleet(bench, arguments);
    assert_eq!(code, Some(0), "{text}\n{}", bench.log());
    text
}

/// Queues a job that waits for the file `go`, and waits until it has started.
async fn start_job(bench: &Bench, job: i64) {
    bench.push(job, &[WAITING_SCRIPT], &json!({}));
    assert!(wait_until(|| bench.start_count(JobId(job)) == 1).await, "job {job} did not start:\n{}", bench.log());
}

/// Waits until the job has succeeded. Returns its trace.
async fn wait_for_success(bench: &Bench, job: i64) -> String {
    let job = bench.coordinator.wait_for_end(JobId(job)).await;
    assert_eq!(job.status, JobStatus::Success, "{}\n{}", job.text(), bench.log());
    job.text()
}

/// Waits until the instance is deleted.
async fn wait_until_deleted(bench: &Bench, machine: &str) {
    let is_deleted = wait_until(|| !bench.machines.names().iter().any(|name| name == machine)).await;
    assert!(is_deleted, "{machine} was not deleted:\n{}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn cordoned_instance_gets_no_jobs_and_survives_restart_until_drained() {
    let keys = "max_instances = 3\n    capacity_per_instance = 2\n    delete_instances_on_shutdown = true\n    \
                [[runners.autoscaler.policy]]\n      idle_time = \"1s\"";
    let mut bench = Bench::with_instances(2, keys, "").await;
    start_job(&bench, 1).await;
    let machine = bench.machines.names().remove(0);
    let output = fleet_ok(&bench, &["cordon", &machine, "--reason", "disk errors"]);
    assert!(output.contains("cordoned; its running job continues"), "{output}");
    start_job(&bench, 2).await;
    bench.kill_manager();
    let (code, output) = fleet(&bench, &["uncordon", &machine]);
    assert!(code == Some(2) && output.contains("no manager with instances is running on"), "{code:?} {output}");
    bench.start_manager();
    std::fs::write(bench.path("go"), "").unwrap();
    assert!(wait_for_success(&bench, 1).await.contains(&format!("Instance {machine} connected")));
    for job in 2..=3 {
        if job == 3 {
            bench.push(3, &["echo third"], &json!({}));
        }
        let text = wait_for_success(&bench, job).await;
        assert!(!text.contains(&format!("Instance {machine} connected")), "{text}");
    }
    let explanation = fleet_ok(&bench, &["explain", "instance", &machine]);
    assert!(explanation.contains("cordon by operator ann (user "), "{explanation}");
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
    assert_eq!(bench.machines.names(), [machine.as_str()], "shutdown deletes all other instances: {}", bench.log());
    bench.start_manager();
    let mut result = (None, String::new());
    let drained = wait_until(|| {
        // The manager accepts operator commands only after its start.
        result = fleet(&bench, &["drain", &machine, "--reason", "replaced disk"]);
        result.0 == Some(0)
    });
    assert!(drained.await, "{result:?}\n{}", bench.log());
    wait_until_deleted(&bench, &machine).await;
    let explanation = fleet_ok(&bench, &["explain", "instance", &machine]);
    for expected in ["cordon by operator ann", ": disk errors", "drain by operator ann", ": replaced disk"] {
        assert!(explanation.contains(expected), "{expected}: {explanation}");
    }
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_deletion_fails_the_job_and_names_the_operator() {
    let mut bench = Bench::with_instances(1, "max_instances = 1\n    delete_instances_on_shutdown = true", "").await;
    start_job(&bench, 1).await;
    let machine = bench.machines.names().remove(0);
    let output = fleet_ok(&bench, &["delete", "--force", &machine, "--reason", "crypto miner"]);
    assert!(output.contains("deleting; its running job is lost"), "{output}");
    let job = bench.coordinator.wait_for_end(JobId(1)).await;
    let (text, last) = (job.text(), job.reports().last().unwrap());
    assert_eq!(last.failure_reason.as_deref(), Some("runner_system_failure"), "{text}");
    assert_eq!(text.matches("instance deleted by operator ann").count(), 1, "{text}\n{}", bench.log());
    wait_until_deleted(&bench, &machine).await;
    let (code, output) = fleet(&bench, &["delete", "unknown"]);
    assert!(code == Some(1) && output.contains("no runner has an instance or a group `unknown`"), "{code:?} {output}");
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn drained_group_requests_no_jobs_until_uncordoned() {
    let keys = "max_instances = 2\n    delete_instances_on_shutdown = true\n    \
                [[runners.autoscaler.policy]]\n      idle_count = 1\n      idle_time = \"1h\"";
    let mut bench = Bench::with_instances(1, keys, "").await;
    start_job(&bench, 1).await;
    let output = fleet_ok(&bench, &["drain", "ours"]);
    assert!(output.starts_with("group ours of runner ours: draining; "), "{output}");
    std::fs::write(bench.path("go"), "").unwrap();
    wait_for_success(&bench, 1).await;
    let is_empty = wait_until(|| bench.machines.names().is_empty()).await;
    assert!(is_empty, "the idle instance was not deleted:\n{}", bench.log());
    bench.push(2, &["echo second"], &json!({}));
    let status = fleet_ok(&bench, &["explain", "group", "ours"]);
    assert!(status.contains("drained by operator ann"), "{status}");
    fleet_ok(&bench, &["uncordon", "ours"]);
    wait_for_success(&bench, 2).await;
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
    assert_eq!(bench.machines.names(), [""; 0], "{}", bench.log());
}
