//! Tests of the host adapter with stand-ins for the agent. The tests of `crates/muster` start the real one.

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
pub(super) fn serve(socket: &Path, pid: i64) -> Runtime {
    serve_as(socket, "stub", pid)
}

/// Starts an agent in a separate runtime. When the runtime ends, so do its connections, as those of a process do.
pub(super) fn serve_as(socket: &Path, version: &str, pid: i64) -> Runtime {
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
        until_pid: None,
        user: None,
        hidden: Vec::new(),
        open_files: None,
    }
}

pub(super) fn provider(home: &Path, executable: impl Into<PathBuf>) -> HostExecutor {
    HostExecutor::new(options(home, executable)).unwrap()
}

/// Returns the environment of the first agent.
fn environment(provider: &HostExecutor) -> Arc<HostEnvironment> {
    provider.agents.named("host").unwrap()
}

/// Creates an executable that runs `script` instead of an agent.
pub(super) fn executable(home: &Path, script: &str) -> PathBuf {
    let path = home.join("agent");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn an_agent_that_answers_is_used_and_its_successor_is_found() {
    let home = tempfile::tempdir().unwrap();
    let provider = provider(home.path(), std::env::current_exe().unwrap());
    let socket = home.path().join("state/agent.sock");
    let first = serve(&socket, 1);
    let environment = environment(&provider);
    assert_eq!(environment.connect().await.unwrap().identity().pid, 1);
    assert_eq!(environment.connect().await.unwrap().identity().pid, 1);
    first.shutdown_background();
    let second = serve(&socket, 2);
    // A caller whose call failed reports the connection as suspect.
    environment.connect().await.unwrap().mark_suspect();
    let connection = environment.connect().await.unwrap();
    assert_eq!(connection.identity().pid, 2, "a lost connection is mended");
    let lost = connection.agent().wait_for_result(WaitForResultRequest { id: "7-1".to_owned() }).await.unwrap_err();
    assert_eq!(lost.code(), tonic::Code::NotFound);
    second.shutdown_background();
}

#[tokio::test]
async fn an_agent_that_ends_before_it_listens_is_an_error_with_its_last_words() {
    let home = tempfile::tempdir().unwrap();
    let agent = executable(home.path(), "echo 'no space left' >&2; exit 1");
    let error = environment(&provider(home.path(), agent)).connect().await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("ended before it listened: no space left") && text.contains("agent.log"), "{text}");
}

#[tokio::test]
async fn the_agent_is_told_where_to_listen_and_whom_to_outlive() {
    let home = tempfile::tempdir().unwrap();
    let agent = executable(home.path(), "echo \"$@\" > args; echo \"step-runner is listening on socket $4\"");
    let error = environment(&provider(home.path(), agent)).connect().await.unwrap_err();
    assert!(matches!(error, ExecutorError::Unreachable(_)), "{error}");
    let args = std::fs::read_to_string(home.path().join("state/args")).unwrap();
    let state = home.path().join("state");
    assert_eq!(
        args.trim(),
        format!("agent serve --socket {0}/agent.sock --spool {0}/spool --end-when-idle 600", state.display())
    );
}

#[test]
fn jobs_of_another_user_have_an_agent_of_that_user() {
    let options = HostOptions {
        state_dir: "/var/lib/muster".into(),
        directories: Directories { builds: "/b".into(), cache: "/c".into(), shared: true },
        slots: 1,
        executable: "/opt/it's/muster".into(),
        until_pid: None,
        user: Some("ci".to_owned()),
        hidden: vec!["TOKEN".to_owned()],
        open_files: Some(1024),
    };
    let command = start::command(&options, Path::new("/s/agent.sock"), Path::new("/var/lib/muster/agent-ci/spool"));
    assert_eq!(
        command.get_envs().collect::<Vec<_>>(),
        [("TOKEN".as_ref(), None)],
        "the manager's secrets are not handed on"
    );
    let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
    let line = r"exec '/opt/it'\''s/muster' 'agent' 'serve' '--socket' '/s/agent.sock' '--spool' '/var/lib/muster/agent-ci/spool' '--end-when-idle' '600' '--job-open-files' '1024'";
    assert_eq!((command.get_program().to_str().unwrap(), words), ("su", vec!["-s", "/bin/sh", "ci", "-c", line]));
}

#[test]
fn the_state_is_private_and_the_agent_of_another_user_is_let_pass() {
    let home = tempfile::tempdir().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    provider(home.path(), "/nonexistent");
    assert_eq!(mode(&home.path().join("state")), 0o700);
    if !rustix::process::geteuid().is_root() {
        muster_test_needs::missing("only root can give a directory to another user");
        return;
    }
    let directories = Directories { builds: home.path().join("b"), cache: home.path().join("c"), shared: true };
    let (state_dir, user) = (home.path().join("other"), Some("nobody".to_owned()));
    let options = HostOptions {
        state_dir: state_dir.clone(),
        directories,
        slots: 1,
        executable: "/nonexistent".into(),
        until_pid: None,
        user,
        hidden: Vec::new(),
        open_files: None,
    };
    HostExecutor::new(options).unwrap();
    assert_eq!((mode(&state_dir), mode(&state_dir.join("agent-nobody"))), (0o711, 0o700));
}

