//! Slow and broken connections to a server that behaves like GitLab.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::result::Outcome;
use muster_config::settings::{ConnectionAge, Settings, TlsFiles};
use muster_job::{JobId, JobStatus};
use muster_manager::ControlCommand;
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use url::Url;

use crate::bench::{Bench, JOB, RUN};

const SOON: Duration = Duration::from_secs(20);

/// Address of the bench's coordinator.
fn coordinator_of(bench: &Bench) -> SocketAddr {
    bench.settings(|_| {}).runners[0].url.socket_addrs(|| None).unwrap()[0]
}

async fn listener(scheme: &str) -> (TcpListener, Url) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("{scheme}://{}", listener.local_addr().unwrap()).parse().unwrap();
    (listener, url)
}

/// Lets the test decide how an answer continues after its first half.
struct Half(oneshot::Sender<bool>);

impl Half {
    fn goes_on(self) {
        self.0.send(true).unwrap();
    }

    /// Breaks the connection.
    fn breaks_off(self) {
        self.0.send(false).unwrap();
    }
}

/// A proxy that stops in the middle of each answer with a job, until the test decides how it continues.
async fn halving(bench: &Bench) -> (Url, mpsc::UnboundedReceiver<Half>) {
    let (to, (listener, url)) = (coordinator_of(bench), listener("http").await);
    let (send, halves) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (runner, _) = listener.accept().await.unwrap();
            tokio::spawn(halve(runner, TcpStream::connect(to).await.unwrap(), send.clone()));
        }
    });
    (url, halves)
}

async fn halve(runner: TcpStream, server: TcpStream, halves: mpsc::UnboundedSender<Half>) {
    let ((mut requests, mut to_runner), (mut answers, mut to_server)) = (runner.into_split(), server.into_split());
    let requests = tokio::spawn(async move { tokio::io::copy(&mut requests, &mut to_server).await });
    let mut answer = Vec::new();
    let find = |answer: &[u8], text: &str| answer.windows(text.len()).position(|part| part == text.as_bytes());
    while answers.read_buf(&mut answer).await.is_ok_and(|count| count > 0) {
        if find(&answer, "201 Created").is_some() {
            let Some(middle) = find(&answer, "\"git_info\"") else { continue };
            let (send, goes_on) = oneshot::channel();
            to_runner.write_all(&answer[..middle]).await.unwrap();
            answer.drain(..middle);
            halves.send(Half(send)).unwrap();
            if !goes_on.await.unwrap() {
                break;
            }
        }
        if to_runner.write_all(&answer).await.is_err() {
            break;
        }
        answer.clear();
    }
    requests.abort();
}

async fn half(halves: &mut mpsc::UnboundedReceiver<Half>) -> Half {
    tokio::time::timeout(SOON, halves.recv()).await.expect("no job was answered").unwrap()
}

#[tokio::test]
async fn truncated_job_answer_is_reported() {
    let bench = Bench::at_gitlab().await;
    let (url, mut halves) = halving(&bench).await;
    bench.push(&json!({}));
    let manager = bench.manager_of(bench.settings(|runner| runner.url = url)).await;
    half(&mut halves).await.breaks_off();
    let job = bench.coordinator.wait_for_end(JOB).await;
    let report = job.reports().last().unwrap();
    assert_eq!((job.assignments, report.failure_reason.as_deref()), (1, Some("runner_system_failure")));
    assert!(job.text().contains("the response was incomplete"), "{}", job.text());
    assert!(bench.agent.spool().started.is_empty());
    // The next job runs.
    bench.push(&json!({ "id": 8, "token": "other" }));
    half(&mut halves).await.goes_on();
    bench.agent.wait_for(|spool| spool.started == ["8-1"]).await;
    bench.agent.finish("8-1", Outcome::Success);
    assert_eq!(bench.coordinator.wait_for_end(JobId(8)).await.status, JobStatus::Success);
    manager.drain().await;
    manager.ended().await.unwrap();
    bench.check_forgotten().await;
}

