//! Tests the plugin as a process under Muster's host. Its machines are SSH servers of the tests.
//!
//! The numbers of the cases (C4 and C6) are those of `docs/spec/fleeting.md`, section 9.

#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fleeting_plugin_local::server;
use muster_fleeting::conformance::{self, Outcome, Plan};
use muster_fleeting::connector::{self, DialOptions};
use muster_fleeting::host::{Group, PluginSpec, PluginStatus, StartError};
use muster_fleeting::model::{InstanceId, InstanceState};
use muster_remote::{Exit, KnownHosts, RemoteCommand, dial};
use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, HashAlg, PrivateKey};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const TIMEOUT: Duration = Duration::from_secs(30);

const PLUGIN: &str = env!("CARGO_BIN_EXE_fleeting-plugin-static");

struct Machine {
    address: SocketAddr,
    host_key: PrivateKey,
    login: PrivateKey,
    server: JoinHandle<()>,
}

fn key() -> PrivateKey {
    PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519).unwrap()
}

impl Machine {
    async fn start() -> Self {
        let (host_key, login) = (key(), key());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Self::serve(listener, &host_key, &login);
        Self { address, host_key, login, server }
    }

    fn serve(listener: TcpListener, host_key: &PrivateKey, login: &PrivateKey) -> JoinHandle<()> {
        let authorized = login.public_key().clone();
        tokio::spawn(server::accept(listener, host_key.clone(), authorized, server::Commands::default()))
    }

    async fn disconnect(&mut self) {
        self.server.abort();
        let _ = (&mut self.server).await;
    }

    async fn reconnect(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.server = Self::serve(listener, &self.host_key, &self.login);
    }

    fn entry(&self, directory: &Path, name: &str) -> Value {
        let key = directory.join(format!("{name}.key"));
        std::fs::write(&key, self.login.to_openssh(LineEnding::LF).unwrap().as_bytes()).unwrap();
        json!({"name": name, "address": self.address.to_string(), "username": "ci", "key_path": key})
    }
}

fn config(directory: &Path, machines: &[Value]) -> Value {
    json!({
        "machines": machines, "state_file": directory.join("leases.json"),
        "health_interval_s": 1, "health_timeout_s": 5,
    })
}

async fn start(config: &Value) -> Result<Group, StartError> {
    let mut spec = PluginSpec::new(PLUGIN);
    spec.config = config.clone();
    spec.timeouts.restart_first = Duration::from_millis(1);
    Group::start(spec).await
}

async fn states(group: &Group) -> Vec<(String, InstanceState)> {
    let instances = group.update().await.unwrap().instances;
    let mut states: Vec<_> = instances.into_iter().map(|(id, state)| (id.to_string(), state)).collect();
    states.sort_by(|a, b| a.0.cmp(&b.0));
    states
}

