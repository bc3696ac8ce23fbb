//! Executor `instance` with a virtual machine (VM) for each job (`vm_isolation`).
//!
//! A fake nesting daemon replaces the daemon of each instance. The last test uses GitLab's daemon with a fake
//! hypervisor.

use std::path::Path;

use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::Job;
use muster_tests::harness::Harness;
use muster_tests::machines::ProcessKind;
use muster_tests::process::plugin_local;
use muster_tests::vms::{self, MISSING_IMAGE, NestingFixture, write_key};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::checks::{self, Lines};
use crate::instances::start_job_with_endless_preparation;

const JOB: JobId = JobId(1);
const NEXT: JobId = JobId(2);
/// Prints its home directory and image, records its start, and waits until the file `go` exists.
const WAITING_SCRIPT: &str = "echo \"home=$HOME image=$VM_IMAGE\"; echo $$ >> \"$MARKS/started-$CI_JOB_ID\"; until test -e \"$MARKS/go\"; do sleep 0.02; done";

/// Starts a manager whose jobs run in VMs. `isolation` has additional keys of `vm_isolation`.
async fn start_harness(nest: &NestingFixture, concurrent: usize, autoscaler: &str, isolation: &str) -> Harness {
    let table = nest.table(isolation);
    Harness::with_instances(concurrent, &format!("{autoscaler}\n    {table}"), "").await
}

async fn start_with_waiting_job() -> (NestingFixture, Harness) {
    let nest = NestingFixture::start();
    let harness = start_harness(&nest, 1, "max_instances = 1", "image = \"base\"").await;
    harness.push(1, &[WAITING_SCRIPT], &json!({}));
    wait_until("the job runs", || harness.start_count(JOB) == 1).await;
    (nest, harness)
}

async fn wait_until(description: &str, condition: impl FnMut() -> bool) {
    assert!(muster_tests::process::wait_until(condition).await, "timed out waiting until {description}");
}

async fn wait_until_no_vm(harness: &Harness, nest: &NestingFixture) {
    let is_empty = muster_tests::process::wait_until(|| nest.daemon.machines().is_empty()).await;
    assert!(is_empty, "{:?}\n{}", nest.daemon.machines(), harness.log());
}

fn image(name: &str) -> Value {
    json!({ "image": { "name": name } })
}

