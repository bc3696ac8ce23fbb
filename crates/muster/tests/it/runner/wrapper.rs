//! `wrapper`: control of a wrapped process over gRPC.
//!
//! The wrapped process is `gitlab-runner read-logs` and not `run`, because a test can easily end `read-logs`: by
//! deleting the file that it follows, or with a signal.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

use super::support::Home;
use crate::process::until;

/// Wire format of every response.
#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(int32, tag = "1")]
    status: i32,
    #[prost(string, tag = "2")]
    failure: String,
}

/// Wire format of all requests. Only a graceful shutdown can have a callback.
#[derive(Clone, PartialEq, prost::Message)]
struct ShutdownRequest {
    #[prost(message, optional, tag = "1")]
    callback: Option<Callback>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Callback {
    #[prost(string, tag = "1")]
    url: String,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(map = "string, string", tag = "3")]
    headers: std::collections::HashMap<String, String>,
}

const RUNNING: i32 = 1;
const IN_SHUTDOWN: i32 = 2;
const STOPPED: i32 = 3;

struct Wrapped {
    process: Child,
    home: Home,
    channel: Channel,
}

impl Drop for Wrapped {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts the wrapper, and waits until the wrapped process has started. Standard error goes to the file `stderr`.
fn start(home: &Home, runtime: &Path, arguments: &[&str]) -> Child {
    let log = home.path("log");
    std::fs::write(&log, "ready\n").unwrap();
    let mut command = home.command(&["wrapper", "--process-termination-timeout", "5s"]);
    command.args(arguments).args(["read-logs", "--path"]).arg(&log).env("XDG_RUNTIME_DIR", runtime);
    let stderr = std::fs::File::create(home.path("stderr")).unwrap();
    let mut process = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
    // `read-logs` prints each line with the offset of its end.
    let mut first = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert_eq!(first, "6 ready\n", "{}", std::fs::read_to_string(home.path("stderr")).unwrap());
    process
}

impl Wrapped {
    async fn start() -> Self {
        let home = Home::new();
        let socket = home.path("wrapper.sock");
        let listen = format!("unix://{}", socket.display());
        let process = start(&home, Path::new("/nonexistent"), &["--grpc-listen", &listen]);
        Self::connect(process, home, socket).await
    }

    async fn connect(process: Child, home: Home, socket: PathBuf) -> Self {
        let channel = tonic::transport::Endpoint::try_from("http://wrapper").unwrap();
        let socket = Arc::new(socket);
        let channel = channel.connect_with_connector(tower::service_fn(move |_| {
            let socket = Arc::clone(&socket);
            async move { tokio::net::UnixStream::connect(&*socket).await.map(hyper_util::rt::TokioIo::new) }
        }));
        Self { process, home, channel: channel.await.unwrap() }
    }

    async fn call(&self, method: &str, request: ShutdownRequest) -> Result<StatusResponse, tonic::Status> {
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.unwrap();
        let path = format!("/gitlab_com.gitlab_runner.runner_wrapper.ProcessWrapper/{method}");
        let path: PathAndQuery = path.parse().unwrap();
        let codec = tonic_prost::ProstCodec::<ShutdownRequest, StatusResponse>::default();
        Ok(client.unary(tonic::Request::new(request), path, codec).await?.into_inner())
    }

    async fn status(&self) -> StatusResponse {
        self.call("CheckStatus", ShutdownRequest::default()).await.unwrap()
    }

