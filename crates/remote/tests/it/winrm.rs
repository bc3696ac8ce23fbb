//! WinRM sessions with a server that implements the necessary part of WinRM. WinRM was not tested with a
//! Windows machine.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use muster_remote::{DialError, Exit, KnownHosts, RemoteCommand, RunError, Session, Target, dial};
use roxmltree::Document;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::ssh_server::target;

#[derive(Default)]
pub(crate) struct Machine {
    created_shells: u32,
    /// Shells by ID. The value is the command of the shell, or `None` before a command is started.
    shells: HashMap<String, Option<Command>>,
    /// Number of "timed out" responses before the first output.
    timeouts: u32,
    /// Number of requests to terminate a command that fail.
    failed_signals: u32,
}

struct Command {
    line: String,
    input: Vec<u8>,
    input_ended: bool,
    terminated: bool,
}

pub(crate) type SharedMachine = Arc<Mutex<Machine>>;

fn text(document: &Document<'_>, name: &str) -> Option<String> {
    document.descendants().find(|node| node.tag_name().name() == name).and_then(|node| node.text()).map(str::to_owned)
}

fn fault(code: &str, message: &str) -> (StatusCode, String) {
    let body = format!("<e><Fault><WSManFault Code=\"{code}\"><Message>{message}</Message></WSManFault></Fault></e>");
    (StatusCode::INTERNAL_SERVER_ERROR, body)
}

async fn wsman(State(machine): State<SharedMachine>, headers: HeaderMap, body: String) -> (StatusCode, String) {
    let expected = format!("Basic {}", STANDARD.encode("Administrator:secret"));
    if headers.get("authorization").and_then(|value| value.to_str().ok()) != Some(&expected) {
        return (StatusCode::UNAUTHORIZED, String::new());
    }
    let document = Document::parse(&body).unwrap();
    let action = text(&document, "Action").unwrap();
    let shell = text(&document, "Selector").unwrap_or_default();
    let mut machine = machine.lock().unwrap();
    let answer = match action.rsplit('/').next().unwrap() {
        "Create" => {
            machine.created_shells += 1;
            let id = format!("shell-{}", machine.created_shells);
            machine.shells.insert(id.clone(), None);
            format!("<e><Selector Name=\"ShellId\">{id}</Selector></e>")
        }
        "Delete" => {
            machine.shells.remove(&shell);
            "<e/>".to_owned()
        }
        "Command" => {
            let line = text(&document, "Command").unwrap();
            if line == "forbidden" {
                return fault("5", "Access is denied.");
            }
            let command = Command { line, input: Vec::new(), input_ended: false, terminated: false };
            machine.shells.insert(shell, Some(command));
            "<e><CommandId>c-1</CommandId></e>".to_owned()
        }
        "Send" => {
            let Some(Some(command)) = machine.shells.get_mut(&shell) else { return fault("2150858843", "no shell") };
            let node = document.descendants().find(|node| node.tag_name().name() == "Stream").unwrap();
            command.input.extend(STANDARD.decode(node.text().unwrap_or_default()).unwrap());
            command.input_ended |= node.attribute("End") == Some("true");
            "<e/>".to_owned()
        }
        "Signal" if machine.failed_signals > 0 => {
            machine.failed_signals -= 1;
            return fault("1722", "The server is busy.");
        }
        "Signal" => {
            let Some(Some(command)) = machine.shells.get_mut(&shell) else { return fault("2150858843", "no shell") };
            command.terminated = true;
            "<e/>".to_owned()
        }
        "Receive" => return receive(&mut machine, &shell),
        other => panic!("{other}"),
    };
    (StatusCode::OK, answer)
}

fn receive(machine: &mut Machine, shell: &str) -> (StatusCode, String) {
    let no_output_yet = fault("2150858793", "timed out");
    if machine.timeouts > 0 {
        machine.timeouts -= 1;
        return no_output_yet;
    }
    let Some(Some(command)) = machine.shells.get_mut(shell) else {
        return fault("2150858843", "The shell was not found.");
    };
    let stream = |name: &str, bytes: &[u8]| format!("<Stream Name=\"{name}\">{}</Stream>", STANDARD.encode(bytes));
    let done =
        |exit: &str| format!("<CommandState State=\"s/CommandState/Done\"><ExitCode>{exit}</ExitCode></CommandState>");
    let inner = match command.line.as_str() {
        "count" if !command.input_ended => return no_output_yet,
        "count" => stream("stdout", command.input.len().to_string().as_bytes()) + &done("0"),
        "both & <more>" => stream("stdout", b"out") + &stream("stderr", b"err") + &done("3"),
        "crash" => done("-1073741510"),
        "wait" if command.terminated => done("1"),
        "wait" => stream("stdout", b"up"),
        "lose-shell" => {
            machine.shells.clear();
            return fault("2150858843", "The shell was not found.");
        }
        _ => "<CommandState State=\"s/CommandState/Done\"/>".to_owned(),
    };
    (StatusCode::OK, format!("<e>{inner}</e>"))
}

pub(crate) fn routes(machine: &SharedMachine) -> Router {
    Router::new().route("/wsman", post(wsman)).with_state(Arc::clone(machine))
}

pub(crate) fn winrm_target(address: SocketAddr, protocol: &str) -> Target {
    let mut target = target(address);
    target.protocol = protocol.to_owned();
    target.username = "Administrator".to_owned();
    target.password = "secret".to_owned();
    target
}

pub(crate) async fn machine() -> (SharedMachine, Target) {
    let shared = SharedMachine::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut target, app) = (winrm_target(listener.local_addr().unwrap(), "winrm"), routes(&shared));
    target.allow_unencrypted = true;
    tokio::spawn(async move { axum::serve(listener, app).await });
    (shared, target)
}

