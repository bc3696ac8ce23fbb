//! Configuration changes while jobs run on instances.

use muster_job::{JobId, JobStatus};
use muster_tests::harness::Harness;
use muster_tests::machines::ProcessKind;
use serde_json::json;

const JOB: JobId = JobId(1);
/// Records its start, and waits until the file `go` exists.
const WAITING_SCRIPT: &str =
    "echo $$ >> \"$MARKS/started-$CI_JOB_ID\"; until test -e \"$MARKS/go\"; do sleep 0.02; done; echo continued";

async fn wait_until(description: &str, harness: &Harness, condition: impl FnMut() -> bool) {
    assert!(
        muster_tests::process::wait_until(condition).await,
        "timed out waiting until {description}\n{}",
        harness.log()
    );
}

async fn start_waiting_job(harness: &Harness) -> Vec<String> {
    harness.push(JOB.0, &[WAITING_SCRIPT], &json!({}));
    wait_until("the job starts", harness, || harness.start_count(JOB) == 1).await;
    let machines = harness.machines.names();
    assert!(!machines.is_empty());
    machines
}

async fn finish_job(harness: &Harness) {
    std::fs::write(harness.path("go"), "").unwrap();
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, harness.start_count(JOB)), (JobStatus::Success, 1), "{}\n{}", job.text(), harness.log());
}

/// Kills the manager while a job runs, and starts it with a changed configuration. The job must not be affected.
async fn restart_with_change(from: &str, to: &str) {
    restart_with(async |harness| {
        harness.replace_in_config(from, to);
        harness.start_manager();
    })
    .await;
}

