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

use crate::harness::{Harness, JOB, RUN};

const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

fn coordinator_of(harness: &Harness) -> SocketAddr {
    harness.settings(|_| {}).runners[0].url.socket_addrs(|| None).unwrap()[0]
}

async fn listener(scheme: &str) -> (TcpListener, Url) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("{scheme}://{}", listener.local_addr().unwrap()).parse().unwrap();
    (listener, url)
}

/// An answer that is paused after its first half. The test resumes it, or disconnects.
struct PausedAnswer(oneshot::Sender<bool>);

impl PausedAnswer {
    fn resume(self) {
        self.0.send(true).unwrap();
    }

    fn disconnect(self) {
        self.0.send(false).unwrap();
    }
}

/// Pauses in the middle of each answer with a job, until the test decides how to continue.
async fn start_pausing_proxy(harness: &Harness) -> (Url, mpsc::UnboundedReceiver<PausedAnswer>) {
    let (to, (listener, url)) = (coordinator_of(harness), listener("http").await);
    let (send, paused_answers) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (runner, _) = listener.accept().await.unwrap();
            tokio::spawn(pause_job_answers(runner, TcpStream::connect(to).await.unwrap(), send.clone()));
        }
    });
    (url, paused_answers)
}

async fn pause_job_answers(runner: TcpStream, server: TcpStream, paused_answers: mpsc::UnboundedSender<PausedAnswer>) {
    let ((mut requests, mut to_runner), (mut answers, mut to_server)) = (runner.into_split(), server.into_split());
    let requests = tokio::spawn(async move { tokio::io::copy(&mut requests, &mut to_server).await });
    let mut answer = Vec::new();
    let find = |answer: &[u8], text: &str| answer.windows(text.len()).position(|part| part == text.as_bytes());
    while answers.read_buf(&mut answer).await.is_ok_and(|count| count > 0) {
        if find(&answer, "201 Created").is_some() {
            let Some(middle) = find(&answer, "\"git_info\"") else { continue };
            let (send, decision) = oneshot::channel();
            to_runner.write_all(&answer[..middle]).await.unwrap();
            answer.drain(..middle);
            paused_answers.send(PausedAnswer(send)).unwrap();
            if !decision.await.unwrap() {
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

async fn next_paused_answer(paused_answers: &mut mpsc::UnboundedReceiver<PausedAnswer>) -> PausedAnswer {
    tokio::time::timeout(WAIT_TIMEOUT, paused_answers.recv()).await.expect("no answer with a job arrived").unwrap()
}

#[tokio::test]
async fn truncated_job_answer_is_reported() {
    let harness = Harness::like_gitlab().await;
    let (url, mut paused_answers) = start_pausing_proxy(&harness).await;
    harness.push(&json!({}));
    let manager = harness.manager_with_settings(harness.settings(|runner| runner.url = url)).await;
    next_paused_answer(&mut paused_answers).await.disconnect();
    let job = harness.coordinator.wait_for_end(JOB).await;
    let report = job.reports().last().unwrap();
    assert_eq!((job.assignments, report.failure_reason.as_deref()), (1, Some("runner_system_failure")));
    assert!(job.text().contains("the response was incomplete"), "{}", job.text());
    assert!(harness.agent.spool().started.is_empty());
    // The next job runs.
    harness.push(&json!({ "id": 8, "token": "other" }));
    next_paused_answer(&mut paused_answers).await.resume();
    harness.agent.wait_for(|spool| spool.started == ["8-1"]).await;
    harness.agent.finish("8-1", Outcome::Success);
    assert_eq!(harness.coordinator.wait_for_end(JobId(8)).await.status, JobStatus::Success);
    manager.drain().await;
    manager.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn begun_answer_is_read_to_its_end() {
    let harness = Harness::like_gitlab().await;
    let (url, mut paused_answers) = start_pausing_proxy(&harness).await;
    harness.push(&json!({}));
    let manager = harness.manager_with_settings(harness.settings(|runner| runner.url = url)).await;
    let paused = next_paused_answer(&mut paused_answers).await;
    manager.wait_for(|_| manager.metric("gitlab_runner_api_request_statuses_total") == 1.0).await;
    tokio::time::pause();
    manager.drain().await;
    tokio::time::advance(Duration::from_secs(100)).await;
    manager.wait_for_main_loop().await;
    tokio::time::resume();
    paused.resume();
    harness.agent.wait_for(|spool| spool.started == [RUN]).await;
    harness.agent.finish(RUN, Outcome::Success);
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, job.assignments), (JobStatus::Success, 1));
    manager.ended().await.unwrap();
}

/// A TLS proxy that accepts a connection only when the test allows it.
struct SlowTlsProxy {
    url: Url,
    directory: tempfile::TempDir,
    /// Has a message for each connection attempt.
    attempts: mpsc::UnboundedReceiver<()>,
    accept_permits: Arc<Semaphore>,
}

impl SlowTlsProxy {
    async fn start(harness: &Harness) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), certificate.pem()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap());
        let acceptor = TlsAcceptor::from(Arc::new(config.unwrap()));
        let (to, (listener, url)) = (coordinator_of(harness), listener("https").await);
        let (send, attempts) = mpsc::unbounded_channel();
        let accept_permits = Arc::new(Semaphore::new(0));
        let permits = Arc::clone(&accept_permits);
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
        Self { url, directory, attempts, accept_permits }
    }

    /// Returns settings with one connection for each request.
    fn settings(&self, harness: &Harness) -> Settings {
        let settings = harness.settings(|runner| {
            runner.url = self.url.clone();
            runner.tls = TlsFiles { ca: Some(self.directory.path().join("ca.pem")), ..TlsFiles::default() };
        });
        Settings { connection_max_age: ConnectionAge::NoReuse, ..settings }
    }

    async fn wait_for_connection(&mut self) {
        tokio::time::timeout(WAIT_TIMEOUT, self.attempts.recv()).await.expect("no connection attempt in time").unwrap();
    }
}