async fn session(target: &Target) -> Box<dyn Session> {
    dial(target, &KnownHosts::default()).await.unwrap()
}

async fn wait_for_shell_deletion(machine: &SharedMachine) {
    while !machine.lock().unwrap().shells.is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn command_returns_output_and_status() {
    let (machine, target) = machine().await;
    let session = session(&target).await;
    machine.lock().unwrap().timeouts = 2;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let run =
        RemoteCommand { stdout: Some(&mut stdout), stderr: Some(&mut stderr), ..RemoteCommand::new("both & <more>") };
    assert_eq!(session.run(run).await.unwrap().exit, Exit::Code(3));
    assert_eq!((stdout.as_slice(), stderr.as_slice()), (b"out".as_slice(), b"err".as_slice()));
    let outcome = session.run(RemoteCommand::new("both & <more>")).await.unwrap();
    assert_eq!(outcome.stderr.to_string(), "err", "case C8: stderr must be part of the outcome");
    assert_eq!(
        session.run(RemoteCommand::new("crash")).await.unwrap().exit,
        Exit::Code(0xC000_013A),
        "a negative exit status must become its unsigned 32-bit value"
    );
    wait_for_shell_deletion(&machine).await;
}

#[tokio::test]
async fn command_receives_complete_input() {
    let (machine, target) = machine().await;
    let session = session(&target).await;
    let input = vec![b'x'; 200_000];
    let (mut stdin, mut stdout) = (input.as_slice(), Vec::new());
    let run = RemoteCommand { stdin: Some(&mut stdin), stdout: Some(&mut stdout), ..RemoteCommand::new("count") };
    assert_eq!(session.run(run).await.unwrap().exit, Exit::Code(0));
    assert_eq!(stdout, b"200000");
    let mut stream = session.dial_command("count").await.unwrap();
    stream.write_all(b"12345").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "5");
    wait_for_shell_deletion(&machine).await;
}

#[tokio::test]
async fn command_can_be_canceled_and_lost_command_has_no_status() {
    let (machine, target) = machine().await;
    let session = session(&target).await;
    let stop = CancellationToken::new();
    let (mut reader, mut writer) = tokio::io::duplex(1 << 20);
    let run = RemoteCommand { stdout: Some(&mut writer), stop: stop.clone(), ..RemoteCommand::new("wait") };
    let watch = async {
        reader.read_u8().await.unwrap();
        stop.cancel();
    };
    let (outcome, ()) = tokio::join!(session.run(run), watch);
    assert_eq!(outcome.unwrap().exit, Exit::Code(1));
    let lost = session.run(RemoteCommand::new("lose-shell")).await.unwrap_err();
    assert!(matches!(&lost, RunError::Lost { cause } if cause == "The shell was not found."), "{lost}");
    let silent = session.run(RemoteCommand::new("no status")).await.unwrap_err();
    assert!(matches!(silent, RunError::Lost { .. }), "case C6: a missing exit status must not count as 0: {silent}");
    let refused = session.run(RemoteCommand::new("forbidden")).await.unwrap_err();
    assert!(matches!(&refused, RunError::Refused { cause, .. } if cause == "Access is denied."), "{refused}");
    wait_for_shell_deletion(&machine).await;
}

#[tokio::test]
async fn failed_cancel_is_repeated_and_the_shell_of_a_command_that_does_not_end_is_deleted() {
    // Output that does not fit into the second buffer blocks the command, so the paused clock advances.
    for (failed_signals, buffer_bytes) in [(1, 1 << 20), (u32::MAX, 1)] {
        let (machine, target) = machine().await;
        let session = session(&target).await;
        machine.lock().unwrap().failed_signals = failed_signals;
        let stop = CancellationToken::new();
        let (mut reader, mut writer) = tokio::io::duplex(buffer_bytes);
        let run = RemoteCommand { stdout: Some(&mut writer), stop: stop.clone(), ..RemoteCommand::new("wait") };
        let watch = async {
            reader.read_u8().await.unwrap();
            if failed_signals == u32::MAX {
                // The paused clock skips the wait for the timeout.
                tokio::time::pause();
            }
            stop.cancel();
        };
        let (outcome, ()) = tokio::join!(session.run(run), watch);
        match outcome {
            Ok(result) => assert_eq!((result.exit, failed_signals), (Exit::Code(1), 1)),
            Err(error) => {
                let is_expected = error.to_string().contains("did not end within 10 s after it was canceled");
                assert!(is_expected && failed_signals == u32::MAX, "{error}");
            }
        }
        wait_for_shell_deletion(&machine).await;
    }
}

#[tokio::test]
async fn rejected_credentials_fail_immediately_and_refused_connections_are_retried() {
    let (_machine, mut target) = machine().await;
    target.password = "wrong".to_owned();
    target.timeout = Duration::from_secs(3600);
    let error = dial(&target, &KnownHosts::default()).await.err().unwrap();
    assert!(matches!(error, DialError::Auth { .. }), "{error}");
    assert!(error.to_string().contains("Basic authentication must be allowed"), "{error}");

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    target.address = listener.local_addr().unwrap().to_string();
    drop(listener);
    target.timeout = Duration::from_secs(1);
    let error = dial(&target, &KnownHosts::default()).await.err().unwrap();
    assert!(matches!(error, DialError::Unreachable { tries: 2.., .. }), "{error}");
}

#[tokio::test]
async fn unsupported_requests_are_rejected_with_hint() {
    let (_machine, target) = machine().await;
    let error = session(&target).await.dial("unix", "/var/run/docker.sock").await.err().unwrap();
    assert!(error.to_string().contains("WinRM supports commands only; use ssh"), "{error}");
}
