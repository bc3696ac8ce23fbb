//! Job requests over gRPC to the coordinator's server: they are held, and a lost response loses no job.

#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use muster_coordinator::http::HttpServer;
use muster_coordinator::views::PipelineView;
use muster_job::JobStatus;
use muster_runner_api::client::{Client, Progress};
use muster_runner_api::payload::JobPayload;
use muster_runner_api::test_support::{Http2, Relay};
use muster_runner_api::wire::UpdateRequest;
use tokio::task::JoinHandle;
use url::Url;

use crate::support::{Harness, Manager, TIMEOUT, job};

/// The server of a coordinator behind a relay, with a client whose next job request uses gRPC.
struct Server {
    harness: Harness,
    manager: Manager,
    relay: Relay,
    client: Client,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start() -> Self {
        let harness = Harness::with(|options| options.long_poll = Duration::from_secs(50)).await;
        let manager = harness.manager().await;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = HttpServer::open(address).await.expect("failed to bind a port");
        let url = Url::parse(&server.url()).expect("the URL is invalid");
        let task = tokio::spawn(server.serve(Arc::clone(&harness.coordinator), None));
        let relay = Relay::start(&url).await.expect("failed to start the relay");
        let client = Client::new(&relay.url).expect("failed to create a client");
        harness.create(vec![vec![job("first")]]).await;
        let server = Self { harness, manager, relay, client, task };
        let first = server.request("first").await.expect("no job");
        server.manager.succeed(&first).await;
        assert_eq!(server.relay.http2_connections(), 0, "the first request must use HTTP");
        server
    }

    async fn request(&self, key: &str) -> Option<JobPayload> {
        let request = self.manager.request(Some(key));
        let offer = tokio::time::timeout(TIMEOUT, self.client.request_job(&request, &Progress::default())).await;
        offer.expect("no response in time").expect("the request failed").job.map(|job| *job)
    }

    /// Starts a job request, and waits until it is sent. All requests after the first one use gRPC.
    async fn send_request(&self, key: &str) -> JoinHandle<Option<JobPayload>> {
        let (client, request, progress) = (self.client.clone(), self.manager.request(Some(key)), Progress::default());
        let task = tokio::spawn({
            let progress = progress.clone();
            async move { client.request_job(&request, &progress).await.expect("the request failed").job.map(|job| *job) }
        });
        while progress.sent_at().is_none() {
            assert!(!task.is_finished());
            tokio::task::yield_now().await;
        }
        task
    }
}

#[tokio::test]
async fn second_request_uses_grpc_and_the_job_is_reported_over_http() {
    let server = Server::start().await;
    let pending = server.send_request("a").await;
    let pipeline = server.harness.create(vec![vec![job("a")]]).await;
    let assigned = tokio::time::timeout(TIMEOUT, pending).await.expect("no response in time").expect("panicked");
    let assigned = assigned.expect("no job");
    assert_eq!((assigned.job_info.name.as_str(), server.relay.http2_connections()), ("a", 1));
    assert_eq!(assigned.steps.first().expect("no step").script, ["true"], "the payload must be complete");

    server
        .client
        .patch_trace(assigned.id, &assigned.token, 0, "log".into(), false)
        .await
        .expect("failed to send the trace");
    let success =
        UpdateRequest { token: assigned.token.clone(), state: "success".to_owned(), ..UpdateRequest::default() };
    server.client.update_job(assigned.id, &success).await.expect("failed to send the report");
    assert_eq!(server.harness.status(pipeline, "a").await, JobStatus::Success);
    assert_eq!(server.relay.http2_connections(), 1, "only job requests must use gRPC");
}

#[tokio::test]
async fn same_key_gets_the_job_of_a_lost_grpc_response_over_http() {
    let server = Server::start().await;
    server.relay.set_http2(Http2::LoseResponse);
    server.harness.create(vec![vec![job("a"), job("b")]]).await;
    // The relay drops the response over gRPC and closes the connection. The client repeats the request over HTTP.
    let first = server.request("a").await.expect("no job");
    assert_eq!(server.relay.http2_connections(), 1, "the lost response must be sent over gRPC");
    assert_eq!(first.job_info.name, "a");
    let repeated = server.request("a").await.expect("no job");
    assert_eq!((repeated.id, repeated.token), (first.id, first.token.clone()), "the assignment must be the same");
    assert_eq!(server.request("b").await.expect("no job").job_info.name, "b");
}

#[tokio::test]
async fn job_of_a_lost_grpc_response_is_requeued_if_its_manager_is_silent() {
    let server = Server::start().await;
    server.relay.set_http2(Http2::DiscardResponse);
    let pending = server.send_request("a").await;
    let pipeline = server.harness.create(vec![vec![job("a")]]).await;
    let is_assigned = |view: &PipelineView| view.job("a").is_some_and(|job| job.status == JobStatus::Running);
    server.harness.wait_until(pipeline, is_assigned).await;
    pending.abort();
    assert!(pending.await.is_err(), "the relay must drop the response");
    server.harness.clock.advance(Duration::from_secs(60));
    let other = server.harness.manager().await;
    assert_eq!(other.next_job().await.job_info.name, "a");
}