    async fn wait_until_stopped(&self) -> StatusResponse {
        until(async || {
            let response = self.status().await;
            if response.status == STOPPED { Ok(response) } else { Err(format!("{response:?}")) }
        })
        .await
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.process.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn graceful_shutdown_sends_the_callback() {
    let mut wrapped = Wrapped::start().await;
    assert_eq!(wrapped.status().await, StatusResponse { status: RUNNING, failure: String::new() });
    let (sender, mut callbacks) = tokio::sync::mpsc::channel(1);
    let app = axum::Router::new().fallback(move |request: axum::extract::Request| {
        let sender = sender.clone();
        async move {
            let header = request.headers()["x-who"].to_str().unwrap().to_owned();
            sender.send(format!("{} {} {header}", request.method(), request.uri())).await.unwrap();
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/stopped", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let callback = |url: String| {
        let headers = [("X-Who".to_owned(), "me".to_owned())].into();
        ShutdownRequest { callback: Some(Callback { url, method: "PUT".to_owned(), headers }) }
    };
    let error = wrapped.call("InitGracefulShutdown", callback("no url".to_owned())).await.unwrap_err();
    assert!(error.code() == tonic::Code::InvalidArgument && error.message().contains("no url"), "{error:?}");
    assert_eq!(wrapped.status().await.status, RUNNING, "a rejected request must change nothing");

    let response = wrapped.call("InitGracefulShutdown", callback(url)).await.unwrap();
    assert_eq!(response.status, IN_SHUTDOWN);
    assert_eq!(callbacks.recv().await.unwrap(), "PUT /stopped me");
    assert!(wrapped.wait_until_stopped().await.failure.contains("SIGQUIT"), "{:?}", wrapped.status().await);
    wrapped.signal(rustix::process::Signal::TERM);
    wrapped.process.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn forceful_shutdown_stops_the_runner_immediately() {
    let wrapped = Wrapped::start().await;
    assert_eq!(wrapped.call("InitForcefulShutdown", ShutdownRequest::default()).await.unwrap().status, IN_SHUTDOWN);
    assert!(wrapped.wait_until_stopped().await.failure.contains("SIGTERM"));
}

#[tokio::test(flavor = "multi_thread")]
async fn wrapper_and_runner_exit_together() {
    let mut wrapped = Wrapped::start().await;
    std::fs::remove_file(wrapped.home.path("log")).unwrap();
    assert_eq!(
        wrapped.process.wait().unwrap().code(),
        Some(100),
        "the wrapper must exit with the exit code of the runner"
    );
    let mut wrapped = Wrapped::start().await;
    wrapped.signal(rustix::process::Signal::TERM);
    assert_eq!(wrapped.process.wait().unwrap().code(), Some(128 + 15));
}

/// Creates a directory with a short path, because the path of a Unix socket has a limited length.
fn directory(mode: u32) -> tempfile::TempDir {
    let directory = tempfile::Builder::new().prefix("m").tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(mode)).unwrap();
    directory
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test(flavor = "multi_thread")]
async fn default_socket_is_private_to_the_user() {
    let (home, runtime) = (Home::new(), directory(0o700));
    let process = start(&home, runtime.path(), &[]);
    let socket = runtime.path().join("muster/wrapper.sock");
    assert!(socket.exists(), "{}", std::fs::read_to_string(home.path("stderr")).unwrap());
    assert_eq!((mode(socket.parent().unwrap()), mode(&socket)), (0o700, 0o600));
    let wrapped = Wrapped::connect(process, home, socket).await;
    assert_eq!(wrapped.status().await.status, RUNNING);
    let stderr = std::fs::read_to_string(wrapped.home.path("stderr")).unwrap();
    assert!(!stderr.contains("has no authentication"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_users_are_rejected_even_if_the_socket_mode_admits_them() {
    if !rustix::process::geteuid().is_root() {
        return muster_test_prerequisites::missing("only root can start a process of another user");
    }
    if !muster_test_prerequisites::program("setpriv", "--version", "util-linux")
        || !muster_test_prerequisites::program("/usr/bin/perl", "-v", "perl")
    {
        return;
    }
    let (home, shared) = (Home::new(), directory(0o755));
    let socket = shared.path().join("w.sock");
    let process = start(&home, Path::new("/nonexistent"), &["--grpc-listen", &format!("unix://{}", socket.display())]);
    let _wrapped = Wrapped::connect(process, home, socket.clone()).await;
    assert_eq!(mode(&socket), 0o600);
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
    // The script sends the preface of an HTTP/2 connection. An HTTP/2 server answers with its settings.
    let script = r#"use IO::Socket::UNIX; $SIG{PIPE} = "IGNORE"; alarm 60;
        my $socket = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die "no connection: $!";
        syswrite($socket, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0");
        print sysread($socket, my $settings, 9) ? "answered" : "refused";"#;
    let connection_result = |user: &str| {
        // `dac_override` bypasses file permissions, so that only the server's check of the user can refuse the client.
        let user = format!("--reuid={user}");
        let mut command = Command::new("setpriv");
        command.args([
            &user,
            "--inh-caps=+dac_override",
            "--ambient-caps=+dac_override",
            "/usr/bin/perl",
            "-e",
            script,
        ]);
        let output = command.current_dir("/").arg(&socket).output().unwrap();
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    assert_eq!(connection_result("0"), "answered");
    assert_eq!(connection_result("65534"), "refused");
}

#[test]
fn listening_on_tcp_logs_a_warning() {
    let home = Home::new();
    let mut process = start(&home, Path::new("/nonexistent"), &["--grpc-listen", "tcp://127.0.0.1:0"]);
    process.kill().unwrap();
    process.wait().unwrap();
    let stderr = std::fs::read_to_string(home.path("stderr")).unwrap();
    assert!(stderr.contains("has no authentication") && stderr.contains("tcp://127.0.0.1:0"), "{stderr}");
}

#[test]
fn regular_file_is_not_replaced_by_a_socket() {
    let home = Home::new();
    std::fs::write(home.path("precious"), "content").unwrap();
    let listen = format!("unix://{}", home.path("precious").display());
    home.run(&["wrapper", "--grpc-listen", &listen, "read-logs"]).check(1, &["precious", "not a socket"]);
    assert_eq!(std::fs::read_to_string(home.path("precious")).unwrap(), "content");
}