/// Polls, because the protocol has no event for state changes.
async fn wait_until(failure: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "{failure}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Leases a machine as soon as one is available.
async fn lease_when_available(group: &Group) {
    wait_until("no machine was leased", async || group.increase(1).await.is_ok()).await;
}

async fn wait_until_empty(group: &Group) {
    wait_until("instances still exist", async || states(group).await.is_empty()).await;
}

fn id(name: &str) -> InstanceId {
    InstanceId::new(name)
}

#[tokio::test]
async fn unresponsive_machine_does_not_delay_the_others() {
    let directory = TempDir::new().unwrap();
    let machine = Machine::start().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut unresponsive = machine.entry(directory.path(), "a-unresponsive");
    unresponsive["address"] = json!(silent.local_addr().unwrap().to_string());
    let mut config = config(directory.path(), &[unresponsive, machine.entry(directory.path(), "m1")]);
    config["health_timeout_s"] = json!(3600);
    // Waiting for the unresponsive machine would take half a minute.
    let group = tokio::time::timeout(Duration::from_secs(20), start(&config)).await.unwrap().unwrap();
    assert_eq!(group.increase(2).await.unwrap(), 1);
    assert_eq!(states(&group).await, [("m1/1".to_owned(), InstanceState::Running)]);
    group.stop().await;
}

#[tokio::test]
async fn machines_are_leased_cleaned_up_and_leased_again() {
    let directory = TempDir::new().unwrap();
    let machine = Machine::start().await;
    let mut config = config(directory.path(), &[machine.entry(directory.path(), "m1")]);
    let used = directory.path().join("used");
    config["cleanup_command"] = json!(format!("rm {}", used.display()));
    let group = start(&config).await.unwrap();
    assert_eq!((group.info().id.as_str(), group.info().max_size), ("static/static", 1));
    assert_eq!(group.increase(3).await.unwrap(), 1, "the pool has one machine");
    assert_eq!(states(&group).await, [("m1/1".to_owned(), InstanceState::Running)]);
    let error = group.increase(1).await.unwrap_err().to_string();
    assert!(error.contains("no machine is available: 1 leased, 0 being cleaned up, 0 quarantined"), "{error}");
    group.heartbeat(&id("m1/1")).await.unwrap();

    let info = group.connect_info(&id("m1/1")).await.unwrap();
    let target = connector::target(&id("m1/1"), info, DialOptions::default()).unwrap();
    let session = dial(&target, &KnownHosts::default()).await.unwrap();
    let line = format!("touch {}", used.display());
    assert_eq!(session.run(RemoteCommand::new(&line)).await.unwrap().exit, Exit::Code(0));
    assert!(used.exists());
    session.close().await;

    group.decrease(&[id("m1/1"), id("m1/99")]).await.unwrap();
    lease_when_available(&group).await;
    assert!(!used.exists(), "the machine was cleaned up before its next lease");
    assert_eq!(states(&group).await, [("m1/2".to_owned(), InstanceState::Running)], "a new lease is a new instance");
    group.stop().await;
}

#[tokio::test]
async fn machine_is_not_leased_if_cleanup_fails() {
    let directory = TempDir::new().unwrap();
    let machine = Machine::start().await;
    let mut config = config(directory.path(), &[machine.entry(directory.path(), "m1")]);
    let repaired = directory.path().join("repaired");
    config["cleanup_command"] = json!(format!("[ -e {} ] || {{ echo dirty >&2; exit 4; }}", repaired.display()));
    let group = start(&config).await.unwrap();
    group.increase(1).await.unwrap();
    group.decrease(&[id("m1/1")]).await.unwrap();
    wait_until_empty(&group).await;
    let error = group.increase(1).await.unwrap_err().to_string();
    assert!(error.contains("1 being cleaned"), "{error}");
    std::fs::write(&repaired, "").unwrap();
    lease_when_available(&group).await;
    group.stop().await;
}

#[tokio::test]
async fn slow_cleanup_does_not_delay_other_machines() {
    let directory = TempDir::new().unwrap();
    let (first, mut second) = (Machine::start().await, Machine::start().await);
    let machines = [first.entry(directory.path(), "m1"), second.entry(directory.path(), "m2")];
    let mut config = config(directory.path(), &machines);
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (attempted, slow, proceed) = (path("attempted"), path("slow"), path("proceed"));
    // The first cleanup fails, and the second is slow.
    config["cleanup_command"] = json!(format!(
        "[ -e {attempted} ] || {{ touch {attempted}; exit 1; }}; touch {slow}; while [ ! -e {proceed} ]; do sleep 0.02; done"
    ));
    config["health_timeout_s"] = json!(1);
    second.disconnect().await;
    let group = start(&config).await.unwrap();
    assert_eq!(group.increase(2).await.unwrap(), 1, "m2 is quarantined");
    group.decrease(&[id("m1/1")]).await.unwrap();
    while !Path::new(&slow).exists() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    second.reconnect().await;
    tokio::time::timeout(Duration::from_secs(60), lease_when_available(&group)).await.expect("m2 was not checked");
    assert_eq!(states(&group).await, [("m2/2".to_owned(), InstanceState::Running)]);
    std::fs::write(&proceed, "").unwrap();
    lease_when_available(&group).await;
    group.stop().await;
}

/// Forwards one connection to `machine`. Returns the address, and a task that ends when the client closes the connection.
async fn forward_once(machine: SocketAddr) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let forward = tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_machine, mut to_machine) = TcpStream::connect(machine).await.unwrap().into_split();
        tokio::spawn(async move { tokio::io::copy(&mut from_machine, &mut to_client).await });
        let _ = tokio::io::copy(&mut from_client, &mut to_machine).await;
    });
    (address, forward)
}

