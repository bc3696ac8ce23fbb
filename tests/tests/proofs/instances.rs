//! Tests of the executor `instance` when a manager, plugin, agent or instance dies.

use std::time::Duration;

use muster_job::{JobId, JobStatus};
use muster_tests::bench::Bench;
use muster_tests::machines::Part;
use muster_tests::proxy::{Fault, Kind};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;

use crate::life::{self, Lines};

const JOB: JobId = JobId(1);
/// Maximum time from the loss of an instance to the end of its job. `crates/manager/tests/it/promises.rs` tests the exact time with a
/// simulated clock.
const LOSS_LIMIT: Duration = Duration::from_secs(15);

/// Waits for an effect of other processes.
async fn until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(muster_tests::process::until(is_so).await, "waited in vain: {what}");
}

/// Returns a script that records its start and waits until the file `go` exists.
const WAITS: &str =
    "echo $$ >> \"$MARKS/started-$CI_JOB_ID\"; until test -e \"$MARKS/go\"; do sleep 0.02; done; echo went on";

/// Starts a job whose script waits for the file `go` and then writes `lines`. Returns the machines of the fleet once it waits.
async fn waiting(bench: &Bench, lines: Lines) -> Vec<String> {
    bench.push(1, &["until test -e \"$MARKS/go\"; do sleep 0.02; done", &lines.script()], &json!({}));
    bench.coordinator.wait_for(JOB, |job| job.text().contains("until test -e")).await;
    bench.machines.names()
}

/// Lets the job of [`waiting`] continue.
fn go(bench: &Bench) {
    std::fs::write(bench.path("go"), "").unwrap();
}