#[test]
fn a_user_that_does_not_exist_is_told_by_name() {
    let home = tempfile::tempdir().unwrap();
    for name in ["nobody-of-this-name", "-u", "../root", ""] {
        let options = HostOptions { user: Some(name.to_owned()), ..options(home.path(), "/nonexistent") };
        let error = HostExecutor::new(options).unwrap_err();
        assert!(error.to_string().contains(&format!("jobs cannot run as user `{name}`")), "{error}");
    }
}

#[tokio::test]
async fn leases_are_bounded_waited_for_and_restored() {
    let home = tempfile::tempdir().unwrap();
    let provider = provider(home.path(), "/nonexistent");
    let key = SlotKey { runner: "short".to_owned(), project_id: 3 };
    let lease = provider.acquire(&key, &EnvironmentRequest::new(JobId(1))).await.unwrap();
    assert_eq!(*provider.capacity().borrow(), Capacity::of(1), "jobs that wait are counted by who asks for them");
    let record = lease.record.clone();
    assert!(provider.restore(&record).await.is_err(), "one lease per slot");
    let next = EnvironmentRequest::new(JobId(2));
    let (second, ()) = tokio::join!(provider.acquire(&key, &next), async { lease.release() });
    second.unwrap().release();
    provider.restore(&record).await.unwrap();
}

#[test]
fn a_long_state_directory_has_its_socket_elsewhere_and_always_there() {
    let short = Path::new("/var/lib/muster");
    assert_eq!(socket_path(short, 0).unwrap(), short.join("agent.sock"));
    let long = PathBuf::from(format!("/var/lib/{}", "x".repeat(120)));
    let socket = socket_path(&long, 0).unwrap();
    assert!(socket.as_os_str().len() < 100, "{}", socket.display());
    assert_eq!(socket_path(&long, 0).unwrap(), socket);
    assert_ne!(socket_path(&long, 1).unwrap(), socket);
    assert_eq!(socket_path(short, 1).unwrap(), short.join("agent.1.sock"));
}

/// Set in a child process without the runtime directory of a session: environment variables belong to a process.
const WITHOUT_SESSION: &str = "MUSTER_TEST_WITHOUT_SESSION";

#[test]
fn a_long_state_directorys_socket_is_where_no_other_user_can_put_anything() {
    if std::env::var_os(WITHOUT_SESSION).is_none() {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let test = "host::tests::a_long_state_directorys_socket_is_where_no_other_user_can_put_anything";
        again.args(["--exact", test]).env_remove("XDG_RUNTIME_DIR").env(WITHOUT_SESSION, "1");
        let output = again.output().unwrap();
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
        return;
    }
    let long = PathBuf::from(format!("/var/lib/{}", "x".repeat(120)));
    for socket in [socket_path(&long, 0).unwrap(), operator_socket_path(&long).unwrap()] {
        let directory = socket.parent().unwrap();
        let found = std::fs::symlink_metadata(directory).unwrap();
        let own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
        assert!(own && found.mode() & 0o077 == 0, "{}", directory.display());
        let above = std::fs::metadata(directory.parent().unwrap()).unwrap();
        assert!(above.mode() & 0o002 == 0, "other users can write above {}", directory.display());
    }
}

#[tokio::test]
async fn a_new_job_never_goes_to_an_agent_of_another_version_and_a_job_that_is_there_stays() {
    let home = tempfile::tempdir().unwrap();
    let provider = provider(home.path(), "/nonexistent");
    // An earlier manager started this agent. Its executable is not the one of this manager.
    agent::record_this_process(&home.path().join("state/agent.process"));
    let old = serve(&home.path().join("state/agent.sock"), 1);
    let key = SlotKey { runner: "short".to_owned(), project_id: 3 };
    let lease = provider.acquire(&key, &EnvironmentRequest::new(JobId(1))).await.unwrap();
    assert_eq!(lease.record.environment, "host-1", "the agent that answers says another version");
    let error = lease.environment.connect().await.unwrap_err();
    assert!(error.to_string().contains("agent.log"), "a new one is to be started: {error}");
    lease.release();
    let record = LeaseRecord::local("host", Slot { id: 0, project_slot: 0, key });
    let lease = provider.restore(&record).await.unwrap();
    assert_eq!(lease.environment.connect().await.unwrap().identity().pid, 1);
    old.shutdown_background();
}
