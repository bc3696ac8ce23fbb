//! Tests the plugin as a process under Muster's host, with a fake docker-machine.

#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use fleeting_plugin_local::server;
use muster_fleeting::conformance::{self, Outcome, Plan};
use muster_fleeting::host::{Group, PluginSpec, PluginStatus, StartError};
use muster_fleeting::model::{InstanceId, InstanceState};
use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, PrivateKey};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

const TIMEOUT: Duration = Duration::from_secs(30);

const PLUGIN: &str = env!("CARGO_BIN_EXE_fleeting-plugin-docker-machine");

struct FakeDockerMachine(TempDir);

impl FakeDockerMachine {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn enable(&self, fault: &str) {
        std::fs::write(self.path(fault), "").unwrap();
    }

    fn disable(&self, fault: &str) {
        std::fs::remove_file(self.path(fault)).unwrap();
    }

    fn add_machine(&self, name: &str, state: &str) {
        std::fs::create_dir_all(self.path("machines").join(name)).unwrap();
        std::fs::write(self.path("machines").join(name).join("state"), state).unwrap();
    }

    fn machines(&self) -> Vec<String> {
        let Ok(directory) = std::fs::read_dir(self.path("machines")) else { return Vec::new() };
        directory.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    fn provider_machines(&self) -> usize {
        std::fs::read_dir(self.path("cloud")).map_or(0, Iterator::count)
    }

    fn calls(&self) -> String {
        std::fs::read_to_string(self.path("calls")).unwrap_or_default()
    }

    fn config(&self) -> Value {
        json!({
            "MachineDriver": "fake", "MachineName": "auto-%s", "prefix": "runner-abc-",
            "executable": Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake/docker-machine"),
            "storage_path": self.0.path(), "removal_interval_s": 0, "max_size": 5,
        })
    }

    async fn start(&self, configure: impl FnOnce(&mut Value)) -> Result<Group, StartError> {
        let mut spec = PluginSpec::new(PLUGIN);
        spec.config = self.config();
        configure(&mut spec.config);
        spec.timeouts.restart_first = Duration::from_millis(1);
        Group::start(spec).await
    }
}

async fn states(group: &Group) -> Vec<(InstanceId, InstanceState)> {
    let mut states: Vec<_> = group.update().await.unwrap().instances.into_iter().collect();
    states.sort_by(|a, b| a.0.cmp(&b.0));
    states
}

/// Polls, because the protocol has no event for state changes.
async fn wait_for_instances(group: &Group, n: usize, state: InstanceState) -> Vec<InstanceId> {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        let states = states(group).await;
        if states.len() == n && states.iter().all(|(_, actual)| *actual == state) {
            return states.into_iter().map(|(id, _)| id).collect();
        }
        assert!(tokio::time::Instant::now() < deadline, "expected {n} instances in state {state:?}: {states:?}");
    }
}

/// Polls, because docker-machine has no events.
async fn wait_until(condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "the condition did not become true in time");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn machines_are_created_listed_connected_and_removed() {
    let cloud = FakeDockerMachine::new();
    let configure = |config: &mut Value| {
        config["MachineOptions"] = json!(["fake-region=eu-1", "fake-private"]);
        config["MachineOptionsWithName"] = json!(["fake-tag=Name,%s"]);
    };
    let group = cloud.start(configure).await.unwrap();
    assert_eq!(group.info().id, "docker-machine/fake/runner-abc-auto-%s");
    assert_eq!(group.increase(2).await.unwrap(), 2);
    let ids = wait_for_instances(&group, 2, InstanceState::Running).await;
    let name = ids[0].as_str();
    assert!(name.starts_with("runner-abc-auto-"), "{name}");
    let expected = format!("create --driver fake --fake-region=eu-1 --fake-private --fake-tag=Name,{name} {name}\n");
    assert!(cloud.calls().contains(&expected), "{}", cloud.calls());

    let info = group.connect_info(&ids[0]).await.unwrap();
    assert_eq!((info.internal_addr.as_str(), info.external_addr.as_str()), ("10.9.8.7", "10.9.8.7"));
    assert_eq!((info.connector.username.as_str(), info.connector.protocol_port), ("ubuntu", 2222));
    assert_eq!(info.connector.key, format!("the key of {name}\n").into_bytes());
    group.heartbeat(&ids[0]).await.unwrap();
    cloud.add_machine(name, "Error");
    let error = group.heartbeat(&ids[0]).await.unwrap_err().to_string();
    assert!(error.contains("has the state \"Error\" in docker-machine"), "{error}");

    group.decrease(&[ids[0].clone(), InstanceId::new("runner-abc-auto-1-00000000")]).await.unwrap();
    assert_eq!(wait_for_instances(&group, 1, InstanceState::Running).await, ids[1..]);
    assert!(!cloud.path("machines").join(name).exists(), "R040: the key is deleted with the machine");
    group.stop().await;
    assert_eq!(cloud.machines(), [ids[1].as_str()], "a stopping plugin removes no machines");
}

