//! `serve` and `proxy`, with a client of the API.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStderr, Stdio};

use hyper_util::rt::TokioIo;
use muster_agent_api::step_runner::step_result::Status as State;
use muster_agent_api::step_runner::step_runner_client::StepRunnerClient;
use muster_agent_api::step_runner::{CloseRequest, FollowLogsRequest, RunRequest, StatusRequest};
use tonic::transport::{Channel, Endpoint};

use super::*;

const MARKER: &str = "step-runner is listening on socket ";

/// A running server. Dropping this value kills the server.
pub(super) struct Server {
    pub(super) child: Child,
    pub(super) stderr: BufReader<ChildStderr>,
    pub(super) socket: PathBuf,
}

impl Server {
    pub(super) fn start(command: &mut Command) -> Self {
        Self::start_with_lines(command).0
    }

    /// Starts a server. Also returns the lines that the server prints to standard error before it announces the socket.
    pub(super) fn start_with_lines(command: &mut Command) -> (Self, Vec<String>) {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut lines = Vec::new();
        let socket = loop {
            let mut line = String::new();
            let length = stderr.read_line(&mut line).unwrap();
            assert_ne!(length, 0, "the server must announce its socket: {lines:?}");
            if let Some(path) = line.strip_prefix(MARKER) {
                break PathBuf::from(path.trim_end());
            }
            lines.push(line);
        };
        (Self { child, stderr, socket }, lines)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a client whose connection is standard input and output of `proxy`.
pub(super) async fn proxy_client(proxy: &mut Command) -> (StepRunnerClient<Channel>, Child) {
    let mut child = proxy.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (stdin, stdout) =
        (tokio::process::ChildStdin::from_std(stdin).unwrap(), tokio::process::ChildStdout::from_std(stdout).unwrap());
    let mut stream = Some(TokioIo::new(tokio::io::join(stdout, stdin)));
    let connector =
        tower::service_fn(move |_| std::future::ready(stream.take().ok_or_else(std::io::Error::last_os_error)));
    let channel = Endpoint::from_static("http://step-runner").connect_with_connector(connector).await.unwrap();
    (StepRunnerClient::new(channel), child)
}

pub(super) async fn run(
    client: &mut StepRunnerClient<Channel>,
    project: &Project,
    list: &str,
) -> (String, State, String) {
    let work_dir = project.work().to_str().unwrap().to_owned();
    let steps = format!("{{}}\n---\nrun:\n{list}\n");
    client.run(RunRequest { id: "1".to_owned(), work_dir, steps, ..RunRequest::default() }).await.unwrap();
    let follow = FollowLogsRequest { id: "1".to_owned(), offset: 0 };
    let mut stream = client.follow_logs(follow).await.unwrap().into_inner();
    let mut log = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        log.extend(message.data);
    }
    let status = client.status(StatusRequest { id: "1".to_owned() }).await.unwrap().into_inner().jobs.remove(0);
    client.close(CloseRequest { id: "1".to_owned() }).await.unwrap();
    (String::from_utf8(log).unwrap(), status.status(), status.message)
}

#[tokio::test]
async fn c115_job_runs_at_the_server_through_the_proxy() {
    let project = Project::new();
    let mut server = Server::start(&mut project.command(&["serve"]));
    assert_eq!(server.socket, project.tmp().join("step-runner.sock"));
    let (mut client, mut proxy) = proxy_client(&mut project.command(&["proxy"])).await;
    let list =
        "- {name: a, step: ./echo, inputs: {text: hi}}\n- {name: b, script: 'echo ${{steps.a.outputs.text}}; exit 5'}";
    let (log, state, message) = run(&mut client, &project, list).await;
    assert_eq!(log, "Running step name=a\nhi 1 \nRunning step name=b\nhi\n");
    assert_eq!((state, message.as_str()), (State::Failure, "step \"b\": exec: exit status 5"));
    // Closing standard input ends the proxy, and SIGTERM ends the server.
    drop(client);
    let ended = tokio::task::spawn_blocking(move || proxy.wait()).await.unwrap();
    assert!(ended.unwrap().success());
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.child.wait().unwrap().success());
    assert_eq!(std::fs::read_dir(project.tmp()).unwrap().count(), 0, "the socket and the logs must be removed");
}

#[test]
fn c115_proxy_without_a_server_reports_the_socket() {
    let project = Project::new();
    let result = project.run(&["proxy"]).check(1, &["Error: dialing: dial unix", "step-runner.sock"]);
    assert_eq!(result.stdout, "");
}

#[test]
fn serve_requires_an_existing_directory_without_another_server() {
    let project = Project::new();
    project.run(&["serve", ""]).check(1, &["invalid empty socket dir"]);
    project.run(&["serve", "missing"]).check(1, &["invalid socket dir missing"]);
    std::fs::create_dir(project.work().join("dir")).unwrap();
    let server = Server::start(&mut project.command(&["serve", "dir"]));
    assert_eq!(server.socket, Path::new("dir/step-runner.sock"));
    let second = project.run(&["serve", "dir"]);
    second.check(1, &["Error: serving step-runner: process", "already listens on dir/step-runner.sock"]);
}

#[test]
fn c118_socket_path_over_the_limit_is_rejected() {
    let project = Project::new();
    let dir = project.work().join("x".repeat(200));
    std::fs::create_dir(&dir).unwrap();
    project.run(&["serve", dir.to_str().unwrap()]).check(1, &["the path of the socket is longer than 107 bytes"]);
}