async fn started(bench: &Bench, id: JobId) {
    until("the job starts", || bench.starts(id) == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_is_killed_mid_job_adopts_its_instance_and_the_job() {
    let mut bench = Bench::with_instances(1, "max_instances = 2\n    delete_instances_on_shutdown = true", "").await;
    let lines = Lines::any(&mut StdRng::seed_from_u64(7));
    let machines = waiting(&bench, lines).await;
    assert_eq!(machines.len(), 1);
    bench.kill_manager();
    go(&bench);
    bench.start_manager();
    let job = bench.coordinator.wait_for_end(JOB).await;
    life::check_success(&bench, JOB, &job, lines);
    assert_eq!(job.assignments, 1);
    assert!(job.text().contains(&format!("Instance {} connected", machines[0])), "{}", job.text());
    // The next job uses the same instance: no second one was created.
    bench.push(2, &[&lines.script()], &json!({}));
    let next = bench.coordinator.wait_for_end(JobId(2)).await;
    life::check_success(&bench, JobId(2), &next, lines);
    assert!(next.text().contains(&format!("Instance {} connected", machines[0])), "{}", next.text());
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
    assert_eq!(bench.machines.names(), [""; 0], "{}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_lost_before_the_first_command_costs_the_job_nothing_but_a_line() {
    let idle = "max_instances = 2\n    [[runners.autoscaler.policy]]\n      idle_time = \"1h\"";
    let bench = Bench::with_instances(1, idle, "").await;
    // The first job leaves an instance that is idle, and connected.
    bench.push(1, &["echo first"], &json!({}));
    bench.coordinator.wait_for_end(JOB).await;
    until("the manager has done with it", || bench.log().contains("Removed job from processing list")).await;
    let lost = bench.machines.names();
    assert_eq!(lost.len(), 1, "{}", bench.log());
    assert_eq!(bench.machines.kill(Part::Machine), 1);
    until("the instance is gone", || !bench.machines.names().contains(&lost[0])).await;
    bench.push(2, &["echo ran once >> \"$MARKS/started-2\""], &json!({}));
    let job = bench.coordinator.wait_for_end(JobId(2)).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}\n{}", bench.log());
    assert_eq!(bench.starts(JobId(2)), 1);
    let moved =
        text.lines().filter(|line| line.contains("so the job was rescheduled to another instance")).collect::<Vec<_>>();
    assert_eq!(moved.len(), 1, "{text}");
    assert!(moved[0].contains(&lost[0]), "{text}");
}

/// Job 1 uploads artifacts for job 2, whose first download never ends. Returns once the download has begun.
pub(crate) async fn held_in_its_preparation(bench: &Bench) {
    let artifacts = json!([{ "paths": ["out"], "artifact_type": "archive", "artifact_format": "zip" }]);
    bench.push(1, &["echo kept > out"], &json!({ "artifacts": artifacts }));
    bench.coordinator.wait_for_end(JOB).await;
    let (send, mut downloads) = tokio::sync::mpsc::unbounded_channel();
    let mut begun = Some(send);
    bench.proxy.decide(Box::new(move |kind| {
        let begun = begun.take_if(|_| kind == Kind::Download)?;
        let _ = begun.send(());
        Some(Fault::Delay(Duration::from_secs(3600)))
    }));
    let file = json!({ "filename": "artifacts.zip", "size": 1 });
    let from = json!([{ "id": 1, "token": "jobtoken1jobtoken", "name": "job-1", "artifacts_file": file }]);
    bench.push(2, &["cat out", WAITS], &json!({ "dependencies": from }));
    downloads.recv().await.unwrap();
    bench.coordinator.wait_for(JobId(2), |job| job.text().contains("Downloading artifacts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_lost_while_the_job_is_prepared_moves_it_and_the_next_manager_knows_where_its_log_begins() {
    let mut bench = Bench::with_instances(1, "max_instances = 1", "").await;
    held_in_its_preparation(&bench).await;
    assert_eq!(bench.machines.kill(Part::Machine), 1);
    started(&bench, JobId(2)).await;
    bench.kill_manager();
    bench.start_manager();
    go(&bench);
    let job = bench.coordinator.wait_for_end(JobId(2)).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}\n{}", bench.log());
    life::check(&bench, JobId(2), &job).unwrap();
    assert_eq!((bench.starts(JobId(2)), job.assignments), (1, 1));
    assert_eq!(text.matches("so the job was rescheduled to another instance").count(), 1, "{text}");
    // The log of the first attempt is kept, followed by the complete log of the second one.
    assert_eq!(text.matches("Running with muster").count(), 2, "{text}");
    assert_eq!((text.matches("\nkept\n").count(), text.matches("\nwent on\n").count()), (1, 1), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_instance_ends_its_job_with_the_reason_and_is_replaced() {
    let bench = Bench::with_instances(1, "max_instances = 1", "").await;
    bench.push(1, &[WAITS], &json!({}));
    started(&bench, JOB).await;
    let frozen = bench.machines.names();
    assert!(bench.machines.freeze() > 1);
    let job = bench.coordinator.wait_for_end(JOB).await;
    let (text, last) = (job.text(), job.reports().last().unwrap());
    assert_eq!(last.failure_reason.as_deref(), Some("runner_system_failure"), "{text}");
    let line = text.lines().find(|line| line.contains("was lost: it does not respond")).unwrap();
    for part in [frozen[0].as_str(), "; retry the job", "may need more memory"] {
        assert!(line.contains(part), "{part}: {text}");
    }
    bench.push(2, &["echo ran once >> \"$MARKS/started-2\""], &json!({}));
    let next = bench.coordinator.wait_for_end(JobId(2)).await;
    assert_eq!(next.status, JobStatus::Success, "{}\n{}", next.text(), bench.log());
    assert!(!bench.machines.names().contains(&frozen[0]), "it is removed: {}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_instance_answers_the_managers_network_is_suspected_and_no_job_is_lost() {
    let bench = Bench::with_instances(2, "max_instances = 2", "").await;
    for id in [1, 2] {
        bench.push(id, &[WAITS], &json!({}));
        started(&bench, JobId(id)).await;
    }
    let machines = bench.machines.names();
    assert!(bench.machines.freeze() > 2);
    until("both have been silent for too long", || bench.log().matches("no instance is reachable").count() == 2).await;
    go(&bench);
    assert!(bench.machines.thaw() > 2);
    for id in [1, 2] {
        let job = bench.coordinator.wait_for_end(JobId(id)).await;
        assert_eq!(job.status, JobStatus::Success, "{}\n{}", job.text(), bench.log());
        assert_eq!(bench.starts(JobId(id)), 1);
    }
    assert_eq!(bench.machines.names(), machines, "none is removed: {}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_instance_costs_a_job_that_is_prepared_there_nothing_but_time() {
    let bench = Bench::with_instances(1, "max_instances = 1", "").await;
    held_in_its_preparation(&bench).await;
    assert!(bench.machines.freeze() > 1);
    go(&bench);
    let job = bench.coordinator.wait_for_end(JobId(2)).await;
    assert_eq!(job.status, JobStatus::Success, "{}\n{}", job.text(), bench.log());
    life::check(&bench, JobId(2), &job).unwrap();
    assert_eq!(bench.starts(JobId(2)), 1);
    assert_eq!(job.text().matches("so the job was rescheduled to another instance").count(), 1, "{}", job.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_was_stopped_for_a_while_asks_before_it_gives_an_instance_up() {
    let bench = Bench::with_instances(1, "max_instances = 1", "").await;
    let lines = Lines::any(&mut StdRng::seed_from_u64(11));
    let machines = waiting(&bench, lines).await;
    bench.pause_manager(true);
    // The pause is longer than an instance may be silent.
    tokio::time::sleep(LOSS_LIMIT).await;
    bench.pause_manager(false);
    go(&bench);
    let job = bench.coordinator.wait_for_end(JOB).await;
    life::check_success(&bench, JOB, &job, lines);
    assert_eq!(bench.machines.names(), machines, "the instance is the same: {}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_lost_after_the_first_command_ends_the_job_at_once_with_a_reason_that_can_be_retried() {
    let bench = Bench::with_instances(1, "max_instances = 1", "").await;
    bench.push(1, &[WAITS], &json!({}));
    started(&bench, JOB).await;
    assert_eq!(bench.machines.kill(Part::Machine), 1);
    let job = bench.coordinator.wait_for_end(JOB).await;
    let (text, last) = (job.text(), job.reports().last().unwrap());
    assert_eq!(last.failure_reason.as_deref(), Some("runner_system_failure"), "{text}");
    // The message depends on what the manager sees first.
    let how = ["was lost: instance unexpectedly removed", "was lost: it does not respond"];
    let line = text.lines().find(|line| how.iter().any(|how| line.contains(how)));
    assert!(line.is_some_and(|line| line.contains("; retry the job, or set `retry: ")), "{text}");
    assert_eq!((bench.starts(JOB), job.assignments), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ssh_server_that_dies_costs_the_job_nothing() {
    let bench = Bench::with_instances(1, "max_instances = 1", "").await;
    let lines = Lines::any(&mut StdRng::seed_from_u64(8));
    let machines = waiting(&bench, lines).await;
    assert_eq!(bench.machines.kill(Part::Server), 1);
    go(&bench);
    let job = bench.coordinator.wait_for_end(JOB).await;
    life::check_success(&bench, JOB, &job, lines);
    assert_eq!(bench.machines.names(), machines, "the instance is the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_dies_costs_neither_job_nor_instance() {
    let bench = Bench::with_instances(1, "max_instances = 1", "").await;
    let lines = Lines::any(&mut StdRng::seed_from_u64(9));
    let machines = waiting(&bench, lines).await;
    assert!(bench.kill_plugin());
    until("the plugin is restarted", || bench.log().contains("plugin restarted")).await;
    go(&bench);
    let job = bench.coordinator.wait_for_end(JOB).await;
    life::check_success(&bench, JOB, &job, lines);
    assert_eq!(bench.machines.names(), machines, "the instance is the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_for_an_instance_is_canceled() {
    let bench = Bench::with_instances(1, "max_instances = 1", "boot_delay_ms = 3600000").await;
    bench.push(1, &["echo never"], &json!({}));
    bench.coordinator.wait_for(JOB, |job| job.assignments == 1).await;
    until("the instance is asked for", || bench.log().contains("missing instances")).await;
    bench.coordinator.set_status(JOB, JobStatus::Canceling);
    let job = bench.coordinator.wait_for(JOB, |job| job.reports().count() == 1).await;
    assert_eq!(job.reports().last().unwrap().failure_reason.as_deref(), Some("job_canceled"), "{}", job.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_an_instance_in_time_ends_with_what_it_waited_for() {
    let bench =
        Bench::with_instances(1, "max_instances = 1\n    instance_acquire_timeout = \"1s\"", "boot_delay_ms = 3600000")
            .await;
    bench.push(1, &["echo never"], &json!({}));
    let job = bench.coordinator.wait_for_end(JOB).await;
    let text = job.text();
    assert!(text.contains("unable to acquire instance within the configured timeout of 1s: "), "{text}");
    assert_eq!(job.reports().last().unwrap().failure_reason.as_deref(), Some("runner_system_failure"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_of_an_older_executable_ends_its_job_and_is_replaced_before_the_next_one() {
    let mut bench = Bench::with_instances(1, "max_instances = 1\n    delete_instances_on_shutdown = true\n    [[runners.autoscaler.policy]]\n      idle_time = \"1h\"", "").await;
    let lines = Lines::any(&mut StdRng::seed_from_u64(10));
    let (machines, older) = (waiting(&bench, lines).await, agents(&bench));
    assert_eq!(older.len(), 1);

    // The upgraded executable has another hash.
    bench.kill_manager();
    let newer = bench.path("newer");
    std::fs::copy(&bench.executable, &newer).unwrap();
    std::io::Write::write_all(&mut std::fs::OpenOptions::new().append(true).open(&newer).unwrap(), b"\0").unwrap();
    bench.executable = newer.clone();
    bench.start_manager();
    until("the new manager speaks to the older agent", || bench.log().matches("connected to the agent").count() >= 2)
        .await;
    go(&bench);
    let job = bench.coordinator.wait_for_end(JOB).await;
    life::check_success(&bench, JOB, &job, lines);

    bench.push(2, &[&lines.script()], &json!({}));
    let next = bench.coordinator.wait_for_end(JobId(2)).await;
    life::check_success(&bench, JobId(2), &next, lines);
    assert_eq!(bench.machines.names(), machines, "the instance is kept");
    let now = agents(&bench);
    assert_eq!(now.len(), 1, "{}", bench.log());
    assert_ne!(now, older);
    assert_eq!(std::fs::read_link(format!("/proc/{}/exe", now[0])).unwrap(), newer);
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
}

/// Returns the processes that are agents of instances.
fn agents(bench: &Bench) -> Vec<i32> {
    let home = bench.path("machines");
    let is_agent = |pid: &i32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        words.contains(" agent serve ") && words.contains(&home.display().to_string())
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|process| process.file_name().to_str()?.parse().ok()).filter(is_agent).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_that_a_plugin_without_answers_leaves_are_named_before_shutdown_timeout_ends_the_manager() {
    let autoscaler = "max_instances = 1\n    delete_instances_on_shutdown = true\n    \
                      [[runners.autoscaler.policy]]\n      idle_count = 1\n      idle_time = \"1h\"";
    let mut bench = Bench::with_instances(1, autoscaler, "").await;
    bench.push(1, &["echo done"], &json!({}));
    assert_eq!(bench.coordinator.wait_for_end(JOB).await.status, JobStatus::Success, "{}", bench.log());
    let machines = bench.machines.names();
    bench.edit("concurrent = 1", "shutdown_timeout = 4\nconcurrent = 1");
    bench.signal("HUP");
    until("the configuration is loaded", || bench.log().contains("Configuration loaded")).await;
    assert!(bench.freeze_plugin(), "{}", bench.log());
    bench.signal("TERM");
    until("the manager ends", || !bench.is_managed()).await;
    let log = bench.log();
    let told = log.lines().find(|line| line.contains("instances left")).unwrap_or_default();
    assert!(!machines.is_empty() && machines.iter().all(|name| told.contains(name)), "{machines:?}\n{log}");
    bench.machines.end();
}