#[tokio::test]
async fn slow_creation_is_reported_and_can_be_canceled() {
    let cloud = FakeDockerMachine::new();
    cloud.enable("create-waits");
    let group = cloud.start(|config| config["MaxGrowthRate"] = json!(1)).await.unwrap();
    group.increase(2).await.unwrap();
    wait_until(|| cloud.machines().len() == 1).await;
    let creating = states(&group).await;
    assert_eq!(creating.iter().map(|(_, state)| *state).collect::<Vec<_>>(), [InstanceState::Creating; 2]);
    assert_eq!(
        cloud.calls().matches("create ").count(),
        1,
        "at most MaxGrowthRate machines are created at the same time"
    );
    let first = InstanceId::new(cloud.machines().remove(0));
    let waiting = creating.iter().map(|(id, _)| id.clone()).find(|id| *id != first).unwrap();
    group.decrease(&[first.clone(), waiting.clone()]).await.unwrap();
    // The waiting machine is not created. The creation in progress is completed, because the provider would keep the
    // machine otherwise.
    wait_until(|| !cloud.path("muster-creating").join(waiting.as_str()).exists()).await;
    assert_eq!(states(&group).await, [(first, InstanceState::Deleting)]);
    assert_eq!(cloud.provider_machines(), 1);
    cloud.disable("create-waits");
    wait_for_instances(&group, 0, InstanceState::Running).await;
    assert_eq!((cloud.machines().len(), cloud.provider_machines()), (0, 0));
    assert_eq!(cloud.calls().matches("create ").count(), 1);
    group.stop().await;
}

#[tokio::test]
async fn remains_of_failed_creation_are_removed() {
    let cloud = FakeDockerMachine::new();
    let group = cloud.start(|_| ()).await.unwrap();
    for fault in ["create-fails", "create-fails-early"] {
        cloud.enable(fault);
        assert_eq!(group.increase(1).await.unwrap(), 1);
        wait_for_instances(&group, 0, InstanceState::Running).await;
        assert_eq!(cloud.machines(), Vec::<String>::new(), "{fault}");
        cloud.disable(fault);
    }
    group.increase(1).await.unwrap();
    wait_for_instances(&group, 1, InstanceState::Running).await;
    group.stop().await;
}

#[tokio::test]
async fn interrupted_creation_is_removed_after_restart() {
    let cloud = FakeDockerMachine::new();
    cloud.enable("create-waits");
    let group = cloud.start(|_| ()).await.unwrap();
    group.increase(1).await.unwrap();
    wait_until(|| cloud.machines().len() == 1).await;
    let mut status = group.status();
    let PluginStatus::Up { pid } = *status.borrow() else { panic!("the plugin is not running") };
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    status.wait_for(|status| matches!(status, PluginStatus::Down { .. })).await.unwrap();
    status.wait_for(|status| matches!(status, PluginStatus::Up { .. })).await.unwrap();
    // docker-machine continues: if it ended before it knows the machine's ID, the provider would keep the machine.
    assert_eq!(states(&group).await.iter().map(|(_, state)| *state).collect::<Vec<_>>(), [InstanceState::Deleting]);
    assert_eq!(cloud.provider_machines(), 1);
    cloud.disable("create-waits");
    wait_for_instances(&group, 0, InstanceState::Running).await;
    assert_eq!((cloud.machines().len(), cloud.provider_machines()), (0, 0));
    assert_eq!(std::fs::read_dir(cloud.path("muster-creating")).unwrap().count(), 0, "no creation marker remains");
    group.stop().await;
}

