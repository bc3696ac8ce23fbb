//! Attacks by processes that are not agents of this manager, and by jobs through their directories.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use muster_job::JobId;

use super::tests::{executable, executor, options, serve_other_version, serve_stub};
use super::*;
use crate::{Slot, SlotKey};

/// A process that an attacker wants the manager to end.
struct Victim(Child);

impl Victim {
    fn start(program: &Path) -> Self {
        Self(Command::new(program).args(["-c", "read line"]).stdin(Stdio::piped()).spawn().unwrap())
    }

    fn pid(&self) -> i64 {
        self.0.id().into()
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
async fn impostor_cannot_make_the_manager_end_a_process() {
    let mut victim = Victim::start(Path::new("/bin/sh"));
    // The victim's PID comes first, so that a faulty manager does not signal the more dangerous values.
    for claimed in [victim.pid(), -1, 0, 1, i64::from(u32::MAX), i64::MIN] {
        let home = tempfile::tempdir().unwrap();
        let options = options(home.path(), "/bin/sh");
        HostExecutor::new(options.clone()).unwrap();
        let impostor = serve_other_version(&home.path().join("state/agent.sock"), claimed);
        let found = find_or_start_agent(options).await;
        assert!(victim.is_running(), "the process that the impostor named must not be ended");
        let error = found.map(|_| claimed).unwrap_err().to_string();
        assert!(error.contains("is not an agent of this manager"), "{error}");
        impostor.shutdown_background();
    }
}

#[tokio::test]
async fn impostor_with_the_pid_of_an_agent_gets_no_job() {
    let home = tempfile::tempdir().unwrap();
    let executable = home.path().join("agent");
    muster_test_prerequisites::copy_program("/bin/sh", &executable);
    let mut agent = Victim::start(&executable);
    let executor = executor(home.path(), &executable);
    let impostor = serve_stub(&home.path().join("state/agent.sock"), env!("CARGO_PKG_VERSION"), agent.pid());

    let key = SlotKey { runner: "short".to_owned(), project_id: 3 };
    let lease = executor.acquire(&key, &EnvironmentRequest::new(JobId(1))).await.unwrap();
    assert_ne!(lease.record.environment, "host", "the impostor must get no new job");
    lease.release();
    let record = LeaseRecord::local("host", Slot { id: 0, project_slot: 0, key });
    let lease = executor.restore(&record).await.unwrap();
    let error = lease.environment.connect().await.unwrap_err().to_string();
    assert!(error.contains("is not an agent of this manager"), "{error}");
    assert!(error.contains("agent.sock") && error.contains(&std::process::id().to_string()), "{error}");
    assert!(agent.is_running());
    impostor.shutdown_background();
}

#[tokio::test]
async fn reused_process_id_is_not_trusted() {
    let home = tempfile::tempdir().unwrap();
    let executor = executor(home.path(), "/nonexistent");
    let (socket, record) = (home.path().join("state/agent.sock"), home.path().join("state/agent.process"));
    let impostor = serve_other_version(&socket, 1);
    agent::record_this_process(&record);
    executor.agents.by_name("host").unwrap().connect().await.unwrap();
    let recorded: serde_json::Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    for (field, value) in [("started", 1.into()), ("boot", "another".into()), ("executable", serde_json::Value::Null)] {
        let mut record_of_another = recorded.clone();
        record_of_another[field] = value;
        std::fs::write(&record, record_of_another.to_string()).unwrap();
        let executor = super::tests::executor(home.path(), "/nonexistent");
        let error = executor.agents.by_name("host").unwrap().connect().await.unwrap_err();
        assert!(matches!(error, ExecutorError::Untrusted { .. }), "{field}: {error}");
    }
    // Jobs that run as the user of the manager can replace the record.
    std::fs::remove_file(&record).unwrap();
    let fifo = Command::new("mkfifo").arg(&record).status().unwrap();
    assert!(fifo.success());
    let executor = super::tests::executor(home.path(), "/nonexistent");
    let error = executor.agents.by_name("host").unwrap().connect().await.unwrap_err();
    assert!(matches!(error, ExecutorError::Untrusted { .. }), "{error}");
    impostor.shutdown_background();
}

/// Listens as an agent does, and closes each connection.
const LISTEN: &str = r#"exec python3 -c '
import socket, sys
s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); s.settimeout(20)
print("step-runner is listening on socket", flush=True)
while True: s.accept()[0].close()' "$4""#;

/// The manager trusts the child that it started, whatever executable the child runs.
#[tokio::test]
async fn agent_started_by_su_is_trusted_by_its_manager_only() {
    if !rustix::process::geteuid().is_root() {
        muster_test_prerequisites::missing("only root can start an agent by su");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let agent = executable(home.path(), LISTEN);
    // The user is `root`, because `nobody` cannot execute the agent on some machines.
    let options = HostOptions { user: Some("root".to_owned()), ..options(home.path(), agent) };
    let connect = async || HostExecutor::new(options.clone()).unwrap().agents.first().unwrap().connect().await;
    let error = connect().await.unwrap_err();
    assert!(
        matches!(error, ExecutorError::Unreachable(_)),
        "the child must be trusted, although it does not speak gRPC: {error}"
    );
    let error = connect().await.unwrap_err();
    assert!(matches!(error, ExecutorError::Untrusted { .. }), "{error}");
}

#[test]
fn socket_directory_writable_by_others_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("state");
    for mode in [0o777, 0o770, 0o1777] {
        std::fs::create_dir_all(&state).unwrap();
        std::fs::set_permissions(&state, std::fs::Permissions::from_mode(mode)).unwrap();
        let error = HostExecutor::new(options(home.path(), "/nonexistent")).unwrap_err().to_string();
        assert!(error.contains("chmod 700") && error.contains("state"), "{mode:o}: {error}");
    }
    // Other users cannot write to these directories.
    for mode in [0o700, 0o711, 0o755] {
        std::fs::set_permissions(&state, std::fs::Permissions::from_mode(mode)).unwrap();
        HostExecutor::new(options(home.path(), "/nonexistent")).unwrap();
    }
}

/// A manager that runs as root gives new directories to the user of the jobs.
///
/// A link that a job created must not lead the manager to another directory.
#[test]
fn directory_behind_a_link_of_a_job_keeps_its_owner() {
    if !rustix::process::geteuid().is_root() {
        muster_test_prerequisites::missing("only root can give directories away");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let (jobs, elsewhere) = (home.path().join("jobs"), home.path().join("elsewhere"));
    std::fs::create_dir_all(jobs.join("deep/deeper")).unwrap();
    std::fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, jobs.join("link")).unwrap();
    symlink("../../elsewhere", jobs.join("deep/link")).unwrap();
    symlink(&jobs, jobs.join("deep/deeper/link")).unwrap();
    symlink(elsewhere.join("new"), jobs.join("dangling")).unwrap();
    let status = Command::new("chown").args(["-hR", "nobody"]).arg(&jobs).status().unwrap();
    assert!(status.success());
    for subpath in ["link/builds", "deep/link/builds", "deep/deeper/link/link/builds", "dangling", "dangling/builds"] {
        let path = jobs.join(subpath);
        let directories = Directories { builds: path.clone(), cache: home.path().join("cache"), shared: true };
        let user = Some("nobody".to_owned());
        let created = HostExecutor::new(HostOptions { directories, user, ..options(home.path(), "/nonexistent") });
        let created_entries: Vec<_> =
            std::fs::read_dir(&elsewhere).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(created_entries.is_empty(), "{subpath}: no directory must be created, found {created_entries:?}");
        let error = created.map(|_| subpath).unwrap_err().to_string();
        assert!(error.contains("is a link"), "{subpath}: {error}");
    }
    // Links of the administrator are followed. Below a directory that the jobs own, a path without links can be used.
    symlink(&jobs, home.path().join("link")).unwrap();
    let builds = home.path().join("link/deep/builds");
    let directories = Directories { builds, cache: home.path().join("cache"), shared: true };
    let user = Some("nobody".to_owned());
    HostExecutor::new(HostOptions { directories, user, ..options(home.path(), "/nonexistent") }).unwrap();
    let owner = |path: &Path| std::fs::symlink_metadata(path).unwrap().uid();
    assert_eq!(owner(&jobs.join("deep/builds")), owner(&jobs));
    assert_eq!(owner(&elsewhere), 0);
}

/// Starts an agent that exits with an error, and returns the manager's error.
///
/// Uses a separate thread, because faulty code may never return.
fn start_failing_agent(home: &Path) -> String {
    let agent = executable(home, "echo 'no space left' >&2; exit 1");
    let options = options(home, agent);
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(async { find_or_start_agent(options).await.map(|_| ()).unwrap_err().to_string() });
        done.send(error).unwrap();
    });
    ended.recv_timeout(std::time::Duration::from_secs(20)).expect("starting an agent did not return")
}

#[test]
fn fifo_instead_of_log_or_lock_is_an_error() {
    for name in ["agent.log", "agent.lock"] {
        let home = tempfile::tempdir().unwrap();
        HostExecutor::new(options(home.path(), "/nonexistent")).unwrap();
        let path = home.path().join("state").join(name);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let error = start_failing_agent(home.path());
        assert!(error.contains(name) && error.contains("it is a FIFO"), "{name}: {error}");
    }
}

#[test]
fn only_the_end_of_a_huge_log_is_read() {
    let home = tempfile::tempdir().unwrap();
    HostExecutor::new(options(home.path(), "/nonexistent")).unwrap();
    let log = std::fs::File::create(home.path().join("state/agent.log")).unwrap();
    log.set_len(1 << 40).unwrap();
    let error = start_failing_agent(home.path());
    assert!(error.contains("exited before it listened") && error.contains("no space left"), "{error}");
}
