//! Executor `instance` with a virtual machine for each job (`vm_isolation`): the instances of the plugin `local` run a nesting daemon
//! whose machines have an SSH server each.

use std::path::Path;
use std::process::Command;

use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::Job;
use muster_tests::bench::Bench;
use muster_tests::machines::Part;
use muster_tests::process::plugin_local;
use muster_tests::vms::{self, NO_IMAGE, Nest, write_key};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use crate::instances::held_in_its_preparation;
use crate::life::{self, Lines};

const JOB: JobId = JobId(1);
const NEXT: JobId = JobId(2);
/// Script that prints its machine and waits until the file `go` exists.
const WAITS: &str = "echo \"home=$HOME image=$VM_IMAGE\"; echo $$ >> \"$MARKS/started-$CI_JOB_ID\"; until test -e \"$MARKS/go\"; do sleep 0.02; done";

async fn world(nest: &Nest, concurrent: usize, autoscaler: &str, isolation: &str) -> Bench {
    let table = nest.table(isolation);
    Bench::with_instances(concurrent, &format!("{autoscaler}\n    {table}"), "").await
}

/// Starts an environment with one instance, on whose machine a job waits.
async fn with_a_job() -> (Nest, Bench) {
    let nest = Nest::start();
    let bench = world(&nest, 1, "max_instances = 1", "image = \"base\"").await;
    bench.push(1, &[WAITS], &json!({}));
    until("the job runs", || bench.starts(JOB) == 1).await;
    (nest, bench)
}

/// Waits for an effect of other processes.
async fn until(what: &str, is_so: impl FnMut() -> bool) {
    assert!(muster_tests::process::until(is_so).await, "waited in vain: {what}");
}

/// Checks that no machine is left.
async fn none_left(bench: &Bench, nest: &Nest) {
    let is_none = muster_tests::process::until(|| nest.daemon.machines().is_empty()).await;
    assert!(is_none, "{:?}\n{}", nest.daemon.machines(), bench.log());
}

fn image(name: &str) -> Value {
    json!({ "image": { "name": name } })
}