#[tokio::test]
async fn machine_whose_marker_cannot_be_removed_gets_no_jobs() {
    let fake = FakeDockerMachine::new();
    fake.enable("create-waits");
    let group = fake.start(|_| ()).await.unwrap();
    group.increase(1).await.unwrap();
    wait_until(|| fake.machines().len() == 1).await;
    let marker = fake.path("muster-creating").join(&fake.machines()[0]);
    // Replace the marker with a directory that is not empty, which not even root can remove as if it were a file.
    std::fs::remove_file(&marker).unwrap();
    std::fs::create_dir_all(marker.join("x")).unwrap();
    fake.disable("create-waits");
    wait_until(|| fake.provider_machines() == 0 && fake.machines().is_empty()).await;
    let ready = states(&group).await.into_iter().filter(|(_, state)| *state == InstanceState::Running);
    assert_eq!(ready.count(), 0);
    group.stop().await;
}

#[tokio::test]
async fn other_machines_are_ignored_and_own_machines_are_found() {
    let cloud = FakeDockerMachine::new();
    cloud.add_machine("other", "Running");
    cloud.add_machine("runner-xyz-auto-1700000000-0123abcd", "Stopped");
    cloud.add_machine("runner-abc-auto-1700000000-0123abcd", "Running");
    cloud.add_machine("runner-abc-auto-1700000000-0123abce", "Stopped");
    let group = cloud.start(|_| ()).await.unwrap();
    let ids = wait_for_instances(&group, 1, InstanceState::Running).await;
    assert_eq!(ids[0].as_str(), "runner-abc-auto-1700000000-0123abcd");
    let mut machines = cloud.machines();
    machines.sort();
    assert_eq!(machines, ["other", "runner-abc-auto-1700000000-0123abcd", "runner-xyz-auto-1700000000-0123abcd"]);
    cloud.add_machine(ids[0].as_str(), "Error");
    wait_for_instances(&group, 0, InstanceState::Running).await;
    group.stop().await;
}

#[tokio::test]
async fn failed_removal_is_retried_and_finally_forced() {
    let cloud = FakeDockerMachine::new();
    let group = cloud.start(|config| config["MaxRemovalAttempts"] = json!(3)).await.unwrap();
    group.increase(1).await.unwrap();
    let ids = wait_for_instances(&group, 1, InstanceState::Running).await;
    cloud.enable("rm-fails");
    cloud.enable("rm-force-fails");
    group.decrease(&ids).await.unwrap();
    wait_until(|| cloud.calls().contains("rm -f")).await;
    // A machine that docker-machine still lists remains an instance.
    assert_eq!(states(&group).await, [(ids[0].clone(), InstanceState::Deleting)]);
    cloud.disable("rm-force-fails");
    wait_for_instances(&group, 0, InstanceState::Running).await;
    let (normal, forced) = (format!("rm -y {}\n", ids[0]), format!("rm -f -y {}\n", ids[0]));
    assert_eq!(cloud.calls().matches(&normal).count(), 3);
    assert!(cloud.calls().matches(&forced).count() > 1);
    group.stop().await;
}

