//! Tests of the host executor with stand-ins for the agent.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use muster_agent_api::agent::WaitForResultRequest;
use muster_job::JobId;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;

use super::*;
use crate::Slot;
use crate::test_support::StubAgent;

/// Starts an agent of another version that reports the process ID `pid`.
pub(super) fn serve_other_version(socket: &Path, pid: i64) -> Runtime {
    serve_stub(socket, "stub", pid)
}

/// Starts an agent that runs in the returned runtime. When the runtime ends, the connections of the agent end, like
/// those of a process.
pub(super) fn serve_stub(socket: &Path, version: &str, pid: i64) -> Runtime {
    let _ = std::fs::remove_file(socket);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let entered = runtime.enter();
    let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
    let server = StubAgent { version: version.to_owned(), pid }.server();
    runtime.spawn(async move { server.serve_with_incoming(incoming).await.unwrap() });
    drop(entered);
    runtime
}

pub(super) fn options(home: &Path, executable: impl Into<PathBuf>) -> HostOptions {
    HostOptions {
        state_dir: home.join("state"),
        directories: Directories { builds: home.join("builds"), cache: home.join("cache"), shared: true },
        slots: 1,
        executable: executable.into(),
        exit_with_pid: None,
        user: None,
        hidden_variables: Vec::new(),
        nofile_limit: None,
    }
}

pub(super) fn executor(home: &Path, executable: impl Into<PathBuf>) -> HostExecutor {
    HostExecutor::new(options(home, executable)).unwrap()
}

fn environment(executor: &HostExecutor) -> Arc<HostEnvironment> {
    executor.agents.by_name("host").unwrap()
}

/// Creates an executable that runs `script` instead of an agent.
pub(super) fn executable(home: &Path, script: &str) -> PathBuf {
    let path = home.join("agent");
    muster_test_prerequisites::create_program(&path, format!("#!/bin/sh\n{script}\n"));
    path
}

#[tokio::test]
async fn connection_to_a_restarted_agent_is_replaced() {
    let home = tempfile::tempdir().unwrap();
    let executor = executor(home.path(), std::env::current_exe().unwrap());
    let socket = home.path().join("state/agent.sock");
    let first = serve_other_version(&socket, 1);
    let environment = environment(&executor);
    assert_eq!(environment.connect().await.unwrap().identity().pid, 1);
    assert_eq!(environment.connect().await.unwrap().identity().pid, 1);
    first.shutdown_background();
    let second = serve_other_version(&socket, 2);
    // A caller whose call failed marks the connection as suspect.
    environment.connect().await.unwrap().mark_suspect();
    let connection = environment.connect().await.unwrap();
    assert_eq!(connection.identity().pid, 2, "the lost connection must be replaced");
    let lost = connection.agent().wait_for_result(WaitForResultRequest { id: "7-1".to_owned() }).await.unwrap_err();
    assert_eq!(lost.code(), tonic::Code::NotFound);
    second.shutdown_background();
}

#[tokio::test]
async fn failed_agent_start_error_contains_its_log() {
    let home = tempfile::tempdir().unwrap();
    let agent = executable(home.path(), "echo 'no space left' >&2; exit 1");
    let error = environment(&executor(home.path(), agent)).connect().await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("exited before it listened: no space left") && text.contains("agent.log"), "{text}");
}

#[tokio::test]
async fn agent_command_line_has_socket_and_spool() {
    let home = tempfile::tempdir().unwrap();
    let agent = executable(home.path(), "echo \"$@\" > args; echo \"step-runner is listening on socket $4\"");
    let error = environment(&executor(home.path(), agent)).connect().await.unwrap_err();
    assert!(matches!(error, ExecutorError::Unreachable(_)), "{error}");
    let args = std::fs::read_to_string(home.path().join("state/args")).unwrap();
    let state = home.path().join("state");
    assert_eq!(
        args.trim(),
        format!("agent serve --socket {0}/agent.sock --spool {0}/spool --idle-timeout 600", state.display())
    );
}

#[tokio::test]
async fn c118_ready_marker_in_two_writes_is_recognized() {
    let home = tempfile::tempdir().unwrap();
    // Each `printf` of a shell is one write.
    let agent = executable(home.path(), "printf 'step-runner is list'; printf 'ening on socket %s\\n' \"$4\"");
    let error = environment(&executor(home.path(), agent)).connect().await.unwrap_err();
    assert!(
        matches!(error, ExecutorError::Unreachable(_)),
        "the agent must count as ready, although it does not answer: {error}"
    );
}

#[test]
fn agent_for_another_user_is_started_by_su() {
    let options = HostOptions {
        state_dir: "/var/lib/muster".into(),
        directories: Directories { builds: "/b".into(), cache: "/c".into(), shared: true },
        slots: 1,
        executable: "/opt/it's/muster".into(),
        exit_with_pid: None,
        user: Some("ci".to_owned()),
        hidden_variables: vec!["TOKEN".to_owned()],
        nofile_limit: Some(1024),
    };
    let command =
        agent_start::command(&options, Path::new("/s/agent.sock"), Path::new("/var/lib/muster/agent-ci/spool"));
    assert_eq!(
        command.get_envs().collect::<Vec<_>>(),
        [("TOKEN".as_ref(), None)],
        "the agent must not get the manager's secrets"
    );
    let arguments: Vec<_> = command.get_args().map(|argument| argument.to_str().unwrap()).collect();
    let line = r"exec '/opt/it'\''s/muster' 'agent' 'serve' '--socket' '/s/agent.sock' '--spool' '/var/lib/muster/agent-ci/spool' '--idle-timeout' '600' '--job-nofile-limit' '1024' '--only-user' 'UID'";
    let line = line.replace("UID", &rustix::process::geteuid().as_raw().to_string());
    assert_eq!((command.get_program().to_str().unwrap(), arguments), ("su", vec!["-s", "/bin/sh", "ci", "-c", &line]));
}

