//! Tests the plugin as a process under Muster's host. Instances are reached by SSH.
//!
//! The numbers of the cases (C4 to C8) are those of `docs/spec/fleeting.md`, section 9.

#![expect(clippy::unwrap_used, reason = "a failed test panics")]

mod cleanup;
mod extension;
mod persistent;

use std::path::Path;
use std::time::Duration;

use muster_fleeting::connector::{self, DialOptions};
use muster_fleeting::host::{Group, PluginSpec};
use muster_fleeting::model::{InstanceId, InstanceState};
use muster_remote::{DialError, Exit, KnownHosts, RemoteCommand, RunError, Session, Target, dial};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

async fn group(config: Value) -> Group {
    let mut spec = PluginSpec::new(env!("CARGO_BIN_EXE_fleeting-plugin-local"));
    spec.config = config;
    Group::start(spec).await.unwrap()
}

/// Polls, because the protocol has no event for state changes.
async fn wait_for_instances(group: &Group, state: InstanceState, n: usize) -> Vec<InstanceId> {
    let ids = async {
        loop {
            let instances = group.update().await.unwrap().instances;
            let mut ids: Vec<InstanceId> =
                instances.into_iter().filter(|(_, actual)| *actual == state).map(|(id, _)| id).collect();
            if ids.len() == n {
                ids.sort();
                return ids;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ids).await.unwrap()
}

fn id(target: &Target) -> InstanceId {
    InstanceId::new(target.machine.as_str())
}

async fn target(group: &Group, id: &InstanceId) -> Target {
    connector::target(id, group.connect_info(id).await.unwrap(), DialOptions::default()).unwrap()
}

async fn start_instance(config: Value) -> (Group, Target, Box<dyn Session>) {
    let group = group(config).await;
    assert_eq!(group.increase(1).await.unwrap(), 1);
    let id = wait_for_instances(&group, InstanceState::Running, 1).await.remove(0);
    let target = target(&group, &id).await;
    let session = dial(&target, &KnownHosts::default()).await.unwrap();
    (group, target, session)
}

async fn output(session: &dyn Session, command: &str) -> (Exit, String, String) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let run = RemoteCommand { stdout: Some(&mut stdout), stderr: Some(&mut stderr), ..RemoteCommand::new(command) };
    let outcome = session.run(run).await.unwrap();
    (outcome.exit, String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[tokio::test]
async fn commands_run_in_separate_instances() {
    for isolation in ["auto", "none"] {
        let (group, target, session) = start_instance(json!({ "isolation": isolation })).await;
        let (exit, home, _) = output(&*session, "pwd; echo $HOME").await;
        assert_eq!(exit, Exit::Code(0));
        let lines: Vec<&str> = home.lines().collect();
        assert_eq!(lines[0], lines[1]);
        assert!(lines[0].ends_with(&target.machine));
        let (exit, stdout, stderr) = output(&*session, "echo out; echo err >&2; exit 7").await;
        assert_eq!(
            (exit, stdout.as_str(), stderr.as_str()),
            (Exit::Code(7), "out\n", "err\n"),
            "case C6: exit status and output are correct"
        );
        let (exit, ..) = output(&*session, "kill -9 $$").await;
        assert_eq!(exit, Exit::Code(137));

        // Input is sent completely, and then closed.
        let text = "x".repeat(3_000_000);
        let (mut input, mut count) = (text.as_bytes(), Vec::new());
        let run = RemoteCommand { stdin: Some(&mut input), stdout: Some(&mut count), ..RemoteCommand::new("wc -c") };
        session.run(run).await.unwrap();
        assert_eq!(String::from_utf8(count).unwrap().trim(), "3000000");

        group.decrease(std::slice::from_ref(&id(&target))).await.unwrap();
        wait_for_instances(&group, InstanceState::Deleting, 0).await;
        assert!(!Path::new(lines[0]).exists(), "the directory is removed with the instance");
        group.stop().await;
    }
}

#[tokio::test]
async fn c8_last_part_of_stderr_is_kept_if_the_caller_does_not_read_it() {
    let (group, _, session) = start_instance(json!({})).await;
    let outcome =
        session.run(RemoteCommand::new("yes eeeeeee | head -c 1048576 >&2; echo last >&2; exit 1")).await.unwrap();
    assert_eq!(outcome.exit, Exit::Code(1));
    assert!(outcome.stderr.to_string().ends_with("eeeeeee\nlast\n"));
    let kept_bytes = 32_767;
    assert_eq!(outcome.stderr.omitted(), 1_048_576 + "last\n".len() as u64 - kept_bytes);
    group.stop().await;
}

#[tokio::test]
async fn c7_streams_reach_sockets_in_the_instance() {
    let (group, _, session) = start_instance(json!({"isolation": "none"})).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let echo = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 5];
        stream.read_exact(&mut buffer).await.unwrap();
        stream.write_all(&buffer).await.unwrap();
    };
    let client = async {
        let mut stream = session.dial("tcp", &listener.local_addr().unwrap().to_string()).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        let mut buffer = [0; 5];
        stream.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"hello");
    };
    tokio::join!(echo, client);
    let refused = session.dial("unix", "/nowhere").await.err().unwrap();
    assert!(matches!(refused, RunError::Refused { .. }), "{refused}");

    let mut stream = session.dial_command("tr a-z A-Z").await.unwrap();
    stream.write_all(b"text").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "TEXT");
    group.stop().await;
}

