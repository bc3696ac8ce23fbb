//! Tests the plugin as a process under Muster's host, with shell scripts as programs.

#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use std::path::{Path, PathBuf};

use muster_fleeting::connector::{self, DialOptions};
use muster_fleeting::host::{CallError, Group, PluginSpec, StartError};
use muster_fleeting::model::{InstanceId, InstanceState};
use muster_remote::{Exit, KnownHosts, RemoteCommand, dial};
use serde_json::{Value, json};
use tempfile::TempDir;

const PLUGIN: &str = env!("CARGO_BIN_EXE_fleeting-plugin-script");

async fn start(config: Value) -> Result<Group, StartError> {
    let mut spec = PluginSpec::new(PLUGIN);
    spec.config = config;
    spec.connector.username = "ci".to_owned();
    Group::start(spec).await
}

/// Creates a shell script that implements the calls. `cases` are the branches of its `case $call`, which can store
/// files in the directory `$root`.
fn script(cases: &str) -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("group");
    let root = directory.path().display();
    std::fs::write(&path, format!("root={root}\ncall=$1; shift\ncase $call in\n{cases}\n*) exit 64;;\nesac\n"))
        .unwrap();
    (directory, path)
}

async fn group(cases: &str) -> (TempDir, Group) {
    let (directory, path) = script(cases);
    let group = start(json!({"command": ["sh", path], "settings": {"size": 3, "Zone-Name": "a b"}})).await.unwrap();
    (directory, group)
}

fn ids(names: &[&str]) -> Vec<InstanceId> {
    names.iter().map(|name| InstanceId::new(*name)).collect()
}

#[tokio::test]
async fn output_of_programs_becomes_the_response() {
    let (directory, group) = group(
        "init) echo id example/$SETTING_SIZE; echo max_size 7;;
         increase) echo \"$1 $FLEETING_CALL $SETTING_ZONE_NAME $CONNECTOR_USERNAME\" >$root/increase; cat >$root/input;;
         update) echo 'group/a:1 running'; echo 'b creating';;
         decrease) printf '%s\\n' \"$@\" >$root/decrease;;
         connect-info) echo internal_addr 10.0.0.1; echo username root; echo expires 99;;
         heartbeat) [ $1 = b ] || { echo $1 is unhealthy >&2; exit 1; };;",
    )
    .await;
    assert_eq!((group.info().id.as_str(), group.info().max_size, group.info().can_suspend), ("example/3", 7, false));
    assert_eq!(group.increase(2).await.unwrap(), 2, "success without output means that all instances were accepted");
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    assert_eq!(read("increase"), "2 increase a b ci\n");
    let input: Value = serde_json::from_str(&read("input")).unwrap();
    assert_eq!(input["arguments"], json!(["2"]));
    assert_eq!(input["settings"], json!({"size": 3, "Zone-Name": "a b"}));
    assert_eq!(input["connector"]["timeout_s"], json!(600.0));

    let instances = group.update().await.unwrap().instances;
    assert_eq!(instances[&InstanceId::new("group/a:1")], InstanceState::Running);
    assert_eq!(instances[&InstanceId::new("b")], InstanceState::Creating);
    assert_eq!(group.decrease(&ids(&["group/a:1", "b"])).await.unwrap().len(), 2);
    assert_eq!(read("decrease"), "group/a:1\nb\n");

    let info = group.connect_info(&InstanceId::new("b")).await.unwrap();
    assert_eq!((info.internal_addr.as_str(), info.expires), ("10.0.0.1", Some(99)));
    assert_eq!(info.connector.username, "ci", "the user's setting takes precedence");
    group.heartbeat(&InstanceId::new("b")).await.unwrap();
    let error = group.heartbeat(&InstanceId::new("a")).await.unwrap_err().to_string();
    assert_eq!(error, "plugin script: Heartbeat failed: heartbeat failed (exit status: 1): a is unhealthy");
    group.stop().await;
}

#[tokio::test]
async fn partial_success_is_reported_but_partial_list_is_an_error() {
    let (_directory, group) = group(
        "increase) echo 2; exit 1;;
         decrease) echo a; echo quota exceeded >&2; exit 1;;
         update) echo a running; exit 1;;
         connect-info) echo colour red;;",
    )
    .await;
    assert_eq!(group.increase(5).await.unwrap(), 2);
    assert_eq!(group.decrease(&ids(&["a", "b"])).await.unwrap(), ids(&["a"]));
    let error = group.update().await.unwrap_err();
    assert!(matches!(error, CallError::Refused { .. }), "{error}");
    let error = group.connect_info(&InstanceId::new("a")).await.unwrap_err().to_string();
    assert!(error.contains("connect-info: unknown key `colour`; use internal_addr"), "{error}");
    group.heartbeat(&InstanceId::new("a")).await.unwrap();
    group.stop().await;
}

