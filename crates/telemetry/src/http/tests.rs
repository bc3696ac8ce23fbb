//! Tests of the HTTP server with plain connections.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

use super::*;
use crate::metrics::{EntryLabels, ExecutionMode, JobFacts};
use crate::spans::SpanSettings;
use crate::{Build, ProcessState};

const BUILD: Build = Build { name: "muster", version: "1", revision: "a", branch: "b", built_at: "c" };

struct RunningServer {
    address: std::net::SocketAddr,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

async fn start() -> RunningServer {
    let telemetry = Telemetry::new(&BUILD, &Arc::default(), SpanSettings::default());
    let server = Server::bind("127.0.0.1", 0, Arc::clone(&telemetry)).await.unwrap();
    let (address, stop) = (server.address().unwrap(), CancellationToken::new());
    let serving = tokio::spawn(server.serve(stop.clone()));
    RunningServer { address, telemetry, stop, serving }
}

impl RunningServer {
    /// Sends a request and returns the whole response, head and body.
    async fn request(&self, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

#[tokio::test]
async fn metrics_allow_only_get_and_head() {
    let running = start().await;
    let got = running.request("GET", "/metrics").await;
    assert!(got.starts_with("HTTP/1.1 200 OK\r\n"), "{got}");
    assert!(got.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{got}");
    assert!(got.contains("gitlab_runner_version_info{"), "{got}");
    let head = running.request("HEAD", "/metrics").await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    let post = running.request("POST", "/metrics").await;
    assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("allow: GET, HEAD\r\n"), "{post}");
}

#[tokio::test]
async fn debug_paths_show_jobs_and_state() {
    let running = start().await;
    let metrics = &running.telemetry.metrics;
    let facts = JobFacts {
        url: "https://host/p/-/jobs/7".to_owned(),
        mode: ExecutionMode::Traditional,
        age: Duration::from_secs(3),
        queued: Duration::ZERO,
        project_jobs_running: String::new(),
        queue: None,
    };
    let _job = metrics.job(&metrics.entry(&EntryLabels::default()), facts);
    let list = running.request("GET", "/debug/jobs/list").await;
    assert!(list.contains("x-list-version: 2\r\n") && list.contains("content-type: text/plain\r\n"), "{list}");
    let line = "url=https://host/p/-/jobs/7 state=pending stage=prepare_executor executor_stage=created duration=3.";
    assert!(list.contains(line), "{list}");
    assert!(running.request("GET", "/debug/process/state").await.ends_with("\r\n\r\nstarting"));
    running.telemetry.lifecycle.advance_to(ProcessState::GracefulShutdown);
    running.telemetry.lifecycle.advance_to(ProcessState::Running);
    assert!(running.request("GET", "/debug/process/state").await.ends_with("\r\n\r\ngraceful-shutdown"));
    assert!(running.request("GET", "/health/ready").await.ends_with("\r\n\r\nready"));
    assert!(running.request("GET", "/debug/pprof/profile?seconds=1").await.starts_with("HTTP/1.1 501 "));
    assert!(running.request("GET", "/").await.starts_with("HTTP/1.1 404 "));
}

struct TestEndpoint;

#[async_trait::async_trait]
impl JsonEndpoint for TestEndpoint {
    async fn respond(&self, query: &str) -> JsonResponse {
        match query {
            "" => JsonResponse::Ok(b"{}".to_vec()),
            "instance=x" => JsonResponse::NotFound(b"[]".to_vec()),
            other => JsonResponse::BadRequest(format!("`{other}` is not a valid query")),
        }
    }
}

#[tokio::test]
async fn endpoint_is_served_until_it_is_dropped() {
    let running = start().await;
    let endpoint: Arc<dyn JsonEndpoint> = Arc::new(TestEndpoint);
    running.telemetry.endpoints.add("/debug/test", Arc::downgrade(&endpoint));
    let found = running.request("GET", "/debug/test").await;
    assert!(found.starts_with("HTTP/1.1 200 ") && found.ends_with("\r\n\r\n{}"), "{found}");
    assert!(found.contains("content-type: application/json\r\n"), "{found}");
    assert!(running.request("GET", "/debug/test?instance=x").await.starts_with("HTTP/1.1 404 "));
    let wrong = running.request("GET", "/debug/test?what").await;
    assert!(wrong.starts_with("HTTP/1.1 400 ") && wrong.ends_with("`what` is not a valid query\n"), "{wrong}");
    drop(endpoint);
    assert!(running.request("GET", "/debug/test").await.starts_with("HTTP/1.1 404 "));
}

#[tokio::test]
async fn error_for_used_port_suggests_another_address() {
    let running = start().await;
    let address = running.address;
    let host = address.ip().to_string();
    let error = Server::bind(&host, address.port(), Arc::clone(&running.telemetry)).await.err().unwrap().to_string();
    let expected = format!(
        "failed to listen on {address} for metrics; if another process uses the port, set another listen_address"
    );
    assert_eq!(error, expected);
}

/// For example, if the process has no file descriptors left for a moment.
#[tokio::test]
async fn connections_are_served_after_a_failed_accept() {
    let telemetry = Telemetry::new(&BUILD, &Arc::default(), SpanSettings::default());
    let server = Server::bind("127.0.0.1", 0, Arc::clone(&telemetry)).await.unwrap();
    let (address, listener, fails) = (server.address().unwrap(), &server.listener, AtomicBool::new(true));
    let accept = || {
        let fails = fails.swap(false, Ordering::Relaxed);
        async move { if fails { Err(io::Error::other("too many open files")) } else { Ok(listener.accept().await?.0) } }
    };
    let (stop, serving) = (CancellationToken::new(), tokio::spawn(async {}));
    let server = serve_connections(accept, &telemetry, stop.clone());
    let running = RunningServer { address, telemetry: Arc::clone(&telemetry), stop, serving };
    let answered = tokio::time::timeout(Duration::from_secs(60), running.request("GET", "/debug/process/state"));
    let answer = tokio::select! {
        answer = answered => answer.expect("the server must accept again"),
        () = server => unreachable!("the server must run until it is stopped"),
    };
    assert!(answer.ends_with("starting"), "{answer}");
}

#[tokio::test]
async fn stop_closes_idle_connections_and_port() {
    let running = start().await;
    let mut idle = TcpStream::connect(running.address).await.unwrap();
    running.request("GET", "/health/ready").await;
    running.stop.cancel();
    running.serving.await.unwrap();
    assert_eq!(idle.read(&mut [0; 16]).await.unwrap(), 0);
    assert!(TcpStream::connect(running.address).await.is_err());
}

#[tokio::test]
async fn excess_connection_waits_until_one_closes() {
    let running = start().await;
    let mut silent = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        silent.push(TcpStream::connect(running.address).await.unwrap());
    }
    let waiting = running.request("GET", "/health/ready");
    let mut waiting = std::pin::pin!(waiting);
    // A server without the limit would answer within this time. If the machine is slow, the test passes anyway.
    let early = tokio::time::timeout(Duration::from_millis(100), waiting.as_mut()).await;
    assert_eq!(early.ok(), None, "the connection is beyond the limit");
    drop(silent.pop());
    assert!(waiting.as_mut().await.ends_with("ready"));
}

#[tokio::test]
async fn too_long_request_head_is_rejected() {
    let running = start().await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let head = format!("GET /{} HTTP/1.1\r\n", "a".repeat(MAX_HEAD_BYTES));
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // The kernel may drop the response when the server closes the connection.
    let _ = stream.read_to_string(&mut answer).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
}
