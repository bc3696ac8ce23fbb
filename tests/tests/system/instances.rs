//! Executor `instance`: a manager, plugin or instance is killed, stops responding or is upgraded.

use std::time::Duration;

use muster_job::{JobId, JobStatus};
use muster_tests::harness::Harness;
use muster_tests::machines::ProcessKind;
use muster_tests::proxy::{ApiCall, Fault};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;

use crate::checks::{self, Lines};

const JOB: JobId = JobId(1);
/// Maximum time from the loss of an instance to the end of its job. `crates/manager/tests/it/documented_times.rs` tests
/// the exact time.
const MAX_LOSS_TIME: Duration = Duration::from_secs(15);

async fn wait_until(description: &str, condition: impl FnMut() -> bool) {
    assert!(muster_tests::process::wait_until(condition).await, "timed out waiting until {description}");
}

/// Records its start, and waits until the file `go` exists.
const WAITING_SCRIPT: &str =
    "echo $$ >> \"$MARKS/started-$CI_JOB_ID\"; until test -e \"$MARKS/go\"; do sleep 0.02; done; echo continued";

/// Starts a job whose script waits for the file `go` and then prints `lines`. Returns the names of the instances.
async fn start_waiting_job(harness: &Harness, lines: Lines) -> Vec<String> {
    harness.push(1, &["until test -e \"$MARKS/go\"; do sleep 0.02; done", &lines.script()], &json!({}));
    harness.coordinator.wait_for(JOB, |job| job.text().contains("until test -e")).await;
    harness.machines.names()
}

fn create_go_file(harness: &Harness) {
    std::fs::write(harness.path("go"), "").unwrap();
}