#[tokio::test]
async fn begun_answer_is_read_to_its_end() {
    let bench = Bench::at_gitlab().await;
    let (url, mut halves) = halving(&bench).await;
    bench.push(&json!({}));
    let manager = bench.manager_of(bench.settings(|runner| runner.url = url)).await;
    let rest = half(&mut halves).await;
    manager.wait_for(|_| manager.metric("gitlab_runner_api_request_statuses_total") == 1.0).await;
    tokio::time::pause();
    manager.drain().await;
    tokio::time::advance(Duration::from_secs(100)).await;
    manager.looked_around().await;
    tokio::time::resume();
    rest.goes_on();
    bench.agent.wait_for(|spool| spool.started == [RUN]).await;
    bench.agent.finish(RUN, Outcome::Success);
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, job.assignments), (JobStatus::Success, 1));
    manager.ended().await.unwrap();
}

/// A TLS proxy that accepts a connection only when the test allows it.
struct Slow {
    url: Url,
    folder: tempfile::TempDir,
    /// Connections that wait to be accepted.
    came: mpsc::UnboundedReceiver<()>,
    may_be_made: Arc<Semaphore>,
}

impl Slow {
    async fn start(bench: &Bench) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap());
        let acceptor = TlsAcceptor::from(Arc::new(config.unwrap()));
        let (to, (listener, url)) = (coordinator_of(bench), listener("https").await);
        let (send, came) = mpsc::unbounded_channel();
        let may_be_made = Arc::new(Semaphore::new(0));
        let permits = Arc::clone(&may_be_made);
        tokio::spawn(async move {
            loop {
                let (runner, _) = listener.accept().await.unwrap();
                let (acceptor, permits, send) = (acceptor.clone(), Arc::clone(&permits), send.clone());
                tokio::spawn(async move {
                    send.send(()).unwrap();
                    permits.acquire().await.unwrap().forget();
                    let Ok(mut runner) = acceptor.accept(runner).await else { return };
                    let mut server = TcpStream::connect(to).await.unwrap();
                    let _ = copy_bidirectional(&mut runner, &mut server).await;
                });
            }
        });
        Self { url, folder, came, may_be_made }
    }

    /// Returns settings with one connection for each request.
    fn settings(&self, bench: &Bench) -> Settings {
        let settings = bench.settings(|runner| {
            runner.url = self.url.clone();
            runner.tls = TlsFiles { ca: Some(self.folder.path().join("ca.pem")), ..TlsFiles::default() };
        });
        Settings { connection_max_age: ConnectionAge::NoReuse, ..settings }
    }

    /// Waits for a connection attempt.
    async fn came(&mut self) {
        tokio::time::timeout(SOON, self.came.recv()).await.expect("no connection").unwrap();
    }
}

#[tokio::test]
async fn connect_time_does_not_count_as_hold_time() {
    let bench = Bench::at_gitlab().await;
    let mut slow = Slow::start(&bench).await;
    let manager = bench.manager_of(slow.settings(&bench)).await;
    slow.came().await;
    slow.may_be_made.add_permits(1);
    // The second request carries a version of the queue. It is outdated on arrival, so the front end passes the request on.
    slow.came().await;
    bench.coordinator.look_for_jobs(false);
    bench.push(&json!({}));
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(9)).await;
    tokio::time::resume();
    slow.may_be_made.add_permits(1);
    bench.coordinator.wait_for_looking(1).await;
    tokio::time::pause();
    manager.drain().await;
    tokio::time::advance(Duration::from_secs(9)).await;
    manager.looked_around().await;
    tokio::time::resume();
    slow.may_be_made.add_permits(Semaphore::MAX_PERMITS / 2);
    bench.coordinator.look_for_jobs(true);
    bench.agent.wait_for(|spool| spool.started == [RUN]).await;
    bench.agent.finish(RUN, Outcome::Success);
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, job.assignments), (JobStatus::Success, 1));
    manager.ended().await.unwrap();
}

#[tokio::test]
async fn unconnected_request_does_not_delay_exit() {
    for order in [ControlCommand::Drain, ControlCommand::Abort, ControlCommand::Leave] {
        let bench = Bench::at_gitlab().await;
        let mut slow = Slow::start(&bench).await;
        let manager = bench.manager_of(slow.settings(&bench)).await;
        slow.came().await;
        tokio::time::pause();
        manager.control.send(order).await;
        tokio::time::advance(Duration::from_secs(10)).await;
        tokio::time::resume();
        manager.ended_within(Duration::from_secs(5)).await.unwrap();
        slow.may_be_made.add_permits(1);
        assert_eq!(bench.coordinator.requests(), 0);
    }
}
