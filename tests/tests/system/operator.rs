//! `muster fleet cordon`, `drain`, `uncordon` and `delete` with a running manager.

use std::process::Command;

use muster_job::{JobId, JobStatus};
use muster_tests::harness::Harness;
use muster_tests::process::{muster, wait_until};
use serde_json::json;

/// Records its start, and waits until the file `go` exists.
const WAITING_SCRIPT: &str =
    "echo $$ >> \"$MARKS/started-$CI_JOB_ID\"; until test -e \"$MARKS/go\"; do sleep 0.02; done; echo continued";

/// Returns the exit status and the output of `muster fleet`.
fn run_fleet(harness: &Harness, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(muster());
    command.arg("fleet").args(arguments).arg("--state-dir").arg(harness.path("state")).env("USER", "ann");
    let output = command.env_remove("SUDO_USER").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn run_fleet_successfully(harness: &Harness, arguments: &[&str]) -> String {
    let (code, text) = run_fleet(harness, arguments);
    assert_eq!(code, Some(0), "{text}\n{}", harness.log());
    text
}

async fn start_job(harness: &Harness, job: i64) {
    harness.push(job, &[WAITING_SCRIPT], &json!({}));
    assert!(wait_until(|| harness.start_count(JobId(job)) == 1).await, "job {job} did not start:\n{}", harness.log());
}

/// Waits until the job has succeeded. Returns its trace.
async fn wait_for_success(harness: &Harness, job: i64) -> String {
    let job = harness.coordinator.wait_for_end(JobId(job)).await;
    assert_eq!(job.status, JobStatus::Success, "{}\n{}", job.text(), harness.log());
    job.text()
}

async fn wait_until_deleted(harness: &Harness, machine: &str) {
    let is_deleted = wait_until(|| !harness.machines.names().iter().any(|name| name == machine)).await;
    assert!(is_deleted, "{machine} was not deleted:\n{}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn cordoned_instance_gets_no_jobs_and_survives_restart_until_drained() {
    let keys = "max_instances = 3\n    capacity_per_instance = 2\n    delete_instances_on_shutdown = true\n    \
                [[runners.autoscaler.policy]]\n      idle_time = \"1s\"";
    let mut harness = Harness::with_instances(2, keys, "").await;
    start_job(&harness, 1).await;
    let machine = harness.machines.names().remove(0);
    let output = run_fleet_successfully(&harness, &["cordon", &machine, "--reason", "disk errors"]);
    assert!(output.contains("cordoned; its running job continues"), "{output}");
    start_job(&harness, 2).await;
    harness.kill_manager();
    let (code, output) = run_fleet(&harness, &["uncordon", &machine]);
    assert!(code == Some(2) && output.contains("no running manager with instances uses"), "{code:?} {output}");
    harness.start_manager();
    std::fs::write(harness.path("go"), "").unwrap();
    assert!(wait_for_success(&harness, 1).await.contains(&format!("Instance {machine} connected")));
    for job in 2..=3 {
        if job == 3 {
            harness.push(3, &["echo third"], &json!({}));
        }
        let text = wait_for_success(&harness, job).await;
        assert!(!text.contains(&format!("Instance {machine} connected")), "{text}");
    }
    let explanation = run_fleet_successfully(&harness, &["explain", "instance", &machine]);
    assert!(explanation.contains("cordon by operator ann (user "), "{explanation}");
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
    assert_eq!(harness.machines.names(), [machine.as_str()], "shutdown deletes all other instances: {}", harness.log());
    harness.start_manager();
    let mut result = (None, String::new());
    let drained = wait_until(|| {
        // The manager accepts operator commands only after its start.
        result = run_fleet(&harness, &["drain", &machine, "--reason", "replaced disk"]);
        result.0 == Some(0)
    });
    assert!(drained.await, "{result:?}\n{}", harness.log());
    wait_until_deleted(&harness, &machine).await;
    let explanation = run_fleet_successfully(&harness, &["explain", "instance", &machine]);
    for expected in ["cordon by operator ann", ": disk errors", "drain by operator ann", ": replaced disk"] {
        assert!(explanation.contains(expected), "{expected}: {explanation}");
    }
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_deletion_fails_the_job_and_names_the_operator() {
    let mut harness =
        Harness::with_instances(1, "max_instances = 1\n    delete_instances_on_shutdown = true", "").await;
    start_job(&harness, 1).await;
    let machine = harness.machines.names().remove(0);
    let output = run_fleet_successfully(&harness, &["delete", "--force", &machine, "--reason", "crypto miner"]);
    assert!(output.contains("deleting; its running job is lost"), "{output}");
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    let (text, last) = (job.text(), job.reports().last().unwrap());
    assert_eq!(last.failure_reason.as_deref(), Some("runner_system_failure"), "{text}");
    assert_eq!(text.matches("instance deleted by operator ann").count(), 1, "{text}\n{}", harness.log());
    wait_until_deleted(&harness, &machine).await;
    let (code, output) = run_fleet(&harness, &["delete", "unknown"]);
    assert!(code == Some(1) && output.contains("no runner has an instance or a group `unknown`"), "{code:?} {output}");
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn drained_group_requests_no_jobs_until_uncordoned() {
    let keys = "max_instances = 2\n    delete_instances_on_shutdown = true\n    \
                [[runners.autoscaler.policy]]\n      idle_count = 1\n      idle_time = \"1h\"";
    let mut harness = Harness::with_instances(1, keys, "").await;
    start_job(&harness, 1).await;
    let output = run_fleet_successfully(&harness, &["drain", "ours"]);
    assert!(output.starts_with("group ours of runner ours: draining; "), "{output}");
    std::fs::write(harness.path("go"), "").unwrap();
    wait_for_success(&harness, 1).await;
    let is_empty = wait_until(|| harness.machines.names().is_empty()).await;
    assert!(is_empty, "the idle instance was not deleted:\n{}", harness.log());
    harness.push(2, &["echo second"], &json!({}));
    let status = run_fleet_successfully(&harness, &["explain", "group", "ours"]);
    assert!(status.contains("drained by operator ann"), "{status}");
    run_fleet_successfully(&harness, &["uncordon", "ours"]);
    wait_for_success(&harness, 2).await;
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
    assert_eq!(harness.machines.names(), [""; 0], "{}", harness.log());
}