#[tokio::test]
async fn connect_time_does_not_count_as_hold_time() {
    let harness = Harness::like_gitlab().await;
    let mut slow = SlowTlsProxy::start(&harness).await;
    let manager = harness.manager_with_settings(slow.settings(&harness)).await;
    slow.wait_for_connection().await;
    slow.accept_permits.add_permits(1);
    // This is the connection of the second request. The job that is pushed below changes the version of the queue, so
    // the front end does not hold this request.
    slow.wait_for_connection().await;
    harness.coordinator.set_assignment_enabled(false);
    harness.push(&json!({}));
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(9)).await;
    tokio::time::resume();
    slow.accept_permits.add_permits(1);
    harness.coordinator.wait_for_pending_requests(1).await;
    tokio::time::pause();
    manager.drain().await;
    tokio::time::advance(Duration::from_secs(9)).await;
    manager.wait_for_main_loop().await;
    tokio::time::resume();
    slow.accept_permits.add_permits(Semaphore::MAX_PERMITS / 2);
    harness.coordinator.set_assignment_enabled(true);
    harness.agent.wait_for(|spool| spool.started == [RUN]).await;
    harness.agent.finish(RUN, Outcome::Success);
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, job.assignments), (JobStatus::Success, 1));
    manager.ended().await.unwrap();
}

#[tokio::test]
async fn unconnected_request_does_not_delay_exit() {
    for command in [ControlCommand::Drain, ControlCommand::Abort, ControlCommand::Leave] {
        let harness = Harness::like_gitlab().await;
        let mut slow = SlowTlsProxy::start(&harness).await;
        let manager = harness.manager_with_settings(slow.settings(&harness)).await;
        slow.wait_for_connection().await;
        tokio::time::pause();
        manager.control.send(command).await;
        tokio::time::advance(Duration::from_secs(10)).await;
        tokio::time::resume();
        manager.ended_within(Duration::from_secs(5)).await.unwrap();
        slow.accept_permits.add_permits(1);
        assert_eq!(harness.coordinator.requests(), 0);
    }
}
