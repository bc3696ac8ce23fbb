//! Tests of deploying an agent over a session.
//!
//! The commands run on this host with a separate home directory. The executable is a stand-in that relays to an agent
//! in memory.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use muster_fleeting::model::Platform;
use muster_remote::local::LocalSession;
use muster_remote::{CommandResult, RemoteCommand, RunError, Session, Stream};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;

use std::sync::Arc;

use super::*;
use crate::test_support::StubAgent;

/// This host, in the role of a machine.
struct Machine {
    home: tempfile::TempDir,
    dials: AtomicUsize,
    unreachable_reports: AtomicUsize,
}

struct HomeSession {
    home: std::path::PathBuf,
}

impl HomeSession {
    fn with_home(&self, command: &str) -> String {
        format!("export HOME='{0}' PATH='{0}/path':$PATH; {command}", self.home.display())
    }
}

#[async_trait]
impl Session for HomeSession {
    async fn run(&self, run: RemoteCommand<'_>) -> Result<CommandResult, RunError> {
        let command = self.with_home(run.command);
        let RemoteCommand { stdin, stdout, stderr, stop, .. } = run;
        let mut local = RemoteCommand { stop, ..RemoteCommand::new(&command) };
        if let Some(stdin) = stdin {
            local.stdin = Some(stdin);
        }
        if let Some(stdout) = stdout {
            local.stdout = Some(stdout);
        }
        if let Some(stderr) = stderr {
            local.stderr = Some(stderr);
        }
        LocalSession.run(local).await
    }
    async fn dial(&self, network: &str, address: &str) -> Result<Box<dyn Stream>, RunError> {
        LocalSession.dial(network, address).await
    }
    async fn dial_command(&self, command: &str) -> Result<Box<dyn Stream>, RunError> {
        LocalSession.dial_command(&self.with_home(command)).await
    }
    async fn close(&self) {}
}

#[async_trait]
impl Dial for Machine {
    async fn dial(&self) -> Result<Dialed, DeployError> {
        self.dials.fetch_add(1, Ordering::Relaxed);
        let session = Box::new(HomeSession { home: self.home.path().to_owned() });
        Ok(Dialed { session, trace_lines: vec!["connected".to_owned()] })
    }
    fn report_unreachable(&self) {
        self.unreachable_reports.fetch_add(1, Ordering::Relaxed);
    }
}

impl Machine {
    fn new() -> Self {
        Self {
            home: tempfile::tempdir().unwrap(),
            dials: AtomicUsize::new(0),
            unreachable_reports: AtomicUsize::new(0),
        }
    }

    fn start_agent(&self) {
        let incoming = UnixListenerStream::new(UnixListener::bind(self.home.path().join("agent.sock")).unwrap());
        let server = StubAgent { version: "stub".to_owned(), pid: 7 }.server();
        tokio::spawn(async move { server.serve_with_incoming(incoming).await.unwrap() });
    }