async fn wait_until_started(harness: &Harness, id: JobId) {
    wait_until("the job starts", || harness.start_count(id) == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_manager_continues_job_on_its_instance() {
    let mut harness =
        Harness::with_instances(1, "max_instances = 2\n    delete_instances_on_shutdown = true", "").await;
    let lines = Lines::random(&mut StdRng::seed_from_u64(7));
    let machines = start_waiting_job(&harness, lines).await;
    assert_eq!(machines.len(), 1);
    harness.kill_manager();
    create_go_file(&harness);
    harness.start_manager();
    let job = harness.coordinator.wait_for_end(JOB).await;
    checks::check_success(&harness, JOB, &job, lines);
    assert_eq!(job.assignments, 1);
    assert!(job.text().contains(&format!("Instance {} connected", machines[0])), "{}", job.text());
    // The restarted manager has not created a second instance, so the next job uses the same instance.
    harness.push(2, &[&lines.script()], &json!({}));
    let next = harness.coordinator.wait_for_end(JobId(2)).await;
    checks::check_success(&harness, JobId(2), &next, lines);
    assert!(next.text().contains(&format!("Instance {} connected", machines[0])), "{}", next.text());
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
    assert_eq!(harness.machines.names(), [""; 0], "{}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn job_assigned_to_a_lost_idle_instance_is_rescheduled() {
    let idle = "max_instances = 2\n    [[runners.autoscaler.policy]]\n      idle_time = \"1h\"";
    let harness = Harness::with_instances(1, idle, "").await;
    harness.push(1, &["echo first"], &json!({}));
    harness.coordinator.wait_for_end(JOB).await;
    wait_until("the manager has cleaned up the first job", || {
        harness.log().contains("Removed job from processing list")
    })
    .await;
    let lost = harness.machines.names();
    assert_eq!(lost.len(), 1, "{}", harness.log());
    assert_eq!(harness.machines.kill(ProcessKind::PersistentInstance), 1);
    wait_until("the instance is deleted", || !harness.machines.names().contains(&lost[0])).await;
    harness.push(2, &["echo ran once >> \"$MARKS/started-2\""], &json!({}));
    let job = harness.coordinator.wait_for_end(JobId(2)).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}\n{}", harness.log());
    assert_eq!(harness.start_count(JobId(2)), 1);
    let notes =
        text.lines().filter(|line| line.contains("so the job was rescheduled to another instance")).collect::<Vec<_>>();
    assert_eq!(notes.len(), 1, "{text}");
    assert!(notes[0].contains(&lost[0]), "{text}");
}

/// Starts job 2. Its preparation does not end, because its first download is delayed for an hour.
pub(crate) async fn start_job_with_endless_preparation(harness: &Harness) {
    let artifacts = json!([{ "paths": ["out"], "artifact_type": "archive", "artifact_format": "zip" }]);
    harness.push(1, &["echo content > out"], &json!({ "artifacts": artifacts }));
    harness.coordinator.wait_for_end(JOB).await;
    let (send, mut downloads) = tokio::sync::mpsc::unbounded_channel();
    let mut sender = Some(send);
    harness.proxy.select_faults(Box::new(move |kind| {
        let sender = sender.take_if(|_| kind == ApiCall::Download)?;
        let _ = sender.send(());
        Some(Fault::Delay(Duration::from_secs(3600)))
    }));
    let file = json!({ "filename": "artifacts.zip", "size": 1 });
    let dependencies = json!([{ "id": 1, "token": "jobtoken1jobtoken", "name": "job-1", "artifacts_file": file }]);
    harness.push(2, &["cat out", WAITING_SCRIPT], &json!({ "dependencies": dependencies }));
    downloads.recv().await.unwrap();
    harness.coordinator.wait_for(JobId(2), |job| job.text().contains("Downloading artifacts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rescheduled_job_has_complete_log_after_manager_restart() {
    let mut harness = Harness::with_instances(1, "max_instances = 1", "").await;
    start_job_with_endless_preparation(&harness).await;
    assert_eq!(harness.machines.kill(ProcessKind::PersistentInstance), 1);
    wait_until_started(&harness, JobId(2)).await;
    harness.kill_manager();
    harness.start_manager();
    create_go_file(&harness);
    let job = harness.coordinator.wait_for_end(JobId(2)).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}\n{}", harness.log());
    checks::check_job(&harness, JobId(2), &job).unwrap();
    assert_eq!((harness.start_count(JobId(2)), job.assignments), (1, 1));
    assert_eq!(text.matches("so the job was rescheduled to another instance").count(), 1, "{text}");
    // The log has the output of the first attempt, followed by the complete log of the second attempt.
    assert_eq!(text.matches("Running with muster").count(), 2, "{text}");
    assert_eq!((text.matches("\ncontent\n").count(), text.matches("\ncontinued\n").count()), (1, 1), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unresponsive_instance_fails_its_job_with_reason_and_is_replaced() {
    let harness = Harness::with_instances(1, "max_instances = 1", "").await;
    harness.push(1, &[WAITING_SCRIPT], &json!({}));
    wait_until_started(&harness, JOB).await;
    let frozen = harness.machines.names();
    assert!(harness.machines.freeze() > 1);
    let job = harness.coordinator.wait_for_end(JOB).await;
    let (text, last) = (job.text(), job.reports().last().unwrap());
    assert_eq!(last.failure_reason.as_deref(), Some("runner_system_failure"), "{text}");
    let line = text.lines().find(|line| line.contains("was lost: it does not respond")).unwrap();
    for part in [frozen[0].as_str(), "; retry the job", "may need more memory"] {
        assert!(line.contains(part), "{part}: {text}");
    }
    harness.push(2, &["echo ran once >> \"$MARKS/started-2\""], &json!({}));
    let next = harness.coordinator.wait_for_end(JobId(2)).await;
    assert_eq!(next.status, JobStatus::Success, "{}\n{}", next.text(), harness.log());
    assert!(!harness.machines.names().contains(&frozen[0]), "the unresponsive instance is deleted: {}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_survive_when_all_instances_are_unresponsive() {
    let harness = Harness::with_instances(2, "max_instances = 2", "").await;
    for id in [1, 2] {
        harness.push(id, &[WAITING_SCRIPT], &json!({}));
        wait_until_started(&harness, JobId(id)).await;
    }
    let machines = harness.machines.names();
    assert!(harness.machines.freeze() > 2);
    wait_until("both instances are reported as unresponsive", || {
        harness.log().matches("no instance is reachable").count() == 2
    })
    .await;
    create_go_file(&harness);
    assert!(harness.machines.resume() > 2);
    for id in [1, 2] {
        let job = harness.coordinator.wait_for_end(JobId(id)).await;
        assert_eq!(job.status, JobStatus::Success, "{}\n{}", job.text(), harness.log());
        assert_eq!(harness.start_count(JobId(id)), 1);
    }
    assert_eq!(harness.machines.names(), machines, "no instance is deleted: {}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn job_in_preparation_is_rescheduled_from_unresponsive_instance() {
    let harness = Harness::with_instances(1, "max_instances = 1", "").await;
    start_job_with_endless_preparation(&harness).await;
    assert!(harness.machines.freeze() > 1);
    create_go_file(&harness);
    let job = harness.coordinator.wait_for_end(JobId(2)).await;
    assert_eq!(job.status, JobStatus::Success, "{}\n{}", job.text(), harness.log());
    checks::check_job(&harness, JobId(2), &job).unwrap();
    assert_eq!(harness.start_count(JobId(2)), 1);
    assert_eq!(job.text().matches("so the job was rescheduled to another instance").count(), 1, "{}", job.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_of_the_manager_does_not_count_as_unresponsive_instance() {
    let harness = Harness::with_instances(1, "max_instances = 1", "").await;
    let lines = Lines::random(&mut StdRng::seed_from_u64(11));
    let machines = start_waiting_job(&harness, lines).await;
    harness.pause_manager();
    // After this time, an unresponsive instance counts as lost.
    tokio::time::sleep(MAX_LOSS_TIME).await;
    harness.resume_manager();
    create_go_file(&harness);
    let job = harness.coordinator.wait_for_end(JOB).await;
    checks::check_success(&harness, JOB, &job, lines);
    assert_eq!(harness.machines.names(), machines, "the instance is the same: {}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn job_fails_with_retryable_reason_when_its_instance_is_lost() {
    let harness = Harness::with_instances(1, "max_instances = 1", "").await;
    harness.push(1, &[WAITING_SCRIPT], &json!({}));
    wait_until_started(&harness, JOB).await;
    assert_eq!(harness.machines.kill(ProcessKind::PersistentInstance), 1);
    let job = harness.coordinator.wait_for_end(JOB).await;
    let (text, last) = (job.text(), job.reports().last().unwrap());
    assert_eq!(last.failure_reason.as_deref(), Some("runner_system_failure"), "{text}");
    // The message depends on what the manager detects first.
    let messages = ["was lost: instance unexpectedly removed", "was lost: it does not respond"];
    let line = text.lines().find(|line| messages.iter().any(|message| line.contains(message)));
    assert!(line.is_some_and(|line| line.contains("; retry the job, or set `retry: ")), "{text}");
    assert_eq!((harness.start_count(JOB), job.assignments), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn job_survives_when_ssh_server_is_killed() {
    let harness = Harness::with_instances(1, "max_instances = 1", "").await;
    let lines = Lines::random(&mut StdRng::seed_from_u64(8));
    let machines = start_waiting_job(&harness, lines).await;
    assert_eq!(harness.machines.kill(ProcessKind::SshServer), 1);
    create_go_file(&harness);
    let job = harness.coordinator.wait_for_end(JOB).await;
    checks::check_success(&harness, JOB, &job, lines);
    assert_eq!(harness.machines.names(), machines, "the instance is the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn job_and_instance_survive_when_plugin_is_killed() {
    let harness = Harness::with_instances(1, "max_instances = 1", "").await;
    let lines = Lines::random(&mut StdRng::seed_from_u64(9));
    let machines = start_waiting_job(&harness, lines).await;
    assert!(harness.kill_plugin());
    wait_until("the plugin is restarted", || harness.log().contains("plugin restarted")).await;
    create_go_file(&harness);
    let job = harness.coordinator.wait_for_end(JOB).await;
    checks::check_success(&harness, JOB, &job, lines);
    assert_eq!(harness.machines.names(), machines, "the instance is the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn job_waiting_for_an_instance_can_be_canceled() {
    let harness = Harness::with_instances(1, "max_instances = 1", "boot_delay_ms = 3600000").await;
    harness.push(1, &["echo never"], &json!({}));
    harness.coordinator.wait_for(JOB, |job| job.assignments == 1).await;
    wait_until("the instance is requested", || harness.log().contains("needed instances")).await;
    harness.coordinator.set_status(JOB, JobStatus::Canceling);
    let job = harness.coordinator.wait_for(JOB, |job| job.reports().count() == 1).await;
    assert_eq!(job.reports().last().unwrap().failure_reason.as_deref(), Some("job_canceled"), "{}", job.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn job_fails_with_reason_after_instance_acquire_timeout() {
    let harness = Harness::with_instances(
        1,
        "max_instances = 1\n    instance_acquire_timeout = \"1s\"",
        "boot_delay_ms = 3600000",
    )
    .await;
    harness.push(1, &["echo never"], &json!({}));
    let job = harness.coordinator.wait_for_end(JOB).await;
    let text = job.text();
    assert!(text.contains("unable to acquire instance within the configured timeout of 1s: "), "{text}");
    assert_eq!(job.reports().last().unwrap().failure_reason.as_deref(), Some("runner_system_failure"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn outdated_agent_finishes_its_job_and_is_replaced() {
    let mut harness = Harness::with_instances(1, "max_instances = 1\n    delete_instances_on_shutdown = true\n    [[runners.autoscaler.policy]]\n      idle_time = \"1h\"", "").await;
    let lines = Lines::random(&mut StdRng::seed_from_u64(10));
    let (machines, outdated) = (start_waiting_job(&harness, lines).await, agents(&harness));
    assert_eq!(outdated.len(), 1);

    // The copy is one byte longer, so its hash differs, as after an upgrade.
    harness.kill_manager();
    let upgraded = harness.path("upgraded");
    let content = [&std::fs::read(&harness.executable).unwrap()[..], b"\0"].concat();
    muster_test_prerequisites::create_program(&upgraded, content);
    harness.executable = upgraded.clone();
    harness.start_manager();
    wait_until("the new manager is connected to the outdated agent", || {
        harness.log().matches("connected to the agent").count() >= 2
    })
    .await;
    create_go_file(&harness);
    let job = harness.coordinator.wait_for_end(JOB).await;
    checks::check_success(&harness, JOB, &job, lines);

    harness.push(2, &[&lines.script()], &json!({}));
    let next = harness.coordinator.wait_for_end(JobId(2)).await;
    checks::check_success(&harness, JobId(2), &next, lines);
    assert_eq!(harness.machines.names(), machines, "the instance is kept");
    let current = agents(&harness);
    assert_eq!(current.len(), 1, "{}", harness.log());
    assert_ne!(current, outdated);
    assert_eq!(std::fs::read_link(format!("/proc/{}/exe", current[0])).unwrap(), upgraded);
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
}

fn agents(harness: &Harness) -> Vec<i32> {
    let home = harness.path("machines");
    let is_agent = |pid: &i32| {
        let command_line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command_line = String::from_utf8_lossy(&command_line).replace('\0', " ");
        command_line.contains(" agent serve ") && command_line.contains(&home.display().to_string())
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.filter_map(|process| process.file_name().to_str()?.parse().ok()).filter(is_agent).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_of_unresponsive_plugin_are_logged_at_shutdown_timeout() {
    let autoscaler = "max_instances = 1\n    delete_instances_on_shutdown = true\n    \
                      [[runners.autoscaler.policy]]\n      idle_count = 1\n      idle_time = \"1h\"";
    let mut harness = Harness::with_instances(1, autoscaler, "").await;
    harness.push(1, &["echo done"], &json!({}));
    assert_eq!(harness.coordinator.wait_for_end(JOB).await.status, JobStatus::Success, "{}", harness.log());
    let machines = harness.machines.names();
    harness.replace_in_config("concurrent = 1", "shutdown_timeout = 4\nconcurrent = 1");
    harness.signal("HUP");
    wait_until("the configuration is loaded", || harness.log().contains("Configuration loaded")).await;
    assert!(harness.freeze_plugin(), "{}", harness.log());
    harness.signal("TERM");
    wait_until("the manager exits", || !harness.is_manager_running()).await;
    let log = harness.log();
    let line = log.lines().find(|line| line.contains("instances remain")).unwrap_or_default();
    assert!(!machines.is_empty() && machines.iter().all(|name| line.contains(name)), "{machines:?}\n{log}");
    harness.machines.kill_all();
}