fn failure_reason(job: &Job) -> Option<&str> {
    job.reports().last().unwrap().failure_reason.as_deref()
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_jobs_on_one_instance_have_separate_virtual_machines() {
    let nest = NestingFixture::start();
    let mut harness = start_harness(
        &nest,
        2,
        "max_instances = 1\n    capacity_per_instance = 2\n    delete_instances_on_shutdown = true",
        "image = \"base\"",
    )
    .await;
    harness.push(1, &[WAITING_SCRIPT], &image("ubuntu-$CI_JOB_ID"));
    harness.push(2, &[WAITING_SCRIPT], &json!({}));
    wait_until("both jobs run", || harness.start_count(JOB) + harness.start_count(NEXT) == 2).await;
    let machines = nest.daemon.machines();
    let mut slots: Vec<_> = machines.values().map(|machine| machine.slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, [Some(0), Some(1)], "both slots of the instance must be used");
    assert_eq!(harness.machines.names().len(), 1);
    std::fs::write(harness.path("go"), "").unwrap();
    let instance = harness.machines.names().remove(0);
    for (id, image) in [(JOB, "ubuntu-1"), (NEXT, "base")] {
        let job = harness.coordinator.wait_for_end(id).await;
        let text = job.text();
        assert_eq!(job.status, JobStatus::Success, "{text}\n{}", harness.log());
        let (machine, details) = machines.iter().find(|(_, machine)| machine.image == image).unwrap();
        let home = nest.home(machine);
        assert!(
            text.contains(&format!("home={} image={image}", home.display())),
            "the job must run in its own VM: {text}"
        );
        let expected = [
            "Preparing instance...".to_owned(),
            format!("Dialing instance {instance}..."),
            format!("Instance {instance} connected"),
            "Enforcing VM Isolation".to_owned(),
            "Dialing nesting daemon".to_owned(),
            "Creating nesting VM tunnel".to_owned(),
            format!("Creating nesting VM {image}"),
            format!("Created nesting VM {machine} {}", details.address),
        ];
        let positions: Vec<_> =
            expected.iter().map(|line| text.find(line).unwrap_or_else(|| panic!("{line}: {text}"))).collect();
        assert!(positions.is_sorted(), "{text}");
        assert!(
            !Path::new(&harness.path("machines")).join(&instance).join("builds").exists(),
            "the job must leave no files on the instance itself"
        );
    }
    wait_until_no_vm(&harness, &nest).await;
    assert_eq!(nest.daemon.init_calls(), (1, br#"{"image_directory":"/images"}"#.to_vec()));
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
    assert_eq!(nest.daemon.created_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn next_job_in_a_slot_gets_a_clean_virtual_machine() {
    let nest = NestingFixture::start();
    let harness = start_harness(&nest, 1, "max_instances = 1", "image = \"base\"").await;
    let script = "echo \"home=$HOME\"; ls \"$HOME\" | grep -c leftover; echo secret > \"$HOME/leftover\"; (sleep 1000 > /dev/null 2>&1 &)";
    // Returns the home directory of the job, and whether it had no file of an earlier job.
    let run_job = async |id: i64| {
        harness.push(id, &[script], &json!({}));
        let job = harness.coordinator.wait_for_end(JobId(id)).await;
        let text = job.text();
        assert!(text.contains("Created nesting VM nesting-"), "{text}\n{}", harness.log());
        let home = text.lines().find_map(|line| line.strip_prefix("home=")).map(str::to_owned);
        (home.unwrap_or_else(|| panic!("{text}")), text.lines().any(|line| line == "0"))
    };
    let (first, second) = (run_job(1).await, run_job(2).await);
    assert!(first.1 && second.1, "{first:?} {second:?}");
    assert_ne!(first.0, second.0);
    assert_eq!(harness.machines.names().len(), 1, "the jobs must run on the same instance");
    wait_until_no_vm(&harness, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn virtual_machine_of_canceled_job_is_deleted() {
    let (nest, harness) = start_with_waiting_job().await;
    harness.coordinator.set_status(JOB, JobStatus::Canceling);
    let job = harness.coordinator.wait_for(JOB, |job| job.reports().count() == 1).await;
    assert_eq!(failure_reason(&job), Some("job_canceled"), "{}", job.text());
    wait_until_no_vm(&harness, &nest).await;

    // The second job is canceled while its VM is being created. It does not wait for the VM, which is deleted after its
    // creation.
    nest.vms.pause_creations();
    harness.push(2, &[WAITING_SCRIPT], &json!({}));
    nest.vms.wait_for_creations(2).await;
    harness.coordinator.set_status(NEXT, JobStatus::Canceling);
    let job = harness.coordinator.wait_for(NEXT, |job| job.reports().count() == 1).await;
    assert_eq!(failure_reason(&job), Some("job_canceled"), "{}", job.text());
    nest.vms.resume_creations();
    wait_until("the VM is created", || nest.daemon.created_count() == 2).await;
    wait_until_no_vm(&harness, &nest).await;

    let lines = Lines::random(&mut StdRng::seed_from_u64(11));
    harness.push(3, &[&lines.script()], &json!({}));
    let job = harness.coordinator.wait_for_end(JobId(3)).await;
    checks::check_success(&harness, JobId(3), &job, lines);
    assert!(!job.text().contains("Stomped"), "{}", job.text());
    wait_until_no_vm(&harness, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_vm_creation_is_retried_and_then_fails_job_with_reason() {
    let nest = NestingFixture::start();
    // There is only one instance, because all instances would use the same daemon.
    let harness = start_harness(&nest, 1, "max_instances = 1", "").await;
    nest.vms.fail_creations(1);
    let lines = Lines::random(&mut StdRng::seed_from_u64(12));
    harness.push(1, &[&lines.script()], &image("ubuntu"));
    let job = harness.coordinator.wait_for_end(JOB).await;
    checks::check_success(&harness, JOB, &job, lines);
    let text = job.text();
    let is_note =
        |line: &&str| line.contains("no space left") && line.contains("rescheduled to another virtual machine");
    assert_eq!(text.lines().filter(is_note).count(), 1, "{text}");

    harness.push(2, &["echo never"], &image(MISSING_IMAGE));
    let job = harness.coordinator.wait_for_end(NEXT).await;
    let text = job.text();
    assert_eq!(failure_reason(&job), Some("runner_system_failure"), "{text}");
    for part in ["instance local-", "nesting daemon at unix://", "no such image", "the instance has the image"] {
        assert!(text.contains(part), "{part}: {text}");
    }

    harness.push(3, &["echo never"], &json!({}));
    let job = harness.coordinator.wait_for_end(JobId(3)).await;
    assert!(job.text().contains("no nesting VM image specified"), "{}", job.text());
    assert_eq!(failure_reason(&job), Some("runner_system_failure"));
    wait_until_no_vm(&harness, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_manager_keeps_vm_of_its_job_and_deletes_orphaned_vms() {
    let nest = NestingFixture::start();
    let autoscaler = "max_instances = 1\n    capacity_per_instance = 2\n    delete_instances_on_shutdown = true";
    let mut harness = start_harness(&nest, 2, autoscaler, "image = \"base\"").await;
    let lines = Lines::random(&mut StdRng::seed_from_u64(13));
    harness.push(1, &["until test -e \"$MARKS/go\"; do sleep 0.02; done", &lines.script()], &json!({}));
    harness.coordinator.wait_for(JOB, |job| job.text().contains("until test -e")).await;
    // The manager is killed while the VM of the second job is being created, so this VM belongs to no job.
    nest.vms.pause_creations();
    harness.push(2, &[&lines.script()], &json!({}));
    nest.vms.wait_for_creations(2).await;
    let first_vm: Vec<String> = nest.daemon.machines().into_keys().collect();
    harness.kill_manager();
    nest.vms.resume_creations();
    wait_until("the orphaned VM is created", || nest.daemon.machines().len() == 2).await;

    harness.start_manager();
    // The second job gets another VM.
    let job = harness.coordinator.wait_for_end(NEXT).await;
    checks::check_success(&harness, NEXT, &job, lines);
    assert!(harness.log().contains("orphaned virtual machine deleted"), "{}", harness.log());
    assert_eq!(nest.daemon.created_count(), 3);
    wait_until("only the VM of the first job remains", || {
        nest.daemon.machines().into_keys().eq(first_vm.iter().cloned())
    })
    .await;

    std::fs::write(harness.path("go"), "").unwrap();
    let job = harness.coordinator.wait_for_end(JOB).await;
    checks::check_success(&harness, JOB, &job, lines);
    assert_eq!(job.assignments, 1);
    wait_until_no_vm(&harness, &nest).await;
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
    assert_eq!(harness.machines.names(), [""; 0], "{}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn vm_of_job_canceled_before_the_plugin_starts_is_deleted() {
    let (nest, mut harness) = start_with_waiting_job().await;
    harness.kill_manager();
    harness.replace_in_config("    plugin = \"", "    plugin = \"/missing");
    harness.start_manager();
    wait_until("the missing plugin is reported", || harness.log().contains("failed to start the scaler")).await;
    harness.coordinator.set_status(JOB, JobStatus::Canceling);
    let job = harness.coordinator.wait_for(JOB, |job| job.reports().count() == 1).await;
    assert_eq!(failure_reason(&job), Some("job_canceled"), "{}", job.text());
    harness.replace_in_config("    plugin = \"/missing", "    plugin = \"");
    harness.signal("HUP");
    wait_until_no_vm(&harness, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_fails_with_reason_when_its_vm_is_lost() {
    let (nest, harness) = start_with_waiting_job().await;
    let machine = nest.daemon.machines().into_keys().next().unwrap();
    nest.daemon.lose_machine(&machine);
    nest.vms.crash(&machine).await;
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!(failure_reason(&job), Some("runner_system_failure"), "{}", job.text());
    let text = job.text();
    assert!(text.contains(&format!("virtual machine {machine} on instance local-")), "{text}");
    assert!(text.contains("no longer lists it"), "{text}");
    let lines = Lines::random(&mut StdRng::seed_from_u64(14));
    harness.push(2, &[&lines.script()], &json!({}));
    let job = harness.coordinator.wait_for_end(NEXT).await;
    checks::check_success(&harness, NEXT, &job, lines);
    wait_until_no_vm(&harness, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unresponsive_vm_fails_its_job_and_its_instance_is_kept() {
    let (nest, harness) = start_with_waiting_job().await;
    let machine = nest.daemon.machines().into_keys().next().unwrap();
    let instances = harness.machines.names();
    assert!(nest.freeze() > 1);
    let job = harness.coordinator.wait_for_end(JOB).await;
    let text = job.text();
    assert_eq!(failure_reason(&job), Some("runner_system_failure"), "{text}");
    let lost = format!("virtual machine {machine} on instance {} was lost: it does not respond", instances[0]);
    assert!(text.contains(&lost), "{text}");
    let lines = Lines::random(&mut StdRng::seed_from_u64(16));
    harness.push(2, &[&lines.script()], &json!({}));
    let job = harness.coordinator.wait_for_end(NEXT).await;
    checks::check_success(&harness, NEXT, &job, lines);
    assert_eq!(harness.machines.names(), instances, "the instance must be kept: {}", harness.log());
    wait_until_no_vm(&harness, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_in_preparation_is_rescheduled_when_its_vm_is_lost() {
    let nest = NestingFixture::start();
    let harness = start_harness(&nest, 1, "max_instances = 1", "image = \"base\"").await;
    start_job_with_endless_preparation(&harness).await;
    let machine = nest.daemon.machines().into_keys().next().unwrap();
    std::fs::write(harness.path("go"), "").unwrap();
    nest.daemon.lose_machine(&machine);
    nest.vms.crash(&machine).await;
    let job = harness.coordinator.wait_for_end(NEXT).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}\n{}", harness.log());
    let notes: Vec<_> =
        text.lines().filter(|line| line.contains("so the job was rescheduled to another virtual machine")).collect();
    assert_eq!(notes.len(), 1, "{text}");
    assert!(notes[0].contains(&machine), "{text}");
    assert_eq!((harness.start_count(NEXT), job.assignments), (1, 1));
    wait_until_no_vm(&harness, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_whose_instance_is_lost_fails_and_its_log_names_the_instance() {
    let (nest, harness) = start_with_waiting_job().await;
    let instance = harness.machines.names().remove(0);
    assert_eq!(harness.machines.kill(ProcessKind::PersistentInstance), 1);
    let job = harness.coordinator.wait_for_end(JOB).await;
    let text = job.text();
    assert_eq!(failure_reason(&job), Some("runner_system_failure"), "{text}");
    assert!(text.contains(&format!("instance {instance} was lost: ")), "{text}");
    // The next instance uses the same daemon, so the manager finds the orphaned VM and deletes it.
    let lines = Lines::random(&mut StdRng::seed_from_u64(15));
    harness.push(2, &[&lines.script()], &json!({}));
    let job = harness.coordinator.wait_for_end(NEXT).await;
    checks::check_success(&harness, NEXT, &job, lines);
    assert!(!job.text().contains(&format!("Instance {instance} connected")), "{}", job.text());
    wait_until_no_vm(&harness, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn common_build_dir_has_no_effect_until_vm_isolation_is_active() {
    let nest = NestingFixture::start();
    let autoscaler =
        "max_instances = 1\n    capacity_per_instance = 2\n  [runners.instance]\n    use_common_build_dir = true";
    let mut harness = Harness::with_instances(1, autoscaler, "").await;
    wait_until("the manager starts", || harness.log().contains("Starting multi-runner")).await;
    let plugin = "[runners.autoscaler.plugin_config]";
    let table = nest.table("image = \"base\"");
    harness.replace_in_config(plugin, &format!("{table}\n    {plugin}"));
    wait_until("the configuration is reloaded", || harness.log().contains("vm_isolation.enabled: default -> true"))
        .await;
    let project_dir = async |harness: &Harness, id: i64| {
        harness.push(id, &["echo \"directory=$CI_PROJECT_DIR\""], &json!({}));
        let text = harness.coordinator.wait_for_end(JobId(id)).await.text();
        let line = text.lines().find_map(|line| line.strip_prefix("directory=")).map(str::to_owned);
        (line.unwrap_or_else(|| panic!("{text}\n{}", harness.log())), text)
    };
    let (before, text) = project_dir(&harness, 1).await;
    assert!(before.ends_with("/0/group/p1"), "the directory must be the one of slot 0, not a common one: {before}");
    assert!(text.contains("use_common_build_dir has no effect") && !text.contains("nesting"), "{text}");

    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
    harness.start_manager();
    let (after, text) = project_dir(&harness, 2).await;
    assert!(after.ends_with("/builds/group/p2") && text.contains("Created nesting VM"), "{after}: {text}");
    wait_until_no_vm(&harness, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_vm_is_deleted_and_job_fails_with_advice() {
    let nest = NestingFixture::start();
    let table = nest.table("image = \"base\"").replace("timeout = \"30s\"", "timeout = \"500ms\"");
    let harness = Harness::with_instances(1, &format!("max_instances = 1\n    {table}"), "").await;
    nest.vms.make_unreachable(u32::MAX);
    harness.push(1, &["echo never"], &json!({}));
    let job = harness.coordinator.wait_for_end(JOB).await;
    let text = job.text();
    assert_eq!(failure_reason(&job), Some("runner_system_failure"), "{text}");
    for part in
        ["instance local-", "/nesting-1", "127.0.0.1:9", "vm_isolation.connector_config configures the connection"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(nest.daemon.created_count(), 3, "expected three attempts on the same instance: {}", harness.log());
    wait_until_no_vm(&harness, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instance_without_nesting_daemon_gets_no_job_and_reason_is_logged() {
    let nest = NestingFixture::start();
    let table = nest.table("image = \"base\"").replace("nesting.sock", "missing.sock");
    let harness = Harness::with_instances(1, &format!("max_instances = 1\n    {table}"), "").await;
    harness.push(1, &["echo never >> \"$MARKS/started-1\""], &json!({}));
    let advice = "check that it runs on the instance and that nesting_host is correct";
    wait_until("the reason is logged", || harness.log().contains(advice)).await;
    let log = harness.log();
    let line = log.lines().find(|line| line.contains(advice)).unwrap();
    assert!(line.contains("local-") && line.contains("missing.sock"), "{line}");
    assert_eq!(harness.start_count(JOB), 0, "the job must not run on the instance itself");
}

/// Fake of the program `tart`, which GitLab's daemon runs. Its VMs are processes with an SSH server.
const TART: &str = r#"#!/bin/sh
set -eu
cd "$(dirname "$0")"
for argument; do case $argument in nesting-*) name=$argument ;; esac; done
case $1 in
clone) mkdir "vm-$3" && echo "$2" >"vm-$3/image" ;;
run)
    export HOME="$PWD/vm-$name" VM_IMAGE="$(cat "vm-$name/image")"
    cd "$HOME"
    (cat ../authorized && exec sh -c 'echo $$ >pid && exec sleep 100000') | "$PLUGIN" instance >port ;;
ip)
    until [ -s "vm-$name/port" ]; do sleep 0.02; done
    echo "127.0.0.1:$(cut -d ' ' -f 1 "vm-$name/port")" ;;
list) echo "Source Name"; for vm in vm-*; do [ ! -e "$vm" ] || echo "local ${vm#vm-}"; done ;;
delete) kill "$(cat "vm-$name/pid")" && mv "vm-$name" "deleted-$name" ;;
esac
"#;

#[tokio::test(flavor = "multi_thread")]
async fn nesting_daemon_of_gitlab_creates_virtual_machines() {
    let Some(daemon) = muster_test_prerequisites::variable("MUSTER_TEST_NESTING", "GitLab's nesting daemon") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let authorized = write_key(&path("key"));
    std::fs::write(path("authorized"), format!("{authorized}\n")).unwrap();
    muster_test_prerequisites::create_program(path("tart"), TART);
    let search_path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let mut daemon = tokio::process::Command::new(daemon)
        .args(["serve", "-hypervisor", "tart"])
        .env("NESTING_SOCKET", path("nesting.sock"))
        .env("PLUGIN", plugin_local())
        .env("PATH", search_path)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    wait_until("the daemon listens", || path("nesting.sock").exists()).await;
    let table = vms::vm_isolation_table(&path("nesting.sock"), &path("key"), "image = \"base\"");
    let harness = Harness::with_instances(1, &format!("max_instances = 1\n    {table}"), "").await;
    for id in [JOB, NEXT] {
        harness.push(id.0, &["echo \"home=$HOME image=$VM_IMAGE\""], &json!({}));
        let job = harness.coordinator.wait_for_end(id).await;
        let text = job.text();
        assert_eq!(job.status, JobStatus::Success, "{text}\n{}", harness.log());
        assert!(
            text.contains(&format!("home={}", path("vm-nesting-").display())) && text.contains("image=base"),
            "{text}"
        );
        assert!(text.contains("Created nesting VM nesting-"), "{text}");
    }
    let machines = |prefix: &str| {
        let entries = std::fs::read_dir(directory.path()).unwrap().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)).count()
    };
    wait_until("both VMs are deleted", || (machines("vm-"), machines("deleted-")) == (0, 2)).await;
    daemon.kill().await.unwrap();
}
