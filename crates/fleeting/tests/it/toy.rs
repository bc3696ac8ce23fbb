//! Tests host and SDK together, with the toy plugin as a process.

use std::path::Path;
use std::process::{Command, Stdio};

use muster_fleeting::host::{CallError, Group, PluginSpec, PluginStatus};
use muster_fleeting::model::Features;
use muster_fleeting::model::{InstanceId, InstanceState};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const TOY: &str = env!("CARGO_BIN_EXE_fleeting-plugin-toy");

async fn toy(config: serde_json::Value) -> Group {
    let mut spec = PluginSpec::new(TOY);
    spec.config = config;
    spec.timeouts.restart_first = std::time::Duration::from_millis(1);
    Group::start(spec).await.unwrap()
}

fn id(name: &str) -> InstanceId {
    InstanceId::new(name)
}

fn pid(group: &Group) -> i32 {
    match &*group.status().borrow() {
        PluginStatus::Up { pid } => i32::try_from(*pid).unwrap(),
        other => panic!("not running: {other:?}"),
    }
}

fn is_alive(pid: i32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[tokio::test]
async fn instances_are_created_listed_connected_and_deleted() {
    let group = toy(json!({"Name": "one", "colour": "red"})).await;
    assert_eq!(group.info().id, "toy/one", "the key `Name` sets the name of the group");
    assert_eq!(group.info().max_size, 100);
    assert!(group.update().await.unwrap().instances.is_empty());

    assert_eq!(group.increase(2).await.unwrap(), 2);
    let first = group.update().await.unwrap();
    assert_eq!(first.instances[&id("instance-1")], InstanceState::Creating);
    let second = group.update().await.unwrap();
    assert_eq!(second.instances[&id("instance-2")], InstanceState::Running);

    let info = group.connect_info(&id("instance-1")).await.unwrap();
    assert_eq!(info.internal_addr, "127.0.0.1");
    assert_eq!(
        info.connector.timeout,
        std::time::Duration::from_secs(600),
        "the plugin must return the default that the host sent"
    );
    group.heartbeat(&id("instance-1")).await.unwrap();

    let removed = group.decrease(&[id("instance-1"), id("instance-9")]).await.unwrap();
    assert_eq!(removed, [id("instance-1"), id("instance-9")], "case P14: an unknown instance counts as deleted");
    assert_eq!(group.update().await.unwrap().instances[&id("instance-1")], InstanceState::Deleting);
    assert!(!group.update().await.unwrap().instances.contains_key(&id("instance-1")));
    group.stop().await;
}

#[tokio::test]
async fn p10_error_message_reaches_the_caller() {
    let group = toy(json!({})).await;
    let error = group.heartbeat(&id("instance-7")).await.unwrap_err();
    assert!(
        matches!(&error, CallError::Refused { message, .. } if message == "instance instance-7 does not exist"),
        "{error}"
    );
    group.stop().await;
}

#[tokio::test]
async fn p12_instances_accepted_before_an_error_are_reported() {
    let group = toy(json!({"max_size": 3})).await;
    assert_eq!(group.increase(5).await.unwrap(), 3, "the group has capacity for three of the five instances");
    let error = group.increase(5).await.unwrap_err();
    assert!(
        error.to_string().contains("the group is full"),
        "a request of which nothing is accepted must be an error: {error}"
    );
    group.stop().await;
}

#[tokio::test]
async fn p11_instances_suspended_before_an_error_are_reported() {
    let group = toy(json!({"suspendable": true})).await;
    group.increase(1).await.unwrap();
    let suspended = group.suspend(&[id("instance-1"), id("instance-9")]).await.unwrap();
    assert_eq!(suspended, [id("instance-1")]);
    assert_eq!(group.update().await.unwrap().instances[&id("instance-1")], InstanceState::Suspending);
    assert_eq!(group.update().await.unwrap().instances[&id("instance-1")], InstanceState::Suspended);
    assert_eq!(group.resume(&[id("instance-1")]).await.unwrap(), [id("instance-1")]);
    let error = group.suspend(&[id("instance-9")]).await.unwrap_err();
    assert!(error.to_string().contains("instance instance-9 does not exist"), "{error}");
    group.stop().await;
}

#[tokio::test]
async fn h13_suspend_is_not_called_without_capability() {
    let group = toy(json!({})).await;
    let error = group.suspend(&[id("instance-1")]).await.unwrap_err();
    assert!(error.to_string().ends_with("capability not supported: suspend_resume"), "{error}");
    group.stop().await;
}

#[tokio::test]
async fn plugin_without_extension_works() {
    let group = toy(json!({})).await;
    assert_eq!(group.features(), Features::default());
    assert!(matches!(group.offers().await, Err(CallError::NoCapability { capability: "offers", .. })));
    assert!(matches!(group.notices().await.err(), Some(CallError::NoCapability { capability: "notices", .. })));
    assert!(matches!(
        group.resource_usage(&[]).await,
        Err(CallError::NoCapability { capability: "resource_usage", .. })
    ));
    assert_eq!(group.host_keys(&id("any")).await.unwrap(), Vec::<String>::new());
    group.prepare(&id("any"), "1").await.unwrap();
    group.cleanup(&id("any"), "1").await.unwrap();
    group.stop().await;
}

#[tokio::test]
async fn rejected_settings_return_the_plugins_message() {
    for (config, expected) in [
        (json!({"max_size": 0}), "Init failed: max_size must be at least 1"),
        (
            json!({"max_size": "many"}),
            "Init failed: plugin_config: max_size: expected a non-negative integer, found string",
        ),
        (json!([]), "Init failed: unmarshaling config: cannot use a list as a table of settings"),
    ] {
        let mut spec = PluginSpec::new(TOY);
        spec.config = config;
        let error = Group::start(spec).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn h19_killed_plugin_is_restarted() {
    let group = toy(json!({})).await;
    let first = pid(&group);
    let mut status = group.status();
    kill_process(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    status.wait_for(|status| matches!(status, PluginStatus::Down { .. })).await.unwrap();
    status.wait_for(|status| matches!(status, PluginStatus::Up { .. })).await.unwrap();
    assert_ne!(pid(&group), first);
    assert_eq!(group.increase(1).await.unwrap(), 1, "the new process must receive Init");
    group.stop().await;
}

#[tokio::test]
async fn h11_stop_leaves_no_process() {
    let group = toy(json!({})).await;
    let process = pid(&group);
    let status = group.status();
    group.stop().await;
    assert!(matches!(&*status.borrow(), PluginStatus::Stopped));
    assert!(!is_alive(process));
}

#[test]
fn p15_plugin_exits_with_its_host() {
    // Runs this test again as a host process that is killed.
    if std::env::var_os("MUSTER_TEST_HOST").is_some() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let group = toy(json!({})).await;
            println!("plugin {}", pid(&group));
            std::future::pending::<()>().await;
        });
    }
    let mut host = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "toy::p15_plugin_exits_with_its_host", "--nocapture"])
        .env("MUSTER_TEST_HOST", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(host.stdout.take().unwrap()));
    let plugin = lines.find_map(|line| line.unwrap().strip_prefix("plugin ")?.trim().parse().ok()).unwrap();
    assert!(is_alive(plugin));
    let pidfd = rustix::process::pidfd_open(Pid::from_raw(plugin).unwrap(), rustix::process::PidfdFlags::empty())
        .expect("the system must support and permit pidfd_open");
    host.kill().unwrap();
    host.wait().unwrap();
    let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&timeout)).unwrap(), 1, "the plugin must exit with its host");
}