fn reason(job: &Job) -> Option<&str> {
    job.reports().last().unwrap().failure_reason.as_deref()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_jobs_at_once_on_one_instance_have_a_machine_each_which_goes_with_its_job() {
    let nest = Nest::start();
    let mut bench = world(
        &nest,
        2,
        "max_instances = 1\n    capacity_per_instance = 2\n    delete_instances_on_shutdown = true",
        "image = \"base\"",
    )
    .await;
    bench.push(1, &[WAITS], &image("ubuntu-$CI_JOB_ID"));
    bench.push(2, &[WAITS], &json!({}));
    until("both run", || bench.starts(JOB) + bench.starts(NEXT) == 2).await;
    let machines = nest.daemon.machines();
    let mut slots: Vec<_> = machines.values().map(|machine| machine.slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, [Some(0), Some(1)], "the slots of the instance");
    assert_eq!(bench.machines.names().len(), 1);
    std::fs::write(bench.path("go"), "").unwrap();
    let instance = bench.machines.names().remove(0);
    for (id, image) in [(JOB, "ubuntu-1"), (NEXT, "base")] {
        let job = bench.coordinator.wait_for_end(id).await;
        let text = job.text();
        assert_eq!(job.status, JobStatus::Success, "{text}\n{}", bench.log());
        let (machine, known) = machines.iter().find(|(_, machine)| machine.image == image).unwrap();
        let home = nest.home(machine);
        assert!(text.contains(&format!("home={} image={image}", home.display())), "in its own machine: {text}");
        let told = [
            "Preparing instance...".to_owned(),
            format!("Dialing instance {instance}..."),
            format!("Instance {instance} connected"),
            "Enforcing VM Isolation".to_owned(),
            "Dialing nesting daemon".to_owned(),
            "Creating nesting VM tunnel".to_owned(),
            format!("Creating nesting VM {image}"),
            format!("Created nesting VM {machine} {}", known.address),
        ];
        let places: Vec<_> =
            told.iter().map(|line| text.find(line).unwrap_or_else(|| panic!("{line}: {text}"))).collect();
        assert!(places.is_sorted(), "{text}");
        assert!(!Path::new(&bench.path("machines")).join(&instance).join("builds").exists(), "nothing on the instance");
    }
    none_left(&bench, &nest).await;
    assert_eq!(nest.daemon.initialized(), (1, br#"{"image_directory":"/images"}"#.to_vec()));
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
    assert_eq!(nest.daemon.created_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_job_of_another_project_finds_nothing_of_the_one_that_had_its_slot_before() {
    let nest = Nest::start();
    let bench = world(&nest, 1, "max_instances = 1", "image = \"base\"").await;
    let leaves = "echo \"home=$HOME\"; ls \"$HOME\" | grep -c left; echo secret > \"$HOME/left\"; (sleep 1000 > /dev/null 2>&1 &)";
    let homes = async |id: i64| {
        bench.push(id, &[leaves], &json!({}));
        let job = bench.coordinator.wait_for_end(JobId(id)).await;
        let text = job.text();
        assert!(text.contains("Created nesting VM nesting-"), "{text}\n{}", bench.log());
        let home = text.lines().find_map(|line| line.strip_prefix("home=")).map(str::to_owned);
        (home.unwrap_or_else(|| panic!("{text}")), text.lines().any(|line| line == "0"))
    };
    let (first, second) = (homes(1).await, homes(2).await);
    assert!(first.1 && second.1, "{first:?} {second:?}");
    assert_ne!(first.0, second.0);
    assert_eq!(bench.machines.names().len(), 1, "on the same instance");
    none_left(&bench, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_job_takes_its_machine_with_it() {
    let (nest, bench) = with_a_job().await;
    bench.coordinator.set_status(JOB, JobStatus::Canceling);
    let job = bench.coordinator.wait_for(JOB, |job| job.reports().count() == 1).await;
    assert_eq!(reason(&job), Some("job_canceled"), "{}", job.text());
    none_left(&bench, &nest).await;

    // The job is canceled while its machine is created. The job does not wait for it; the machine is deleted once it exists.
    nest.vms.hold(true);
    bench.push(2, &[WAITS], &json!({}));
    nest.vms.begun(2).await;
    bench.coordinator.set_status(NEXT, JobStatus::Canceling);
    let job = bench.coordinator.wait_for(NEXT, |job| job.reports().count() == 1).await;
    assert_eq!(reason(&job), Some("job_canceled"), "{}", job.text());
    nest.vms.hold(false);
    until("the machine is made", || nest.daemon.created_count() == 2).await;
    none_left(&bench, &nest).await;

    let lines = Lines::any(&mut StdRng::seed_from_u64(11));
    bench.push(3, &[&lines.script()], &json!({}));
    let job = bench.coordinator.wait_for_end(JobId(3)).await;
    life::check_success(&bench, JobId(3), &job, lines);
    assert!(!job.text().contains("Stomped"), "{}", job.text());
    none_left(&bench, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_is_not_made_is_tried_again_and_then_the_job_fails_with_the_daemons_words() {
    let nest = Nest::start();
    // The daemon belongs to one instance.
    let bench = world(&nest, 1, "max_instances = 1", "").await;
    nest.vms.fail(1);
    let lines = Lines::any(&mut StdRng::seed_from_u64(12));
    bench.push(1, &[&lines.script()], &image("ubuntu"));
    let job = bench.coordinator.wait_for_end(JOB).await;
    life::check_success(&bench, JOB, &job, lines);
    let text = job.text();
    let moved = |line: &&str| line.contains("no space left") && line.contains("rescheduled to another virtual machine");
    assert_eq!(text.lines().filter(moved).count(), 1, "{text}");

    bench.push(2, &["echo never"], &image(NO_IMAGE));
    let job = bench.coordinator.wait_for_end(NEXT).await;
    let text = job.text();
    assert_eq!(reason(&job), Some("runner_system_failure"), "{text}");
    for part in ["instance local-", "nesting daemon at unix://", "no such image", "the instance has the image"] {
        assert!(text.contains(part), "{part}: {text}");
    }

    bench.push(3, &["echo never"], &json!({}));
    let job = bench.coordinator.wait_for_end(JobId(3)).await;
    assert!(job.text().contains("no nesting VM image specified"), "{}", job.text());
    assert_eq!(reason(&job), Some("runner_system_failure"));
    none_left(&bench, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_is_killed_finds_its_jobs_machine_again_and_removes_those_of_nobody() {
    let nest = Nest::start();
    let autoscaler = "max_instances = 1\n    capacity_per_instance = 2\n    delete_instances_on_shutdown = true";
    let mut bench = world(&nest, 2, autoscaler, "image = \"base\"").await;
    let lines = Lines::any(&mut StdRng::seed_from_u64(13));
    bench.push(1, &["until test -e \"$MARKS/go\"; do sleep 0.02; done", &lines.script()], &json!({}));
    bench.coordinator.wait_for(JOB, |job| job.text().contains("until test -e")).await;
    // When the second machine exists, it has no job, because the manager that requested it was killed.
    nest.vms.hold(true);
    bench.push(2, &[&lines.script()], &json!({}));
    nest.vms.begun(2).await;
    let kept: Vec<String> = nest.daemon.machines().into_keys().collect();
    bench.kill_manager();
    nest.vms.hold(false);
    until("a machine of nobody", || nest.daemon.machines().len() == 2).await;

    bench.start_manager();
    // The second job gets its own machine.
    let job = bench.coordinator.wait_for_end(NEXT).await;
    life::check_success(&bench, NEXT, &job, lines);
    assert!(bench.log().contains("orphaned virtual machine deleted"), "{}", bench.log());
    assert_eq!(nest.daemon.created_count(), 3);
    until("only that of the first job is left", || nest.daemon.machines().into_keys().eq(kept.iter().cloned())).await;

    std::fs::write(bench.path("go"), "").unwrap();
    let job = bench.coordinator.wait_for_end(JOB).await;
    life::check_success(&bench, JOB, &job, lines);
    assert_eq!(job.assignments, 1);
    none_left(&bench, &nest).await;
    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
    assert_eq!(bench.machines.names(), [""; 0], "{}", bench.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_machine_is_lost_ends_at_once_with_the_reason() {
    let (nest, bench) = with_a_job().await;
    let machine = nest.daemon.machines().into_keys().next().unwrap();
    nest.daemon.forget(&machine);
    nest.vms.crash(&machine).await;
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert_eq!(reason(&job), Some("runner_system_failure"), "{}", job.text());
    let text = job.text();
    assert!(text.contains(&format!("virtual machine {machine} on instance local-")), "{text}");
    assert!(text.contains("no longer lists it"), "{text}");
    // The instance is healthy, so the next job gets a machine there.
    let lines = Lines::any(&mut StdRng::seed_from_u64(14));
    bench.push(2, &[&lines.script()], &json!({}));
    let job = bench.coordinator.wait_for_end(NEXT).await;
    life::check_success(&bench, NEXT, &job, lines);
    none_left(&bench, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_machine_ends_its_job_and_its_instance_serves_on() {
    let (nest, bench) = with_a_job().await;
    let machine = nest.daemon.machines().into_keys().next().unwrap();
    let instances = bench.machines.names();
    assert!(nest.freeze() > 1);
    let job = bench.coordinator.wait_for_end(JOB).await;
    let text = job.text();
    assert_eq!(reason(&job), Some("runner_system_failure"), "{text}");
    let lost = format!("virtual machine {machine} on instance {} was lost: it does not respond", instances[0]);
    assert!(text.contains(&lost), "{text}");
    let lines = Lines::any(&mut StdRng::seed_from_u64(16));
    bench.push(2, &[&lines.script()], &json!({}));
    let job = bench.coordinator.wait_for_end(NEXT).await;
    life::check_success(&bench, NEXT, &job, lines);
    assert_eq!(bench.machines.names(), instances, "the instance is kept: {}", bench.log());
    none_left(&bench, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_lost_while_its_job_is_prepared_costs_the_job_nothing_but_a_line() {
    let nest = Nest::start();
    let bench = world(&nest, 1, "max_instances = 1", "image = \"base\"").await;
    held_in_its_preparation(&bench).await;
    let machine = nest.daemon.machines().into_keys().next().unwrap();
    std::fs::write(bench.path("go"), "").unwrap();
    nest.daemon.forget(&machine);
    nest.vms.crash(&machine).await;
    let job = bench.coordinator.wait_for_end(NEXT).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}\n{}", bench.log());
    let moved: Vec<_> =
        text.lines().filter(|line| line.contains("so the job was rescheduled to another virtual machine")).collect();
    assert_eq!(moved.len(), 1, "{text}");
    assert!(moved[0].contains(&machine), "{text}");
    assert_eq!((bench.starts(NEXT), job.assignments), (1, 1));
    none_left(&bench, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_goes_with_its_instance_and_the_job_says_so() {
    let (nest, bench) = with_a_job().await;
    let instance = bench.machines.names().remove(0);
    assert_eq!(bench.machines.kill(Part::Machine), 1);
    let job = bench.coordinator.wait_for_end(JOB).await;
    let text = job.text();
    assert_eq!(reason(&job), Some("runner_system_failure"), "{text}");
    assert!(text.contains(&format!("instance {instance} was lost: ")), "{text}");
    // The next instance uses the same daemon, finds the remaining machine and deletes it.
    let lines = Lines::any(&mut StdRng::seed_from_u64(15));
    bench.push(2, &[&lines.script()], &json!({}));
    let job = bench.coordinator.wait_for_end(NEXT).await;
    life::check_success(&bench, NEXT, &job, lines);
    assert!(!job.text().contains(&format!("Instance {instance} connected")), "{}", job.text());
    none_left(&bench, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn switched_on_by_a_reload_a_common_build_directory_waits_for_the_machines_that_the_restart_brings() {
    let nest = Nest::start();
    let autoscaler =
        "max_instances = 1\n    capacity_per_instance = 2\n  [runners.instance]\n    use_common_build_dir = true";
    let mut bench = Bench::with_instances(1, autoscaler, "").await;
    until("the start", || bench.log().contains("Starting multi-runner")).await;
    let plugin = "[runners.autoscaler.plugin_config]";
    let table = nest.table("image = \"base\"");
    bench.edit(plugin, &format!("{table}\n    {plugin}"));
    until("the reload", || bench.log().contains("vm_isolation.enabled: default -> true")).await;
    let directory = async |bench: &Bench, id: i64| {
        bench.push(id, &["echo \"directory=$CI_PROJECT_DIR\""], &json!({}));
        let text = bench.coordinator.wait_for_end(JobId(id)).await.text();
        let line = text.lines().find_map(|line| line.strip_prefix("directory=")).map(str::to_owned);
        (line.unwrap_or_else(|| panic!("{text}\n{}", bench.log())), text)
    };
    let (before, text) = directory(&bench, 1).await;
    assert!(before.ends_with("/0/group/p1"), "another job may come beside it: {before}");
    assert!(text.contains("use_common_build_dir has no effect") && !text.contains("nesting"), "{text}");

    assert_eq!(bench.stop_manager().await, Some(0), "{}", bench.log());
    bench.start_manager();
    let (after, text) = directory(&bench, 2).await;
    assert!(after.ends_with("/builds/group/p2") && text.contains("Created nesting VM"), "{after}: {text}");
    none_left(&bench, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_nobody_can_log_in_to_is_removed_and_the_job_says_where_and_what_to_do() {
    let nest = Nest::start();
    let table = nest.table("image = \"base\"").replace("timeout = \"30s\"", "timeout = \"500ms\"");
    let bench = Bench::with_instances(1, &format!("max_instances = 1\n    {table}"), "").await;
    nest.vms.make_unreachable(u32::MAX);
    bench.push(1, &["echo never"], &json!({}));
    let job = bench.coordinator.wait_for_end(JOB).await;
    let text = job.text();
    assert_eq!(reason(&job), Some("runner_system_failure"), "{text}");
    for part in ["instance local-", "/nesting-1", "127.0.0.1:9", "see vm_isolation.connector_config for its connection"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(nest.daemon.created_count(), 3, "each on the instance that is there: {}", bench.log());
    none_left(&bench, &nest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_without_its_daemon_gets_no_job_and_the_log_says_why() {
    let nest = Nest::start();
    let table = nest.table("image = \"base\"").replace("nesting.sock", "nobody.sock");
    let bench = Bench::with_instances(1, &format!("max_instances = 1\n    {table}"), "").await;
    bench.push(1, &["echo never >> \"$MARKS/started-1\""], &json!({}));
    let why = "check that it runs on the instance and that nesting_host is right";
    until("the reason", || bench.log().contains(why)).await;
    let log = bench.log();
    let line = log.lines().find(|line| line.contains(why)).unwrap();
    assert!(line.contains("local-") && line.contains("nobody.sock"), "{line}");
    assert_eq!(bench.starts(JOB), 0, "it does not run on the bare instance");
}

/// Program that the backend `tart` of GitLab's daemon runs. Its machines are processes with an SSH server.
const TART: &str = r#"#!/bin/sh
set -eu
cd "$(dirname "$0")"
for word; do case $word in nesting-*) name=$word ;; esac; done
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
delete) kill "$(cat "vm-$name/pid")" && mv "vm-$name" "gone-$name" ;;
esac
"#;

#[tokio::test(flavor = "multi_thread")]
async fn gitlabs_daemon_makes_the_machines_of_jobs() {
    let Some(daemon) = muster_test_needs::variable("MUSTER_TEST_NESTING", "GitLab's nesting daemon") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let authorized = write_key(&path("key"));
    std::fs::write(path("authorized"), format!("{authorized}\n")).unwrap();
    std::fs::write(path("script"), TART).unwrap();
    // Another process writes the file, because a file that a child of this process has open for writing cannot be executed.
    let install = Command::new("install").args(["-m", "755"]).args([path("script"), path("tart")]).status();
    assert!(install.unwrap().success());
    let search = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let mut daemon = tokio::process::Command::new(daemon)
        .args(["serve", "-hypervisor", "tart"])
        .env("NESTING_SOCKET", path("nesting.sock"))
        .env("PLUGIN", plugin_local())
        .env("PATH", search)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    until("the daemon serves", || path("nesting.sock").exists()).await;
    let table = vms::table(&path("nesting.sock"), &path("key"), "image = \"base\"");
    let bench = Bench::with_instances(1, &format!("max_instances = 1\n    {table}"), "").await;
    for id in [JOB, NEXT] {
        bench.push(id.0, &["echo \"home=$HOME image=$VM_IMAGE\""], &json!({}));
        let job = bench.coordinator.wait_for_end(id).await;
        let text = job.text();
        assert_eq!(job.status, JobStatus::Success, "{text}\n{}", bench.log());
        assert!(
            text.contains(&format!("home={}", path("vm-nesting-").display())) && text.contains("image=base"),
            "{text}"
        );
        assert!(text.contains("Created nesting VM nesting-"), "{text}");
    }
    let machines = |start: &str| {
        let all = std::fs::read_dir(folder.path()).unwrap().flatten();
        all.filter(|entry| entry.file_name().to_string_lossy().starts_with(start)).count()
    };
    until("both machines are removed", || (machines("vm-"), machines("gone-")) == (0, 2)).await;
    daemon.kill().await.unwrap();
}
