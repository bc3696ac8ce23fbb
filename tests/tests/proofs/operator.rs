//! Tests of operator commands on instances and groups of a running manager.

use std::process::Command;

use muster_job::{JobId, JobStatus};
use muster_tests::bench::Bench;
use muster_tests::process::{muster, until};
use serde_json::json;

const WAITS: &str =
    "echo $$ >> \"$MARKS/started-$CI_JOB_ID\"; until test -e \"$MARKS/go\"; do sleep 0.02; done; echo went on";

/// Runs `muster fleet` on the state of the manager. Returns its exit status and its output.
fn fleet(bench: &Bench, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(muster());
    command.arg("fleet").args(arguments).arg("--state-dir").arg(bench.path("state")).env("USER", "ann");
    let output = command.env_remove("SUDO_USER").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Runs [`fleet`], which must succeed.
fn done(bench: &Bench, arguments: &[&str]) -> String {
    let (code, text) = fleet(bench, arguments);
    assert_eq!(code, Some(0), "{text}\n{}", bench.log());
    text
}

/// Queues a job that waits for the file `go`, and waits until it has started.
async fn start(bench: &Bench, job: i64) {
    bench.push(job, &[WAITS], &json!({}));
    assert!(until(|| bench.starts(JobId(job)) == 1).await, "job {job} does not start:\n{}", bench.log());
}

async fn succeeds(bench: &Bench, job: i64) -> String {
    let job = bench.coordinator.wait_for_end(JobId(job)).await;
    assert_eq!(job.status, JobStatus::Success, "{}\n{}", job.text(), bench.log());
    job.text()
}

async fn gone(bench: &Bench, machine: &str) {
    let is_gone = until(|| !bench.machines.names().iter().any(|name| name == machine)).await;
    assert!(is_gone, "{machine} stays:\n{}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_instance_is_kept_over_a_restart_without_jobs_until_it_is_removed() {
    let keys = "max_instances = 3\n    capacity_per_instance = 2\n    delete_instances_on_shutdown = true\n    \
                [[runners.autoscaler.policy]]\n      idle_time = \"1s\"";
    let mut bench = Bench::with_instances(2, keys, "").await;
    start(&bench, 1).await;
    let machine = bench.machines.names().remove(0);
    let said = done(&bench, &["cordon", &machine, "--reason", "the disk is odd"]);
    assert!(said.contains("cordoned; 1 running jobs continue"), "{said}");
    start(&bench, 2).await;
    bench.kill_manager();
    let (code, said) = fleet(&bench, &["uncordon", &machine]);
    assert!(code == Some(2) && said.contains("no manager with instances is running on"), "{code:?} {said}");
    bench.start_manager();
    std::fs::write(bench.path("go"), "").unwrap();
    assert!(succeeds(&bench, 1).await.contains(&format!("Instance {machine} connected")));
    for job in 2..=3 {
        if job == 3 {
            bench.push(3, &["echo third"], &json!({}));
        }
        let text = succeeds(&bench, job).await;
        assert!(!text.contains(&format!("Instance {machine} connected")), "{text}");
    }
    let why = done(&bench, &["explain", "instance", &machine]);
    assert!(why.contains("cordon by operator ann (user "), "{why}");
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
    assert_eq!(bench.machines.names(), [machine.as_str()], "all others go at the end: {}", bench.log());
    bench.start_manager();
    let mut said = (None, String::new());
    let removed = until(|| {
        // The manager takes acts once it has begun.
        said = fleet(&bench, &["drain", &machine, "--reason", "seen enough"]);
        said.0 == Some(0)
    });
    assert!(removed.await, "{said:?}\n{}", bench.log());
    gone(&bench, &machine).await;
    let why = done(&bench, &["explain", "instance", &machine]);
    for expected in ["cordon by operator ann", ": the disk is odd", "drain by operator ann", ": seen enough"] {
        assert!(why.contains(expected), "{expected}: {why}");
    }
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_now_gives_up_the_job_and_says_who_said_so() {
    let mut bench = Bench::with_instances(1, "max_instances = 1\n    delete_instances_on_shutdown = true", "").await;
    start(&bench, 1).await;
    let machine = bench.machines.names().remove(0);
    let said = done(&bench, &["delete", "--force", &machine, "--reason", "it mines coins"]);
    assert!(said.contains("deleting; its 1 running jobs are lost"), "{said}");
    let job = bench.coordinator.wait_for_end(JobId(1)).await;
    let (text, last) = (job.text(), job.reports().last().unwrap());
    assert_eq!(last.failure_reason.as_deref(), Some("runner_system_failure"), "{text}");
    assert_eq!(text.matches("instance deleted by operator ann").count(), 1, "{text}\n{}", bench.log());
    gone(&bench, &machine).await;
    let (code, said) = fleet(&bench, &["delete", "nobody"]);
    assert!(code == Some(1) && said.contains("no runner has an instance or a group `nobody`"), "{code:?} {said}");
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_group_empties_and_asks_for_no_jobs_until_it_is_resumed() {
    let keys = "max_instances = 2\n    delete_instances_on_shutdown = true\n    \
                [[runners.autoscaler.policy]]\n      idle_count = 1\n      idle_time = \"1h\"";
    let mut bench = Bench::with_instances(1, keys, "").await;
    start(&bench, 1).await;
    let said = done(&bench, &["drain", "ours"]);
    assert!(said.starts_with("group ours of runner ours: draining; "), "{said}");
    std::fs::write(bench.path("go"), "").unwrap();
    succeeds(&bench, 1).await;
    let empty = until(|| bench.machines.names().is_empty()).await;
    assert!(empty, "the idle one stays, too:\n{}", bench.log());
    bench.push(2, &["echo second"], &json!({}));
    let status = done(&bench, &["explain", "group", "ours"]);
    assert!(status.contains("drained by operator ann"), "{status}");
    done(&bench, &["uncordon", "ours"]);
    succeeds(&bench, 2).await;
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
    assert_eq!(bench.machines.names(), [""; 0], "{}", bench.log());
}