/// Kills the manager while a job runs. `start` starts it again. The job must not be affected.
async fn restart_with(start: impl AsyncFnOnce(&mut Harness)) {
    let autoscaler = "max_instances = 2\n    instance_ready_command = \"echo ready >> $HOME/ready\"\n    \
                      delete_instances_on_shutdown = true";
    let mut harness = Harness::with_instances(1, autoscaler, "").await;
    let machines = start_waiting_job(&harness).await;
    harness.kill_manager();
    start(&mut harness).await;
    wait_until("the new manager follows the job", &harness, || {
        harness.log().matches("connected to the agent").count() >= 2
    })
    .await;
    finish_job(&harness).await;
    assert_eq!(harness.machines.names(), machines);
    let ready = harness.machines.paths_in_homes("ready").map(|path| std::fs::read_to_string(path).unwrap());
    assert_eq!(ready.collect::<Vec<_>>(), ["ready\n"]);
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
    assert_eq!(harness.machines.names(), [""; 0], "{}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn renamed_runner_keeps_its_job_and_instance() {
    restart_with_change("name = \"ours\"", "name = \"renamed\"").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runner_with_new_token_keeps_its_job_and_instance() {
    // The runner has no `id`, and its token has changed, so the manager recognizes the runner by its URL and name.
    restart_with_change("token = \"", "token = \"glrt-new-").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_of_runner_with_new_token_waits_until_its_ledger_can_be_opened() {
    restart_with(async |harness| {
        let (ledgers, hidden) = (harness.path("state/instances"), harness.path("state/hidden"));
        std::fs::rename(&ledgers, &hidden).unwrap();
        std::fs::write(&ledgers, "").unwrap();
        harness.replace_in_config("token = \"", "token = \"glrt-new-");
        harness.start_manager();
        wait_until("the failure is reported", harness, || harness.log().contains("failed to open the ledger")).await;
        std::fs::remove_file(&ledgers).unwrap();
        std::fs::rename(hidden, ledgers).unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_of_removed_runner_are_deleted_after_its_last_job() {
    let idle = "max_instances = 3\n    [[runners.autoscaler.policy]]\n      idle_count = 1\n      idle_time = \"1h\"";
    let mut harness = Harness::with_instances(1, idle, "").await;
    start_waiting_job(&harness).await;
    harness.write_config("concurrent = 1\n");
    harness.signal("HUP");
    wait_until("the runner is removed", &harness, || harness.log().contains("was removed")).await;
    finish_job(&harness).await;
    wait_until("no instance remains", &harness, || harness.machines.names().is_empty()).await;
    let files = || std::fs::read_dir(harness.path("state/instances")).unwrap().flatten().map(|file| file.path());
    let is_of_ledger = |file: &std::path::Path| {
        file.extension().is_some_and(|extension| extension == "ledger" || extension == "owner")
    };
    wait_until("the ledger and its owner file are deleted", &harness, || !files().any(|file| is_of_ledger(&file)))
        .await;
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
}

/// Regression test: the manager logged that all instances were deleted, and deleted the ledger.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_ledger_of_removed_runner_is_kept() {
    let idle = "max_instances = 1\n    [[runners.autoscaler.policy]]\n      idle_count = 1\n      idle_time = \"1h\"";
    let mut harness = Harness::with_instances(1, idle, "").await;
    wait_until("an instance exists", &harness, || !harness.machines.names().is_empty()).await;
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
    let machines = harness.machines.names();
    let files = std::fs::read_dir(harness.path("state/instances")).unwrap().flatten().map(|file| file.path());
    let ledgers: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "ledger")).collect();
    let [ledger] = ledgers.as_slice() else { panic!("{ledgers:?}") };
    std::fs::write(ledger, "nonsense\n").unwrap();

    harness.start_manager();
    wait_until("the ledger is read", &harness, || harness.log().contains("failed to start the scaler")).await;
    harness.write_config("concurrent = 1\n");
    harness.signal("HUP");
    let message = "failed to read the ledger, so the remaining instances are unknown";
    wait_until("the runner is removed", &harness, || harness.log().contains(message)).await;
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
    assert!(!harness.log().contains("all instances deleted"), "{}", harness.log());
    assert_eq!(harness.machines.names(), machines, "{}", harness.log());
    assert_eq!(std::fs::read_to_string(ledger).unwrap(), "nonsense\n");
    harness.machines.kill_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn job_survives_missing_plugin_and_ends_after_configuration_is_reloaded() {
    let mut harness = Harness::with_instances(1, "max_instances = 1", "").await;
    let machines = start_waiting_job(&harness).await;
    harness.kill_manager();
    harness.replace_in_config("    plugin = \"", "    plugin = \"/missing");
    harness.start_manager();
    wait_until("the missing plugin is reported", &harness, || harness.log().contains("failed to start the scaler"))
        .await;
    assert_eq!(harness.coordinator.job(JOB).unwrap().status, JobStatus::Running);
    harness.replace_in_config("    plugin = \"/missing", "    plugin = \"");
    harness.signal("HUP");
    finish_job(&harness).await;
    assert_eq!(harness.machines.names(), machines);
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn runner_added_by_reload_deletes_instance_of_finished_job() {
    let mut harness = Harness::with_instances(1, "max_instances = 1", "").await;
    start_waiting_job(&harness).await;
    harness.kill_manager();
    let previous = harness.write_config("concurrent = 1\n");
    harness.start_manager();
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert!(job.text().contains("its runner was removed from the configuration"), "{}", job.text());
    wait_until("the instance is reported", &harness, || {
        harness.log().contains("no manager uses or deletes the instances")
    })
    .await;
    harness.write_config(&previous);
    harness.signal("HUP");
    wait_until("no instance remains", &harness, || harness.machines.names().is_empty()).await;
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn graceful_shutdown_deletes_idle_instances() {
    let idle = "max_instances = 5\n    [[runners.autoscaler.policy]]\n      idle_count = 2\n      idle_time = \"1h\"";
    let mut harness = Harness::with_instances(1, idle, "").await;
    start_waiting_job(&harness).await;
    wait_until("two instances are idle", &harness, || harness.machines.names().len() == 3).await;
    harness.signal("QUIT");
    wait_until("only the instance of the job remains", &harness, || harness.machines.names().len() == 1).await;
    finish_job(&harness).await;
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
    assert_eq!(harness.machines.names(), [""; 0], "the last instance is deleted after its job: {}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn job_is_rescheduled_when_instance_is_lost_during_prepare_command() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display();
    let plugin_keys = format!("prepare_command = [\"sh\", \"-c\", \"mkdir {path}/first || exit 0; exec sleep 50\"]");
    let harness = Harness::with_instances(1, "max_instances = 2", &plugin_keys).await;
    harness.push(JOB.0, &["echo ran >> \"$MARKS/started-1\""], &json!({}));
    wait_until("the plugin prepares the instance", &harness, || directory.path().join("first").exists()).await;
    let lost = harness.machines.names();
    assert_eq!(harness.machines.kill(ProcessKind::PersistentInstance), 1);
    let job = harness.coordinator.wait_for_end(JOB).await;
    let text = job.text();
    assert_eq!((job.status, harness.start_count(JOB)), (JobStatus::Success, 1), "{text}\n{}", harness.log());
    let notes = text.lines().filter(|line| line.contains("rescheduled to another instance")).collect::<Vec<_>>();
    assert!(notes.len() == 1 && notes[0].contains(&lost[0]), "{text}");
}