#[test]
fn state_directory_is_private_but_traversable() {
    let home = tempfile::tempdir().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    executor(home.path(), "/nonexistent");
    assert_eq!(mode(&home.path().join("state")), 0o700);
    if !rustix::process::geteuid().is_root() {
        muster_test_prerequisites::missing("only root can give a directory to another user");
        return;
    }
    let directories = Directories { builds: home.path().join("b"), cache: home.path().join("c"), shared: true };
    let (state_dir, user) = (home.path().join("other"), Some("nobody".to_owned()));
    let options = HostOptions {
        state_dir: state_dir.clone(),
        directories,
        slots: 1,
        executable: "/nonexistent".into(),
        exit_with_pid: None,
        user,
        hidden_variables: Vec::new(),
        nofile_limit: None,
    };
    HostExecutor::new(options).unwrap();
    assert_eq!((mode(&state_dir), mode(&state_dir.join("agent-nobody"))), (0o711, 0o700));
}

#[test]
fn unknown_user_is_named_in_the_error() {
    let home = tempfile::tempdir().unwrap();
    for name in ["nobody-of-this-name", "-u", "../root", ""] {
        let options = HostOptions { user: Some(name.to_owned()), ..options(home.path(), "/nonexistent") };
        let error = HostExecutor::new(options).unwrap_err();
        assert!(error.to_string().contains(&format!("jobs cannot run as user `{name}`")), "{error}");
    }
}

#[tokio::test]
async fn leases_are_limited_awaited_and_restored() {
    let home = tempfile::tempdir().unwrap();
    let executor = executor(home.path(), "/nonexistent");
    let key = SlotKey { runner: "short".to_owned(), project_id: 3 };
    let lease = executor.acquire(&key, &EnvironmentRequest::new(JobId(1))).await.unwrap();
    assert_eq!(*executor.capacity().borrow(), Capacity::of(1), "a lease must not change the capacity");
    let record = lease.record.clone();
    assert!(executor.restore(&record).await.is_err(), "a slot must not be leased twice");
    let next = EnvironmentRequest::new(JobId(2));
    let (second, ()) = tokio::join!(executor.acquire(&key, &next), async { lease.release() });
    second.unwrap().release();
    executor.restore(&record).await.unwrap();
}

#[test]
fn socket_of_a_long_state_directory_has_a_stable_path() {
    let short = Path::new("/var/lib/muster");
    assert_eq!(socket_path(short, 0).unwrap(), short.join("agent.sock"));
    let long = PathBuf::from(format!("/var/lib/{}", "x".repeat(120)));
    let socket = socket_path(&long, 0).unwrap();
    assert!(socket.as_os_str().len() < 100, "{}", socket.display());
    assert_eq!(socket_path(&long, 0).unwrap(), socket);
    assert_ne!(socket_path(&long, 1).unwrap(), socket);
    assert_eq!(socket_path(short, 1).unwrap(), short.join("agent.1.sock"));
}

/// Marks the child process, which has no `XDG_RUNTIME_DIR`.
///
/// Removing a variable of this process would affect other tests.
const WITHOUT_SESSION: &str = "MUSTER_TEST_WITHOUT_SESSION";

#[test]
fn socket_of_a_long_state_directory_is_private() {
    if std::env::var_os(WITHOUT_SESSION).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let test = "host::tests::socket_of_a_long_state_directory_is_private";
        child.args(["--exact", test]).env_remove("XDG_RUNTIME_DIR").env(WITHOUT_SESSION, "1");
        let output = child.output().unwrap();
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
        return;
    }
    let long = PathBuf::from(format!("/var/lib/{}", "x".repeat(120)));
    for socket in [socket_path(&long, 0).unwrap(), operator_socket_path(&long).unwrap()] {
        let directory = socket.parent().unwrap();
        let found = std::fs::symlink_metadata(directory).unwrap();
        let is_private = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
        assert!(is_private && found.mode() & 0o077 == 0, "{}", directory.display());
        let parent = std::fs::metadata(directory.parent().unwrap()).unwrap();
        assert!(parent.mode() & 0o002 == 0, "other users must not be able to write above {}", directory.display());
    }
}

#[tokio::test]
async fn new_jobs_avoid_outdated_agents_and_old_jobs_keep_their_agent() {
    let home = tempfile::tempdir().unwrap();
    let executor = executor(home.path(), "/nonexistent");
    // An earlier manager started this agent from another executable.
    agent::record_this_process(&home.path().join("state/agent.process"));
    let old = serve_other_version(&home.path().join("state/agent.sock"), 1);
    let key = SlotKey { runner: "short".to_owned(), project_id: 3 };
    let lease = executor.acquire(&key, &EnvironmentRequest::new(JobId(1))).await.unwrap();
    assert_eq!(lease.record.environment, "host-1", "a new job must not go to an agent of another version");
    let error = lease.environment.connect().await.unwrap_err();
    assert!(error.to_string().contains("agent.log"), "a new agent must be started: {error}");
    lease.release();
    let record = LeaseRecord::local("host", Slot { id: 0, project_slot: 0, key });
    let lease = executor.restore(&record).await.unwrap();
    assert_eq!(lease.environment.connect().await.unwrap().identity().pid, 1);
    old.shutdown_background();
}