#[tokio::test]
async fn failed_list_loses_no_machines() {
    let cloud = FakeDockerMachine::new();
    let group = cloud.start(|_| ()).await.unwrap();
    group.increase(1).await.unwrap();
    wait_for_instances(&group, 1, InstanceState::Running).await;
    cloud.enable("ls-fails");
    let error = group.update().await.unwrap_err().to_string();
    assert!(error.contains("docker-machine ls failed (exit status: 1): cannot list"), "{error}");
    cloud.disable("ls-fails");
    wait_for_instances(&group, 1, InstanceState::Running).await;
    let error = cloud.start(|config| config["executable"] = json!("/nowhere/docker-machine")).await.unwrap_err();
    assert!(error.to_string().contains("failed to start docker-machine ls; check that it exists"), "{error}");
    group.stop().await;
}

/// Requirement R025: an old configuration works unchanged.
#[tokio::test]
async fn old_machine_table_works_unchanged() {
    let cloud = FakeDockerMachine::new();
    let old = r#"
        IdleCount = 1
        IdleTime = 1800
        MaxBuilds = 10
        MaxGrowthRate = 2
        MachineDriver = "fake"
        MachineName = "auto-scale-%s"
        MachineOptions = ["fake-size=4gb"]
        OffPeakTimezone = ""
        [[autoscaling]]
        Periods = ["* * 9-17 * * mon-fri *"]
        IdleCount = 50
    "#;
    let mut config = serde_json::to_value(toml::from_str::<toml::Table>(old).unwrap()).unwrap();
    let own = cloud.config();
    for key in ["executable", "storage_path"] {
        config[key] = own[key].clone();
    }
    let group = cloud.start(|settings| *settings = config).await.unwrap();
    group.increase(1).await.unwrap();
    wait_for_instances(&group, 1, InstanceState::Running).await;
    group.stop().await;
}

/// Requirement R026.
#[test]
fn replaced_keys_and_deprecation_are_logged() {
    let cloud = FakeDockerMachine::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let directory = TempDir::new().unwrap();
    // A wrapper redirects the plugin's log from stderr to a file.
    let wrapper = directory.path().join("fleeting-plugin-docker-machine");
    let log = directory.path().join("log");
    muster_test_prerequisites::create_program(&wrapper, format!("#!/bin/sh\nexec {PLUGIN} 2>{}\n", log.display()));
    let mut spec = PluginSpec::new(&wrapper);
    spec.config = cloud.config();
    spec.config["IdleCount"] = json!(3);
    spec.config["MaxBuilds"] = json!(1);
    runtime.block_on(async { Group::start(spec).await.unwrap().stop().await });
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("set idle_count in [[runners.autoscaler.policy]] instead"), "{log}");
    assert!(log.contains("set max_use_count in [runners.autoscaler] instead"), "{log}");
    assert!(log.contains("will be removed in GitLab 20.0"), "{log}");
}

#[test]
fn reference_page_is_up_to_date() {
    let output = std::process::Command::new(PLUGIN).arg("settings").output().unwrap();
    let reference = String::from_utf8(output.stdout).unwrap();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/plugin-docker-machine.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(&reference), "put this into docs/reference/plugin-docker-machine.md:\n{reference}");
}

/// All machines share one SSH server, which this test runs.
#[tokio::test]
async fn c4_c6_passes_conformance_kit() {
    let cloud = FakeDockerMachine::new();
    let key = || PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519).unwrap();
    let (host, login) = (key(), key());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let private = login.to_openssh(LineEnding::LF).unwrap();
    for (name, text) in [("ssh-ip", "127.0.0.1"), ("ssh-port", &port), ("ssh-key", private.as_str())] {
        std::fs::write(cloud.path(name), text).unwrap();
    }
    tokio::spawn(server::accept(listener, host, login.public_key().clone(), server::Commands::default()));
    let mut plan = Plan::new(PLUGIN);
    plan.config = cloud.config();
    let report = conformance::run(&plan, &mut |_| {}).await;
    for verdict in &report.verdicts {
        let is_expected = match verdict.case.id {
            // This plugin does not support suspended instances.
            "P11" => matches!(verdict.outcome, Outcome::Skip(_)),
            _ => verdict.outcome == Outcome::Pass,
        };
        assert!(is_expected, "{verdict:?}");
    }
    assert_eq!((cloud.machines().len(), cloud.provider_machines()), (0, 0));
}