#[test]
fn p1_manual_start_prints_usage() {
    let output = Command::new(TOY).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("not meant to be executed directly"));
}

#[test]
fn p3_p4_p5_command_line_prints_version_and_bootstraps() {
    for flag in ["-version", "--version", "version"] {
        let output = Command::new(TOY).arg(flag).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let labels: Vec<&str> = text.lines().map(|line| line.split(':').next().unwrap()).collect();
        let expected = ["Name", "Version", "Git revision", "Git ref", "GO version", "Built", "OS/Arch", ""];
        assert_eq!((output.status.code(), labels.as_slice()), (Some(0), expected.as_slice()), "{flag}");
    }
    assert_eq!(Command::new(TOY).arg("-unknown").output().unwrap().status.code(), Some(2));
    assert_eq!(Command::new(TOY).arg("bootstrap").output().unwrap().status.code(), Some(1));
    let plugins = tempfile::TempDir::new().unwrap();
    let output = Command::new(TOY)
        .args(["bootstrap", "registry.example/Group/toy:1"])
        .env("FLEETING_PLUGIN_PATH", plugins.path())
        .output()
        .unwrap();
    let directory = plugins.path().join("registry.example/!group/toy").join(env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), directory.to_str().unwrap());
    assert!(directory.join("plugin").is_file());
    let outside =
        Command::new(TOY).args(["bootstrap", "../../x"]).env("FLEETING_PLUGIN_PATH", plugins.path()).output().unwrap();
    assert_eq!(outside.status.code(), Some(1), "a repository outside of the directory must be rejected");
}

#[cfg(feature = "install")]
#[test]
fn bootstrapped_plugin_is_found_in_the_store() {
    use muster_fleeting::install::Store;

    let plugins = tempfile::TempDir::new().unwrap();
    for repository in ["registry.example:5000/Group/toy", "[2001:db8::1]:5000/Group/toy", "[2001:db8::1]/group/toy"] {
        let mut command = Command::new(TOY);
        command.args(["bootstrap", repository]).env("FLEETING_PLUGIN_PATH", plugins.path());
        assert!(command.status().unwrap().success(), "{repository}");
    }
    let found = Store::new(plugins.path()).list();
    let found: Vec<String> = found.iter().map(|installed| installed.repository.to_string()).collect();
    assert_eq!(found, ["[2001:db8::1]/group/toy", "[2001:db8::1]:5000/Group/toy", "registry.example:5000/Group/toy"]);
}
