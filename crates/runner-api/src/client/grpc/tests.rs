//! Job requests over gRPC with the real routes: they have the same results as over HTTP, and no job is lost.

use std::sync::Arc;
use std::time::Duration;

use muster_job::JobId;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::{Client, ClientError, ConnectionAge, JobOffer, Progress, TlsFiles};
use crate::payload::JobPayload;
use crate::test_support::{Call, Fault, Http2, MemoryCoordinator, RUNNER_TOKEN, Relay, Served, serve};
use crate::wire::JobRequest;

mod hostile;
mod tls;

const JOB: JobId = JobId(7);
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

struct LogWriter(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Setup {
    coordinator: Arc<MemoryCoordinator>,
    relay: Relay,
    client: Client,
    _served: Served,
}

impl Setup {
    async fn over_http(long_poll: Duration) -> Self {
        let coordinator = Arc::new(MemoryCoordinator::new(long_poll));
        let served = serve(coordinator.clone()).await.unwrap();
        let relay = Relay::start(&served.url).await.unwrap();
        let client = Client::new(&relay.url).unwrap();
        Self { coordinator, relay, client, _served: served }
    }

    async fn over_grpc(long_poll: Duration) -> Self {
        let setup = Self::over_http(long_poll).await;
        setup.coordinator.enqueue(payload(1));
        assert_eq!(setup.request("first").await.unwrap().job.unwrap().id, JobId(1));
        assert_eq!(setup.relay.http2_connections(), 0, "before the announcement, HTTP must be used");
        setup
    }

    async fn request(&self, key: &str) -> Result<JobOffer, ClientError> {
        request(&self.client, key, &Progress::default()).await
    }

    async fn held_request(&self, key: &str) -> (JoinHandle<Result<JobOffer, ClientError>>, Progress) {
        let progress = Progress::default();
        let task = tokio::spawn({
            let (client, key, progress) = (self.client.clone(), key.to_owned(), progress.clone());
            async move { request(&client, &key, &progress).await }
        });
        self.coordinator.wait_for_held_requests(1).await;
        (task, progress)
    }
}

fn job_request(key: &str) -> JobRequest {
    JobRequest { token: RUNNER_TOKEN.to_owned(), idempotency_key: Some(key.to_owned()), ..JobRequest::default() }
}

async fn request(client: &Client, key: &str, progress: &Progress) -> Result<JobOffer, ClientError> {
    let result = tokio::time::timeout(TEST_TIMEOUT, client.request_job(&job_request(key), progress)).await;
    result.expect("no result in time")
}

fn payload(id: i64) -> JobPayload {
    let job = serde_json::json!({ "id": id, "token": "secret", "steps": [{ "name": "script", "script": ["make"] }] });
    serde_json::from_value(job).unwrap()
}

/// Checks [`Client::request_job`]. Returns the relay's number of HTTP/2 connections.
async fn check_contract(setup: Setup) -> usize {
    let Setup { coordinator, client, .. } = &setup;
    // Without `last_update`, the response is immediate.
    let empty = setup.request("a").await.unwrap();
    assert!(empty.job.is_none() && empty.text.is_empty() && empty.honors_idempotency_key);
    assert_eq!(empty.last_update.as_deref(), Some("1"));

    coordinator.enqueue(payload(7));
    let progress = Progress::default();
    let offer = request(client, "b", &progress).await.unwrap();
    assert_eq!(*offer.job.unwrap(), payload(7));
    assert_eq!(offer.text, serde_json::to_string(&payload(7)).unwrap());
    assert!(offer.honors_idempotency_key && progress.is_answered());
    assert_eq!(setup.request("b").await.unwrap().job.unwrap().id, JOB, "the same key must get the same job");
    assert_eq!(coordinator.job(JOB).unwrap().assignments, 1);

    let unknown = JobRequest { token: "wrong".to_owned(), ..JobRequest::default() };
    let error = client.request_job(&unknown, &Progress::default()).await.unwrap_err();
    assert!(error.is_unknown_token(), "{error}");
    coordinator.fail(Call::RequestJob, [Fault::Rejected]);
    let error = setup.request("c").await.unwrap_err();
    assert!(matches!(error, ClientError::Rejected { code: 400, .. }), "{error}");
    assert!(error.to_string().contains("injected fault"), "{error}");
    setup.relay.http2_connections()
}

#[tokio::test]
async fn requests_have_the_same_results_over_both_transports() {
    let http = Setup::over_http(Duration::from_millis(50)).await;
    http.relay.set_http2(Http2::Reject);
    check_contract(http).await;
    let grpc = Setup::over_grpc(Duration::from_millis(50)).await;
    assert_eq!(check_contract(grpc).await, 1, "all requests must share one HTTP/2 connection");
}

#[tokio::test]
async fn logs_hide_the_password_of_the_url() {
    let log = Arc::new(std::sync::Mutex::new(Vec::new()));
    let writer = Arc::clone(&log);
    let subscriber = tracing_subscriber::fmt().with_writer(move || LogWriter(Arc::clone(&writer))).finish();
    let _subscribed = tracing::subscriber::set_default(subscriber);
    let mut setup = Setup::over_http(Duration::from_millis(50)).await;
    let mut url = setup.relay.url.clone();
    url.set_username("ci").unwrap();
    url.set_password(Some("pa55word")).unwrap();
    setup.client = Client::new(&url).unwrap();
    setup.request("over HTTP").await.unwrap();
    setup.relay.set_http2(Http2::Reject);
    setup.request("over gRPC, then HTTP").await.unwrap();
    let log = String::from_utf8(log.lock().unwrap().clone()).unwrap();
    assert!(log.contains("coordinator supports gRPC") && log.contains("failed to request a job over gRPC"), "{log}");
    assert!(log.contains(setup.relay.url.as_str().trim_end_matches('/')) && !log.contains("pa55word"), "{log}");
}

#[tokio::test]
async fn connections_of_grpc_are_reused_up_to_their_max_age() {
    let expired = ConnectionAge::UpTo(Duration::from_nanos(1));
    for (age, connections) in [(ConnectionAge::Any, 1), (expired, 2), (ConnectionAge::NoReuse, 2)] {
        let mut setup = Setup::over_http(Duration::from_millis(50)).await;
        setup.client = Client::with_max_connection_age(&setup.relay.url, &TlsFiles::default(), age).unwrap();
        for key in ["over HTTP", "a", "b"] {
            assert!(setup.request(key).await.unwrap().job.is_none());
        }
        assert_eq!(setup.relay.http2_connections(), connections, "{age:?}");
    }
}

#[tokio::test]
async fn held_request_gets_a_job_over_grpc() {
    let setup = Setup::over_grpc(TEST_TIMEOUT).await;
    let (held, progress) = setup.held_request("a").await;
    assert!(progress.sent_at().is_some() && !progress.is_answered());
    setup.coordinator.enqueue(payload(7));
    assert_eq!(held.await.unwrap().unwrap().job.unwrap().id, JOB);
    assert_eq!(setup.relay.http2_connections(), 1);
}

#[tokio::test]
async fn dropped_request_is_assigned_no_job() {
    let setup = Setup::over_grpc(TEST_TIMEOUT).await;
    let (held, _) = setup.held_request("a").await;
    held.abort();
    let _ = held.await;
    setup.coordinator.wait_for_held_requests(0).await;
    setup.coordinator.enqueue(payload(7));
    assert_eq!(setup.coordinator.job(JOB).unwrap().assignments, 0);
    assert_eq!(setup.request("b").await.unwrap().job.unwrap().id, JOB);
    assert_eq!(setup.coordinator.job(JOB).unwrap().assignments, 1);
}

#[tokio::test]
async fn job_of_a_lost_response_is_fetched_over_http() {
    let setup = Setup::over_grpc(TEST_TIMEOUT).await;
    let (held, _) = setup.held_request("a").await;
    setup.relay.set_http2(Http2::LoseResponse);
    setup.coordinator.enqueue(payload(7));
    setup.coordinator.enqueue(payload(8));
    let offer = held.await.unwrap().unwrap();
    assert_eq!(offer.job.unwrap().id, JOB);
    assert_eq!(setup.coordinator.job(JOB).unwrap().assignments, 1, "the job must be assigned only once");
    assert_eq!(setup.request("b").await.unwrap().job.unwrap().id, JobId(8));
    assert_eq!(setup.relay.http2_connections(), 1, "gRPC must be paused");
}

#[tokio::test]
async fn failure_over_both_transports_is_the_error_of_http() {
    let setup = Setup::over_grpc(Duration::from_millis(50)).await;
    setup.coordinator.fail(Call::RequestJob, [Fault::FailAfter, Fault::FailAfter]);
    setup.coordinator.enqueue(payload(7));
    let error = setup.request("a").await.unwrap_err();
    assert!(matches!(error, ClientError::Transient { code: Some(500), .. }), "{error}");
    let after_the_pause = Instant::now() + Duration::from_secs(3600);
    assert!(setup.client.grpc.is_on(after_the_pause), "an error over HTTP must not withdraw the announcement");
    assert_eq!(setup.request("a").await.unwrap().job.unwrap().id, JOB);
    assert_eq!(setup.coordinator.job(JOB).unwrap().assignments, 1);
}

#[tokio::test]
async fn proxy_without_http2_gets_requests_over_http() {
    let setup = Setup::over_grpc(Duration::from_millis(50)).await;
    setup.relay.set_http2(Http2::Reject);
    for id in [7, 8, 9] {
        setup.coordinator.enqueue(payload(id));
        assert_eq!(setup.request(&id.to_string()).await.unwrap().job.unwrap().id, JobId(id));
        assert_eq!(setup.relay.http2_connections(), 1, "only one request may try gRPC");
    }
}

#[tokio::test]
async fn request_that_was_canceled_before_it_was_sent_is_not_sent_over_http() {
    let setup = Setup::over_grpc(Duration::from_millis(50)).await;
    let requests = setup.coordinator.requests();
    let progress = Progress::default();
    assert!(progress.cancel_unsent());
    let error = request(&setup.client, "a", &progress).await.unwrap_err();
    assert!(error.transient().is_some(), "{error}");
    assert_eq!(setup.coordinator.requests(), requests);
    setup.coordinator.enqueue(payload(7));
    assert_eq!(setup.request("a").await.unwrap().job.unwrap().id, JOB);
    assert_eq!(setup.relay.http2_connections(), 1, "a cancellation must not pause gRPC");
}