#[tokio::test]
async fn connection_is_closed_if_a_check_does_not_end_in_time() {
    let directory = TempDir::new().unwrap();
    let machine = Machine::start().await;
    let (address, forward) = forward_once(machine.address).await;
    let mut entry = machine.entry(directory.path(), "m1");
    entry["address"] = json!(address.to_string());
    let mut config = config(directory.path(), &[entry]);
    let proceed = directory.path().join("proceed");
    config["health_command"] = json!(format!("while [ ! -e {} ]; do sleep 0.02; done", proceed.display()));
    config["health_timeout_s"] = json!(1);
    config["health_interval_s"] = json!(3600);
    let group = start(&config).await.unwrap();
    tokio::time::timeout(TIMEOUT, forward).await.expect("the connection is still open").unwrap();
    let error = group.increase(1).await.unwrap_err().to_string();
    assert!(error.contains("health_command did not finish within 1 s"), "{error}");
    std::fs::write(&proceed, "").unwrap();
    group.stop().await;
}

#[tokio::test]
async fn unreachable_machines_are_quarantined_and_recover() {
    let directory = TempDir::new().unwrap();
    let (mut first, second) = (Machine::start().await, Machine::start().await);
    first.disconnect().await;
    let machines = [first.entry(directory.path(), "m1"), second.entry(directory.path(), "m2")];
    let mut config = config(directory.path(), &machines);
    config["health_timeout_s"] = json!(1);
    let group = start(&config).await.unwrap();
    assert_eq!(group.increase(2).await.unwrap(), 1);
    assert_eq!(states(&group).await, [("m2/1".to_owned(), InstanceState::Running)]);
    let error = group.increase(1).await.unwrap_err().to_string();
    assert!(error.contains("1 quarantined (m1: "), "{error}");
    first.reconnect().await;
    lease_when_available(&group).await;
    assert_eq!(states(&group).await.len(), 2);
    first.disconnect().await;
    let error = group.heartbeat(&id("m1/2")).await.unwrap_err().to_string();
    assert!(error.contains("Heartbeat failed"), "{error}");
    group.stop().await;
}

#[tokio::test]
async fn leases_survive_kill_and_stop_of_the_plugin() {
    let directory = TempDir::new().unwrap();
    let (first, second) = (Machine::start().await, Machine::start().await);
    let machines = [first.entry(directory.path(), "m1"), second.entry(directory.path(), "m2")];
    let config = config(directory.path(), &machines);
    let group = start(&config).await.unwrap();
    group.increase(1).await.unwrap();
    let mut status = group.status();
    let PluginStatus::Up { pid } = *status.borrow() else { panic!("the plugin is not running") };
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    status.wait_for(|status| matches!(status, PluginStatus::Down { .. })).await.unwrap();
    status.wait_for(|status| matches!(status, PluginStatus::Up { .. })).await.unwrap();
    assert_eq!(states(&group).await, [("m1/1".to_owned(), InstanceState::Running)]);
    assert_eq!(group.increase(2).await.unwrap(), 1, "a leased machine is not leased again");

    let error = start(&config).await.unwrap_err().to_string();
    assert!(error.contains("is locked by another plugin (PID "), "{error}");
    group.stop().await;
    let group = start(&config).await.unwrap();
    assert_eq!(states(&group).await.len(), 2, "the leases of the previous process are restored");
    group.stop().await;
}

#[tokio::test]
async fn leased_machine_removed_from_list_survives_restart() {
    let directory = TempDir::new().unwrap();
    let machine = Machine::start().await;
    let list = directory.path().join("machines.toml");
    let write = |text: &str| std::fs::write(&list, text).unwrap();
    let (entry, cleaned) = (machine.entry(directory.path(), "m1"), directory.path().join("cleaned"));
    let key = entry["key_path"].as_str().unwrap();
    let text = format!(
        "[[machines]]\nname = \"m1\"\naddress = \"{}\"\nusername = \"ci\"\nkey_path = \"{key}\"\n",
        machine.address
    );
    write(&text);
    let mut config = config(directory.path(), &[]);
    config["machines_file"] = json!(list);
    config["cleanup_command"] = json!(format!("touch {}", cleaned.display()));
    let group = start(&config).await.unwrap();
    group.increase(1).await.unwrap();
    group.stop().await;
    write("");
    let group = start(&config).await.unwrap();
    assert_eq!(states(&group).await, [("m1/1".to_owned(), InstanceState::Running)]);
    group.heartbeat(&id("m1/1")).await.unwrap();
    group.decrease(&[id("m1/1")]).await.unwrap();
    wait_until_empty(&group).await;
    assert!(cleaned.exists());
    assert!(group.increase(1).await.is_err(), "the machine was removed from the pool");
    group.stop().await;
}

