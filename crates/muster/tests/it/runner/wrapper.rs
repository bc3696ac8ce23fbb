//! `wrapper`: a stand-in for the runner under the operator's control. The wrapped process is this same program, since the
//! wrapper starts nothing else: `read-logs` follows a file until it is gone, and ends by a signal like any other.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;

use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

use super::support::Home;
use crate::process::until;

/// The wire form of every answer.
#[derive(Clone, PartialEq, prost::Message)]
struct Answer {
    #[prost(int32, tag = "1")]
    status: i32,
    #[prost(string, tag = "2")]
    failure: String,
}

/// The wire form of a request with a callback; without one, of every request.
#[derive(Clone, PartialEq, prost::Message)]
struct Ask {
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

impl Wrapped {
    async fn start() -> Self {
        let home = Home::new();
        let log = home.path("log");
        std::fs::write(&log, "ready\n").unwrap();
        let socket = home.path("wrapper.sock");
        let listen = format!("unix://{}", socket.display());
        let arguments = ["wrapper", "--grpc-listen", &listen, "--process-termination-timeout", "5s"];
        let mut command = home.command(&arguments);
        command.args(["read-logs", "--path"]).arg(&log).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        // The runner is there when it has printed its first line.
        let mut first = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert_eq!(first, "6 ready\n");
        let channel = tonic::transport::Endpoint::try_from("http://wrapper").unwrap();
        let socket = Arc::new(socket);
        let channel = channel.connect_with_connector(tower::service_fn(move |_| {
            let socket = Arc::clone(&socket);
            async move { tokio::net::UnixStream::connect(&*socket).await.map(hyper_util::rt::TokioIo::new) }
        }));
        Self { process, home, channel: channel.await.unwrap() }
    }

    async fn call(&self, method: &str, ask: Ask) -> Result<Answer, tonic::Status> {
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.unwrap();
        let path = format!("/gitlab_com.gitlab_runner.runner_wrapper.ProcessWrapper/{method}");
        let path: PathAndQuery = path.parse().unwrap();
        let codec = tonic_prost::ProstCodec::<Ask, Answer>::default();
        Ok(client.unary(tonic::Request::new(ask), path, codec).await?.into_inner())
    }

    async fn status(&self) -> Answer {
        self.call("CheckStatus", Ask::default()).await.unwrap()
    }

    /// Asks until the runner has stopped.
    async fn stopped(&self) -> Answer {
        until(async || {
            let answer = self.status().await;
            if answer.status == STOPPED { Ok(answer) } else { Err(format!("{answer:?}")) }
        })
        .await
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.process.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graceful_shutdown_calls_back_and_the_wrapper_goes_on_answering() {
    let mut wrapped = Wrapped::start().await;
    assert_eq!(wrapped.status().await, Answer { status: RUNNING, failure: String::new() });
    let (told, mut heard) = tokio::sync::mpsc::channel(1);
    let app = axum::Router::new().fallback(move |request: axum::extract::Request| {
        let told = told.clone();
        async move {
            let header = request.headers()["x-who"].to_str().unwrap().to_owned();
            told.send(format!("{} {} {header}", request.method(), request.uri())).await.unwrap();
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/gone", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let callback = |url: String| {
        let headers = [("X-Who".to_owned(), "me".to_owned())].into();
        Ask { callback: Some(Callback { url, method: "PUT".to_owned(), headers }) }
    };
    let refused = wrapped.call("InitGracefulShutdown", callback("no url".to_owned())).await.unwrap_err();
    assert!(refused.code() == tonic::Code::InvalidArgument && refused.message().contains("no url"), "{refused:?}");
    assert_eq!(wrapped.status().await.status, RUNNING, "a request that is refused changes nothing");

    let answer = wrapped.call("InitGracefulShutdown", callback(url)).await.unwrap();
    assert_eq!(answer.status, IN_SHUTDOWN);
    assert_eq!(heard.recv().await.unwrap(), "PUT /gone me");
    assert!(wrapped.stopped().await.failure.contains("SIGQUIT"), "{:?}", wrapped.status().await);
    wrapped.signal(rustix::process::Signal::TERM);
    wrapped.process.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forceful_shutdown_ends_the_runner_now() {
    let wrapped = Wrapped::start().await;
    assert_eq!(wrapped.call("InitForcefulShutdown", Ask::default()).await.unwrap().status, IN_SHUTDOWN);
    assert!(wrapped.stopped().await.failure.contains("SIGTERM"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wrapper_ends_with_its_runner_and_its_runner_with_it() {
    let mut wrapped = Wrapped::start().await;
    std::fs::remove_file(wrapped.home.path("log")).unwrap();
    assert_eq!(wrapped.process.wait().unwrap().code(), Some(100), "it ended by itself: so does the wrapper");
    let mut wrapped = Wrapped::start().await;
    wrapped.signal(rustix::process::Signal::TERM);
    assert_eq!(wrapped.process.wait().unwrap().code(), Some(128 + 15));
}