    fn placed_executables(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.home.path().join(".muster/bin")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// Returns agents whose executable is a shell script. It prints a line and then runs `commands`.
fn fake_agents(dir: &Path, commands: &str) -> Arc<Agents> {
    let path = dir.join("muster");
    muster_test_prerequisites::create_program(&path, format!("#!/bin/sh\necho welcome\n{commands}\n"));
    // The machine is this host. Without permission to execute the file, it cannot use the file at this path, and needs
    // a copy.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    Arc::new(Agents::new(Arc::new(Executable::new(path))))
}

fn own_executable(agents: &Agents) -> Arc<Executable> {
    agents.executable_for(&Platform::this()).unwrap()
}

const RELAY: &str = r#"echo "muster: connected $HOME"
exec python3 -c 'import os, socket, threading
s = socket.socket(socket.AF_UNIX); s.connect(os.environ["HOME"] + "/agent.sock")
def up():
    while data := os.read(0, 65536): s.sendall(data)
    os._exit(0)
threading.Thread(target=up, daemon=True).start()
while data := s.recv(65536): os.write(1, data)'"#;

#[tokio::test]
async fn agent_is_sent_once_and_broken_connection_is_replaced() {
    let (machine, dir) = (Machine::new(), tempfile::tempdir().unwrap());
    machine.start_agent();
    let agents = fake_agents(dir.path(), RELAY);
    let instance = RemoteMachine::new("instance i-1", Arc::clone(&agents));
    let (connection, home) = instance.connect(&machine).await.unwrap();
    assert_eq!((connection.identity().pid, home.as_path()), (7, machine.home.path()));
    assert_eq!(machine.placed_executables(), [own_executable(&agents).identity().await.unwrap().hash.clone()]);
    assert_eq!(instance.trace_lines(), ["connected"]);

    // Jobs share the connection. A broken connection is replaced without sending the executable again.
    instance.connect(&machine).await.unwrap();
    assert_eq!(machine.dials.load(Ordering::Relaxed), 1);
    // Sending this content would fail, because the hash of the executable is computed only once.
    std::fs::write(dir.path().join("muster"), "another one").unwrap();
    let socket = machine.home.path().join("agent.sock");
    std::fs::remove_file(&socket).unwrap();
    machine.start_agent();
    connection.mark_suspect();
    instance.connect(&machine).await.unwrap();
    assert_eq!(machine.placed_executables().len(), 1);
}

#[tokio::test]
async fn same_executable_at_another_path_is_used() {
    let (machine, dir) = (Machine::new(), tempfile::tempdir().unwrap());
    machine.start_agent();
    let agents = fake_agents(dir.path(), RELAY);
    std::fs::set_permissions(own_executable(&agents).path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let connect = async || RemoteMachine::new("instance i-1", Arc::clone(&agents)).connect(&machine).await.unwrap();
    connect().await;
    let bin = machine.home.path().join(".muster/bin");
    assert!(!bin.exists(), "a file that the machine has must not be copied");

    let copy = dir.path().join("copy");
    muster_test_prerequisites::copy_program(own_executable(&agents).path(), &copy);
    std::fs::rename(&copy, own_executable(&agents).path()).unwrap();
    connect().await;
    let placed = bin.join(&own_executable(&agents).identity().await.unwrap().hash);
    assert_eq!(
        std::fs::read_link(placed).unwrap(),
        own_executable(&agents).path(),
        "the file with the same content must be linked"
    );
}

fn report_another_platform(machine: &Machine) {
    let bin = machine.home.path().join("path");
    std::fs::create_dir(&bin).unwrap();
    muster_test_prerequisites::create_program(bin.join("uname"), "#!/bin/sh\necho Linux s390x\n");
}

#[tokio::test]
async fn agent_for_another_platform_is_sent_if_installed() {
    let (machine, dir) = (Machine::new(), tempfile::tempdir().unwrap());
    machine.start_agent();
    report_another_platform(&machine);
    let agents = fake_agents(dir.path(), "exit 1");
    let instance = RemoteMachine::new("instance i-1", Arc::clone(&agents));
    let error = instance.connect(&machine).await.unwrap_err().to_string();
    assert!(
        error.contains("the machine's platform linux/s390x: failed to read the agent's executable")
            && error.contains("muster-agent-linux-s390x"),
        "{error}"
    );
    assert!(!machine.home.path().join(".muster/bin").exists(), "no executable must be sent");

    let other = dir.path().join("muster-agent-linux-s390x");
    std::fs::write(&other, format!("#!/bin/sh\n{RELAY}\n")).unwrap();
    let error = instance.connect(&machine).await.unwrap_err().to_string();
    assert!(error.contains("for linux/s390x has version stub"), "{error}");
    let hash = Executable::new(other).identity().await.unwrap().hash.clone();
    assert_eq!(machine.placed_executables(), [hash]);
}

#[tokio::test]
async fn damaged_executable_is_replaced() {
    let (machine, dir) = (Machine::new(), tempfile::tempdir().unwrap());
    machine.start_agent();
    let agents = fake_agents(dir.path(), RELAY);
    let bin = machine.home.path().join(".muster/bin");
    std::fs::create_dir_all(&bin).unwrap();
    let damaged = bin.join(&own_executable(&agents).identity().await.unwrap().hash);
    muster_test_prerequisites::create_program(&damaged, "#!/bin/sh\necho 'muster: connected /elsewhere'\n");
    let (_, home) = RemoteMachine::new("instance i-1", Arc::clone(&agents)).connect(&machine).await.unwrap();
    assert_eq!(home, machine.home.path());
    assert_eq!(std::fs::read(damaged).unwrap(), std::fs::read(own_executable(&agents).path()).unwrap());
}

#[tokio::test]
async fn failed_agent_start_is_reported_with_its_reason() {
    let (machine, dir) = (Machine::new(), tempfile::tempdir().unwrap());
    let agents = fake_agents(dir.path(), "echo 'muster: failed no space left; its log is /x'; exit 1");
    let error = RemoteMachine::new("instance i-9", agents).connect(&machine).await.unwrap_err();
    assert_eq!(error.to_string(), "no agent answers on instance i-9: no space left; its log is /x");
    assert_eq!(machine.unreachable_reports.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn failed_command_error_contains_its_stderr() {
    let machine = Machine::new();
    run_command(&machine, "test -d \"$HOME\"").await.unwrap();
    let error = run_command(&machine, "echo no docker here >&2; exit 3").await.unwrap_err().to_string();
    assert!(error.contains("the command exited with status 3: no docker here"), "{error}");
}

/// A session in which the command that installs the executable prints endlessly.
struct EndlessOutput {
    to_stderr: bool,
}

#[async_trait]
impl Session for EndlessOutput {
    async fn run(&self, run: RemoteCommand<'_>) -> Result<CommandResult, RunError> {
        let output = if self.to_stderr { run.stderr } else { run.stdout };
        let output = output.expect("the caller must limit the output with its own writer");
        let mut written = 0;
        loop {
            assert!(written < 64 << 20, "the output must be limited, but {written} bytes were accepted");
            let what = "failed to write the output";
            output.write_all(&[b'y'; 64 * 1024]).await.map_err(|source| RunError::Local { operation: what, source })?;
            written += 64 * 1024;
        }
    }
    async fn dial(&self, network: &str, address: &str) -> Result<Box<dyn Stream>, RunError> {
        LocalSession.dial(network, address).await
    }
    async fn dial_command(&self, _: &str) -> Result<Box<dyn Stream>, RunError> {
        LocalSession.dial_command("echo muster: absent").await
    }
    async fn close(&self) {}
}

#[tokio::test]
async fn endless_output_is_rejected_and_not_buffered() {
    let dir = tempfile::tempdir().unwrap();
    let agents = fake_agents(dir.path(), RELAY);
    for to_stderr in [false, true] {
        let error =
            super::connect::deploy_agent(&EndlessOutput { to_stderr }, &agents, None).await.err().unwrap().to_string();
        assert!(error.contains("printed more than 1 MiB"), "{} bytes", error.len());
        assert!(error.contains("bytes omitted]") && error.len() < 16 * 1024, "{} bytes", error.len());
    }
}