/// Returns a configuration whose only machines are those in a list, which is empty, and the path of the list.
fn config_with_empty_list(directory: &Path) -> (Value, PathBuf) {
    let path = directory.join("machines.toml");
    std::fs::write(&path, "").unwrap();
    let mut config = config(directory, &[]);
    let members = config.as_object_mut().unwrap();
    members.insert("machines_file".to_owned(), json!(path));
    members.insert("health".to_owned(), json!("tcp"));
    (config, path)
}

#[tokio::test]
async fn machines_file_is_reloaded_when_it_changes() {
    let directory = TempDir::new().unwrap();
    let machine = Machine::start().await;
    let (config, path) = config_with_empty_list(directory.path());
    let group = start(&config).await.unwrap();
    assert!(group.increase(1).await.is_err());
    let text = format!("[[machines]]\nname = \"new\"\naddress = \"{}\"\n", machine.address);
    std::fs::write(&path, text).unwrap();
    let reloaded = async {
        while group.increase(1).await.is_err() {
            group.update().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reloaded).await.unwrap();
    assert_eq!(states(&group).await, [("new/1".to_owned(), InstanceState::Running)]);
    group.stop().await;
}

/// Regression test: a list that could not be read was ignored until its modification time changed.
#[tokio::test]
async fn machines_file_that_could_not_be_read_is_read_again() {
    let directory = TempDir::new().unwrap();
    let machine = Machine::start().await;
    let (config, path) = config_with_empty_list(directory.path());
    let group = start(&config).await.unwrap();
    let set_modified = || {
        let modified = std::time::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        std::fs::File::open(&path).unwrap().set_modified(modified).unwrap();
    };
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    set_modified();
    group.update().await.unwrap();
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, format!("[[machines]]\nname = \"new\"\naddress = \"{}\"\n", machine.address)).unwrap();
    set_modified();
    group.update().await.unwrap();
    lease_when_available(&group).await;
    assert_eq!(states(&group).await, [("new/1".to_owned(), InstanceState::Running)]);
    group.stop().await;
}

#[tokio::test]
async fn machine_with_wrong_host_key_is_not_leased() {
    let directory = TempDir::new().unwrap();
    let machine = Machine::start().await;
    let mut entry = machine.entry(directory.path(), "m1");
    entry["host_key"] = json!(machine.host_key.public_key().fingerprint(HashAlg::Sha256).to_string());
    let group = start(&config(directory.path(), &[entry.clone()])).await.unwrap();
    group.increase(1).await.unwrap();
    group.stop().await;
    let other = TempDir::new().unwrap();
    entry["host_key"] = json!(key().public_key().fingerprint(HashAlg::Sha256).to_string());
    let group = start(&config(other.path(), &[entry])).await.unwrap();
    let error = group.increase(1).await.unwrap_err().to_string();
    assert!(error.contains("possibly another machine has this address now"), "{error}");
    group.stop().await;
}

#[tokio::test]
async fn empty_configuration_is_rejected_with_hint() {
    let error = start(&Value::Null).await.unwrap_err().to_string();
    assert!(error.contains("no machines are configured: add [[runners.autoscaler.plugin_config.machines]]"), "{error}");
}

#[test]
fn reference_page_is_up_to_date() {
    let output = std::process::Command::new(PLUGIN).arg("settings").output().unwrap();
    let reference = String::from_utf8(output.stdout).unwrap();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/plugin-static.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(&reference), "put this into docs/reference/plugin-static.md:\n{reference}");
}

/// Runs the cases of `muster plugin test` against the plugin, whose machines all respond.
#[tokio::test]
async fn c4_c6_plugin_passes_conformance_kit() {
    let directory = TempDir::new().unwrap();
    let (a, b) = (Machine::start().await, Machine::start().await);
    let mut plan = Plan::new(PLUGIN);
    plan.config = config(directory.path(), &[a.entry(directory.path(), "a"), b.entry(directory.path(), "b")]);
    let report = conformance::run(&plan, &mut |_| {}).await;
    for verdict in &report.verdicts {
        let is_expected = match verdict.case.id {
            // This plugin does not support suspended instances.
            "P11" => matches!(verdict.outcome, Outcome::Skip(_)),
            _ => verdict.outcome == Outcome::Pass,
        };
        assert!(is_expected, "{verdict:?}");
    }
}