/// Command-line tools of clouds print various texts. Such output must not cause a retry that creates more machines.
#[tokio::test]
async fn exit_status_0_with_text_instead_of_number_means_all_were_accepted() {
    let (_directory, group) = group(
        "increase) [ $1 != 4 ] || { echo quota exceeded >&2; echo Operation failed; exit 1; }
                   echo Created; echo 'Operation completed over 1 objects.';;
         decrease) echo 'Deleted 2 instances.';;
         update) :;;\nconnect-info) :;;",
    )
    .await;
    assert_eq!(group.increase(2).await.unwrap(), 2);
    let error = group.increase(4).await.unwrap_err().to_string();
    assert!(error.contains("increase failed (exit status: 1): quota exceeded"), "{error}");
    // A deletion can be requested again, so the plugin assumes after invalid output that no deletion was accepted.
    assert_eq!(group.decrease(&ids(&["a", "b"])).await.unwrap(), []);
    group.stop().await;
}

#[tokio::test]
async fn hanging_program_is_killed_and_plugin_continues() {
    let (_directory, path) = script("update) echo waiting >&2; sleep 600;;\nincrease) :;;\nconnect-info) :;;");
    let group = start(json!({"command": ["sh", path], "timeouts_s": {"update": 1}})).await.unwrap();
    let error = group.update().await.unwrap_err().to_string();
    assert!(error.contains("update did not exit within 1 s and was killed; stderr: waiting"), "{error}");
    assert_eq!(group.increase(1).await.unwrap(), 1);
    let error = group.decrease(&ids(&["a"])).await.unwrap_err().to_string();
    assert!(error.contains("decrease: the script does not implement this call"), "{error}");
    group.stop().await;
}

#[tokio::test]
async fn executables_in_directory_implement_calls() {
    let directory = TempDir::new().unwrap();
    let add_program = |call: &str, body: &str| {
        let path = directory.path().join(call);
        muster_test_prerequisites::create_program(&path, format!("#!/bin/sh\n{body}\n"));
    };
    add_program("update", "echo '{\"a\": \"suspended\"}'");
    add_program("increase", "echo '{\"succeeded\": 1}'");
    add_program("decrease", "");
    let error = start(json!({"directory": directory.path()})).await.unwrap_err().to_string();
    assert!(error.contains("connect-info: file not found; this call is required"), "{error}");
    add_program("connect-info", "");
    add_program("suspend", "echo a; exit 1");
    add_program("resume", "");
    add_program("shutdown", "touch \"$(dirname \"$0\")/shutdown-called\"");
    let group = start(json!({"directory": directory.path(), "name": "d"})).await.unwrap();
    assert_eq!(group.info().id, "script/d");
    assert_eq!(group.increase(3).await.unwrap(), 1);
    assert_eq!(group.update().await.unwrap().instances[&InstanceId::new("a")], InstanceState::Suspended);
    assert_eq!(group.suspend(&ids(&["a", "b"])).await.unwrap(), ids(&["a"]));
    assert_eq!(group.resume(&ids(&["a", "b"])).await.unwrap(), ids(&["a", "b"]));
    group.stop().await;
    assert!(directory.path().join("shutdown-called").exists());
}

#[tokio::test]
async fn empty_configuration_is_rejected_with_hint() {
    let error = start(Value::Null).await.unwrap_err().to_string();
    assert!(error.contains("no program is configured: set directory"), "{error}");
}

#[tokio::test]
async fn shell_example_creates_machines_that_run_commands() {
    if !muster_test_prerequisites::sshd() {
        return;
    }
    let directory = TempDir::new().unwrap();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/plugins/shell/sshd-group");
    let text = std::fs::read_to_string(&example).unwrap();
    assert!(text.lines().count() < 100, "the example in shell must have fewer than 100 lines (R022)");
    let mut spec = PluginSpec::new(PLUGIN);
    spec.config = json!({"command": [example], "settings": {"directory": directory.path().join("group")}});
    let group = Group::start(spec).await.unwrap();
    assert_eq!(group.increase(2).await.unwrap(), 2);
    let instances = group.update().await.unwrap().instances;
    assert_eq!(instances.values().collect::<Vec<_>>(), [&InstanceState::Running; 2]);
    let ids: Vec<InstanceId> = instances.into_keys().collect();
    let info = group.connect_info(&ids[0]).await.unwrap();
    let target = connector::target(&ids[0], info, DialOptions::default()).unwrap();
    let session = dial(&target, &KnownHosts::default()).await.unwrap();
    let mut stdout = Vec::new();
    let run = RemoteCommand { stdout: Some(&mut stdout), ..RemoteCommand::new("echo text; exit 5") };
    assert_eq!(session.run(run).await.unwrap().exit, Exit::Code(5));
    assert_eq!(stdout, b"text\n");
    session.close().await;
    assert_eq!(group.decrease(&ids).await.unwrap().len(), 2);
    assert!(group.update().await.unwrap().instances.is_empty());
    group.stop().await;
}

#[test]
fn reference_page_is_up_to_date() {
    let output = std::process::Command::new(PLUGIN).arg("settings").output().unwrap();
    let reference = String::from_utf8(output.stdout).unwrap();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/plugin-script.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(&reference), "put this into docs/reference/plugin-script.md:\n{reference}");
}
