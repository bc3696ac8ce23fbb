//! Tests of configuration changes while jobs run on instances.

use muster_job::{JobId, JobStatus};
use muster_tests::bench::Bench;
use muster_tests::machines::Part;
use serde_json::json;

const JOB: JobId = JobId(1);
/// Script that records its start and ends when the file `go` exists.
const WAITS: &str =
    "echo $$ >> \"$MARKS/started-$CI_JOB_ID\"; until test -e \"$MARKS/go\"; do sleep 0.02; done; echo went on";

async fn until(what: &str, bench: &Bench, is_so: impl FnMut() -> bool) {
    assert!(muster_tests::process::until(is_so).await, "waited in vain: {what}\n{}", bench.log());
}

/// Starts a job that waits. Returns its instance.
async fn waiting_job(bench: &Bench) -> Vec<String> {
    bench.push(JOB.0, &[WAITS], &json!({}));
    until("the job starts", bench, || bench.starts(JOB) == 1).await;
    let machines = bench.machines.names();
    assert!(!machines.is_empty());
    machines
}

/// Checks that the job succeeds and was started once.
async fn goes_on(bench: &Bench) {
    std::fs::write(bench.path("go"), "").unwrap();
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, bench.starts(JOB)), (JobStatus::Success, 1), "{}\n{}", job.text(), bench.log());
}

/// Kills the manager while a job runs, and starts it again with `from` replaced by `to` in its configuration.
async fn edited(from: &str, to: &str) {
    let autoscaler = "max_instances = 2\n    instance_ready_command = \"echo ready >> $HOME/ready\"\n    \
                      delete_instances_on_shutdown = true";
    let mut bench = Bench::with_instances(1, autoscaler, "").await;
    let machines = waiting_job(&bench).await;
    bench.kill_manager();
    bench.edit(from, to);
    bench.start_manager();
    until("the job is followed", &bench, || bench.log().matches("connected to the agent").count() >= 2).await;
    goes_on(&bench).await;
    assert_eq!(bench.machines.names(), machines);
    // The preparation of new instances was not repeated while the job was running.
    let ready = bench.machines.each("ready").map(|path| std::fs::read_to_string(path).unwrap());
    assert_eq!(ready.collect::<Vec<_>>(), ["ready\n"]);
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
    assert_eq!(bench.machines.names(), [""; 0], "{}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_name_costs_neither_the_job_nor_the_instance() {
    edited("name = \"ours\"", "name = \"renamed\"").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_token_costs_neither_the_job_nor_the_instance() {
    // The entry has no ID, so it is identified by its URL and its name.
    edited("token = \"", "token = \"glrt-new-").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_leaves_the_file_takes_its_instances_with_it_after_its_last_job() {
    let idle = "max_instances = 3\n    [[runners.autoscaler.policy]]\n      idle_count = 1\n      idle_time = \"1h\"";
    let mut bench = Bench::with_instances(1, idle, "").await;
    waiting_job(&bench).await;
    bench.configure("concurrent = 1\n");
    bench.signal("HUP");
    until("the runner is gone", &bench, || bench.log().contains("was removed")).await;
    goes_on(&bench).await;
    until("no instance is left", &bench, || bench.machines.names().is_empty()).await;
    let files = || std::fs::read_dir(bench.path("state/instances")).unwrap().flatten().map(|file| file.path());
    let is_of_it = |file: &std::path::Path| file.extension().is_some_and(|end| end == "ledger" || end == "owner");
    until("its ledger and the record of its owner are deleted", &bench, || !files().any(|file| is_of_it(&file))).await;
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_is_missing_at_the_start_costs_no_job_and_a_reload_mends_it() {
    let mut bench = Bench::with_instances(1, "max_instances = 1", "").await;
    let machines = waiting_job(&bench).await;
    bench.kill_manager();
    bench.edit("    plugin = \"", "    plugin = \"/missing");
    bench.start_manager();
    until("the plugin is missed", &bench, || bench.log().contains("failed to start the scaler")).await;
    assert_eq!(bench.coordinator.job(JOB).unwrap().status, JobStatus::Running);
    bench.edit("    plugin = \"/missing", "    plugin = \"");
    bench.signal("HUP");
    goes_on(&bench).await;
    assert_eq!(bench.machines.names(), machines);
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_comes_with_a_reload_keeps_no_instance_for_a_job_that_has_ended() {
    let mut bench = Bench::with_instances(1, "max_instances = 1", "").await;
    waiting_job(&bench).await;
    bench.kill_manager();
    let before = bench.configure("concurrent = 1\n");
    bench.start_manager();
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert!(job.text().contains("its runner was removed from the configuration"), "{}", job.text());
    until("the instance is reported", &bench, || bench.log().contains("no manager uses or deletes them")).await;
    bench.configure(&before);
    bench.signal("HUP");
    until("no instance is left", &bench, || bench.machines.names().is_empty()).await;
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_takes_no_more_jobs_keeps_nothing_idle() {
    let idle = "max_instances = 5\n    [[runners.autoscaler.policy]]\n      idle_count = 2\n      idle_time = \"1h\"";
    let mut bench = Bench::with_instances(1, idle, "").await;
    waiting_job(&bench).await;
    until("two are idle", &bench, || bench.machines.names().len() == 3).await;
    bench.signal("QUIT");
    until("the one of the job is left", &bench, || bench.machines.names().len() == 1).await;
    goes_on(&bench).await;
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
    assert_eq!(bench.machines.names(), [""; 0], "it goes with the last job: {}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_lost_while_the_plugin_prepares_it_costs_the_job_nothing_but_a_line() {
    let home = tempfile::tempdir().unwrap();
    let mark = home.path().display();
    let hook = format!("prepare_command = [\"sh\", \"-c\", \"mkdir {mark}/first || exit 0; exec sleep 50\"]");
    let bench = Bench::with_instances(1, "max_instances = 2", &hook).await;
    bench.push(JOB.0, &["echo ran >> \"$MARKS/started-1\""], &json!({}));
    until("the plugin prepares the instance", &bench, || home.path().join("first").exists()).await;
    let lost = bench.machines.names();
    assert_eq!(bench.machines.kill(Part::Machine), 1);
    let job = bench.coordinator.wait_for_end(JOB).await;
    let text = job.text();
    assert_eq!((job.status, bench.starts(JOB)), (JobStatus::Success, 1), "{text}\n{}", bench.log());
    let moved = text.lines().filter(|line| line.contains("rescheduled to another instance")).collect::<Vec<_>>();
    assert!(moved.len() == 1 && moved[0].contains(&lost[0]), "{text}");
}