#[tokio::test]
async fn c4_rejected_credentials_fail_immediately() {
    let (group, mut target, _session) = start_instance(json!({})).await;
    target.timeout = Duration::from_secs(3600);
    target.key = Vec::new();
    target.password = "wrong".to_owned();
    let error = dial(&target, &KnownHosts::default()).await.err().unwrap();
    assert!(matches!(error, DialError::Auth { method: "password", .. }), "{error}");
    target.key = b"invalid key".to_vec();
    let error = dial(&target, &KnownHosts::default()).await.err().unwrap();
    assert!(matches!(error, DialError::Key { .. }), "{error}");
    group.stop().await;
}

#[tokio::test]
async fn only_the_first_host_key_is_trusted() {
    let group = group(json!({})).await;
    group.increase(2).await.unwrap();
    let ids = wait_for_instances(&group, InstanceState::Running, 2).await;
    let hosts = KnownHosts::default();
    let first = target(&group, &ids[0]).await;
    dial(&first, &hosts).await.unwrap();
    dial(&first, &hosts).await.unwrap();
    // Another machine responds under the name of the first machine.
    let mut other = target(&group, &ids[1]).await;
    other.machine = ids[0].as_str().to_owned();
    let error = dial(&other, &hosts).await.err().unwrap();
    assert!(matches!(error, DialError::HostKey { .. }), "{error}");
    hosts.forget(ids[0].as_str());
    dial(&other, &hosts).await.unwrap();
    group.stop().await;
}

#[tokio::test]
async fn c5_refused_port_is_retried_until_timeout() {
    let (group, mut target, _session) = start_instance(json!({})).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    target.address = listener.local_addr().unwrap().to_string();
    drop(listener);
    target.timeout = Duration::from_secs(2);
    // From here on, the clock advances automatically to the next timer.
    tokio::time::pause();
    let error = dial(&target, &KnownHosts::default()).await.err().unwrap();
    tokio::time::resume();
    let DialError::Unreachable { tries, .. } = error else { panic!("{error}") };
    assert!((2..40).contains(&tries), "expected 2 to 39 attempts in 2 s (the Go host makes 86,000), found {tries}");
    group.stop().await;
}

#[tokio::test]
async fn canceled_command_is_killed_and_lost_instance_has_no_status() {
    let (group, target, session) = start_instance(json!({})).await;
    let stop = CancellationToken::new();
    let mut line = Vec::new();
    let (mut reader, mut writer) = tokio::io::duplex(64);
    let run = RemoteCommand {
        stdout: Some(&mut writer),
        stop: stop.clone(),
        ..RemoteCommand::new("echo up; exec sleep 600")
    };
    let watch = async {
        while !line.ends_with(b"\n") {
            line.push(reader.read_u8().await.unwrap());
        }
        stop.cancel();
    };
    let (outcome, ()) = tokio::join!(session.run(run), watch);
    assert_eq!(outcome.unwrap().exit, Exit::Code(143), "SIGTERM");

    // A command that does not read its input can be canceled, too.
    let (mut input, mut feed) = tokio::io::duplex(64);
    let stop = CancellationToken::new();
    let run = RemoteCommand { stdin: Some(&mut input), stop: stop.clone(), ..RemoteCommand::new("exec sleep 600") };
    let fill = async {
        feed.write_all(&[b'x'; 1_000_000]).await.unwrap();
        stop.cancel();
    };
    let (outcome, ()) = tokio::join!(session.run(run), fill);
    assert_eq!(outcome.unwrap().exit, Exit::Code(143), "SIGTERM");

    let (mut reader, mut writer) = tokio::io::duplex(64);
    let run = RemoteCommand { stdout: Some(&mut writer), ..RemoteCommand::new("echo up; exec sleep 600") };
    let watch = async {
        reader.read_u8().await.unwrap();
        group.decrease(std::slice::from_ref(&id(&target))).await.unwrap();
    };
    let (lost, ()) = tokio::join!(session.run(run), watch);
    assert!(
        matches!(lost.unwrap_err(), RunError::Lost { .. }),
        "case C6: a lost instance returns no exit status (the Go host returns 0)"
    );
    group.stop().await;
}

#[tokio::test]
async fn cloud_simulator_injects_configured_faults() {
    let group = group(json!({"boot_failure_rate": 1.0, "max_instances_per_request": 2, "max_size": 3})).await;
    assert_eq!(group.increase(5).await.unwrap(), 2, "the request is accepted partially");
    let mut reported = Vec::new();
    while reported.len() < 2 {
        let instances = group.update().await.unwrap().instances;
        reported.extend(instances.into_iter().filter(|(_, state)| *state == InstanceState::Timeout).map(|(id, _)| id));
    }
    assert!(group.update().await.unwrap().instances.is_empty(), "each failure is reported once: {reported:?}");
    group.stop().await;
    // An instance that failed to start is deleted before a list has reported its failure.
    let group = self::group(json!({"boot_failure_rate": 1.0, "boot_delay_ms": 100})).await;
    group.increase(1).await.unwrap();
    let id = wait_for_instances(&group, InstanceState::Creating, 1).await.remove(0);
    while !group.connect_info(&id).await.unwrap_err().to_string().contains("is timeout") {}
    group.decrease(std::slice::from_ref(&id)).await.unwrap();
    assert!(group.update().await.unwrap().instances.is_empty());
    group.stop().await;
    let group = self::group(json!({"preemptions_per_minute": 60_000.0})).await;
    group.increase(1).await.unwrap();
    wait_for_instances(&group, InstanceState::Creating, 0).await;
    wait_for_instances(&group, InstanceState::Running, 0).await;
    group.stop().await;
}

#[test]
fn reference_page_is_up_to_date() {
    let output =
        std::process::Command::new(env!("CARGO_BIN_EXE_fleeting-plugin-local")).arg("settings").output().unwrap();
    let reference = String::from_utf8(output.stdout).unwrap();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/plugin-local.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(&reference), "put this into docs/reference/plugin-local.md:\n{reference}");
}
