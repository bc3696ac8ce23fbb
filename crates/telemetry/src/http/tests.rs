use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

use super::*;
use crate::metrics::{EntryLabels, JobFacts, Mode};
use crate::spans::SpanSettings;
use crate::{Build, ProcessState};

const BUILD: Build = Build { name: "muster", version: "1", revision: "a", branch: "b", built_at: "c" };

struct Running {
    address: std::net::SocketAddr,
    telemetry: Arc<Telemetry>,
    stop: CancellationToken,
    serving: JoinHandle<()>,
}

async fn start() -> Running {
    let telemetry = Telemetry::new(&BUILD, &Arc::default(), SpanSettings::default());
    let server = Server::bind("127.0.0.1", 0, Arc::clone(&telemetry)).await.unwrap();
    let (address, stop) = (server.address().unwrap(), CancellationToken::new());
    let serving = tokio::spawn(server.serve(stop.clone()));
    Running { address, telemetry, stop, serving }
}

impl Running {
    /// Sends a request and returns the whole response, head and body.
    async fn ask(&self, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

#[tokio::test]
async fn metrics_are_for_get_and_head() {
    let running = start().await;
    let got = running.ask("GET", "/metrics").await;
    assert!(got.starts_with("HTTP/1.1 200 OK\r\n"), "{got}");
    assert!(got.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{got}");
    assert!(got.contains("gitlab_runner_version_info{"), "{got}");
    let head = running.ask("HEAD", "/metrics").await;
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    let post = running.ask("POST", "/metrics").await;
    assert!(post.starts_with("HTTP/1.1 405 ") && post.contains("allow: GET, HEAD\r\n"), "{post}");
}

#[tokio::test]
async fn jobs_and_states_are_listed() {
    let running = start().await;
    let metrics = &running.telemetry.metrics;
    let facts = JobFacts {
        url: "https://host/p/-/jobs/7".to_owned(),
        mode: Mode::Traditional,
        age: Duration::from_secs(3),
        queued: Duration::ZERO,
        project_jobs_running: String::new(),
        queue: None,
    };
    let _job = metrics.job(&metrics.entry(&EntryLabels::default()), facts);
    let list = running.ask("GET", "/debug/jobs/list").await;
    assert!(list.contains("x-list-version: 2\r\n") && list.contains("content-type: text/plain\r\n"), "{list}");
    let line = "url=https://host/p/-/jobs/7 state=pending stage=prepare_executor executor_stage=created duration=3.";
    assert!(list.contains(line), "{list}");
    assert!(running.ask("GET", "/debug/process/state").await.ends_with("\r\n\r\nstarting"));
    running.telemetry.life.reach(ProcessState::GracefulShutdown);
    running.telemetry.life.reach(ProcessState::Running);
    assert!(running.ask("GET", "/debug/process/state").await.ends_with("\r\n\r\ngraceful-shutdown"));
    assert!(running.ask("GET", "/health/ready").await.ends_with("\r\n\r\nready"));
    running.telemetry.life.set_ready(false);
    let pending = running.ask("GET", "/health/ready").await;
    assert!(pending.starts_with("HTTP/1.1 503 ") && pending.ends_with("\r\n\r\nboot-verify pending"), "{pending}");
    assert!(running.ask("GET", "/debug/pprof/profile?seconds=1").await.starts_with("HTTP/1.1 501 "));
    assert!(running.ask("GET", "/").await.starts_with("HTTP/1.1 404 "));
}

struct Told;

#[async_trait::async_trait]
impl Page for Told {
    async fn answer(&self, query: &str) -> JsonAnswer {
        match query {
            "" => JsonAnswer::Found(b"{}".to_vec()),
            "instance=x" => JsonAnswer::Missing(b"[]".to_vec()),
            other => JsonAnswer::Wrong(format!("`{other}` is no question")),
        }
    }
}

#[tokio::test]
async fn pages_of_other_rooms_are_answered_while_they_are_there() {
    let running = start().await;
    let page: Arc<dyn Page> = Arc::new(Told);
    running.telemetry.pages.add("/debug/told", Arc::downgrade(&page));
    let found = running.ask("GET", "/debug/told").await;
    assert!(found.starts_with("HTTP/1.1 200 ") && found.ends_with("\r\n\r\n{}"), "{found}");
    assert!(found.contains("content-type: application/json\r\n"), "{found}");
    assert!(running.ask("GET", "/debug/told?instance=x").await.starts_with("HTTP/1.1 404 "));
    let wrong = running.ask("GET", "/debug/told?what").await;
    assert!(wrong.starts_with("HTTP/1.1 400 ") && wrong.ends_with("`what` is no question\n"), "{wrong}");
    drop(page);
    assert!(running.ask("GET", "/debug/told").await.starts_with("HTTP/1.1 404 "));
}

#[tokio::test]
async fn a_port_in_use_is_told_with_what_to_do() {
    let running = start().await;
    let address = running.address;
    let host = address.ip().to_string();
    let error = Server::bind(&host, address.port(), Arc::clone(&running.telemetry)).await.err().unwrap().to_string();
    let expected =
        format!("cannot listen on {address} for metrics; if another process has the port, set another listen_address");
    assert_eq!(error, expected);
}

#[tokio::test]
async fn a_stop_ends_idle_connections_and_frees_the_port() {
    let running = start().await;
    let mut idle = TcpStream::connect(running.address).await.unwrap();
    running.ask("GET", "/health/ready").await;
    running.stop.cancel();
    running.serving.await.unwrap();
    assert_eq!(idle.read(&mut [0; 16]).await.unwrap(), 0);
    assert!(TcpStream::connect(running.address).await.is_err());
}

#[tokio::test]
async fn more_clients_than_there_is_room_for_wait_and_are_served() {
    let running = start().await;
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        silent.push(TcpStream::connect(running.address).await.unwrap());
    }
    let waiting = running.ask("GET", "/health/ready");
    let mut waiting = std::pin::pin!(waiting);
    // Closing one connection lets the waiting one proceed.
    drop(silent.pop());
    assert!(waiting.as_mut().await.ends_with("ready"));
}

#[tokio::test]
async fn a_head_that_is_too_long_is_refused() {
    let running = start().await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    let head = format!("GET /{} HTTP/1.1\r\n", "a".repeat(HEAD_MAX_BYTES));
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // Whether the response arrives or only the end of the connection depends on what the kernel has buffered.
    let _ = stream.read_to_string(&mut answer).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
}
