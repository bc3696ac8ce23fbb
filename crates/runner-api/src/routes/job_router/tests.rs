//! The gRPC service with requests of gitlab-runner.

use std::sync::Arc;
use std::time::Duration;

use muster_job::JobId;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use crate::job_router::GetJobRequest;
use crate::job_router::job_router_client::JobRouterClient;
use crate::payload::JobPayload;
use crate::routes::MAX_RUNNER_BODY_BYTES;
use crate::test_support::{Call, Fault, MemoryCoordinator, RUNNER_TOKEN, Served, serve};

struct Server {
    coordinator: Arc<MemoryCoordinator>,
    client: JobRouterClient<Channel>,
    served: Served,
}

impl Server {
    async fn start(coordinator: MemoryCoordinator) -> Self {
        let coordinator = Arc::new(coordinator);
        let served = serve(coordinator.clone()).await.unwrap();
        let channel = Endpoint::from_shared(served.url.to_string()).unwrap().connect().await.unwrap();
        Self { coordinator, client: JobRouterClient::new(channel), served }
    }

    async fn get_job(&self, json: &str) -> Result<tonic::Response<crate::job_router::GetJobResponse>, tonic::Status> {
        let mut request = Request::new(GetJobRequest { job_request: json.to_owned().into() });
        let metadata = request.metadata_mut();
        metadata.insert("authorization", format!("Bearer {RUNNER_TOKEN}").parse().unwrap());
        metadata.insert("gitlab-agent-type", "runner".parse().unwrap());
        metadata.insert("x-request-id", "0af".parse().unwrap());
        self.client.clone().get_job(request).await
    }

    async fn discover(&self, headers: &[(&str, &str)]) -> (u16, String) {
        let client = crate::client::http_client(&crate::client::TlsFiles::default()).unwrap().no_proxy();
        let url = format!("{}api/v4/runners/router/discovery", self.served.url);
        let mut call = client.build().unwrap().get(url);
        for (name, value) in headers {
            call = call.header(*name, *value);
        }
        let response = call.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }
}

fn coordinator() -> MemoryCoordinator {
    MemoryCoordinator::new(Duration::from_millis(50))
}

#[tokio::test]
async fn response_has_the_payload_and_the_version_of_the_queue() {
    let server = Server::start(coordinator()).await;
    let empty = server.get_job("{}").await.unwrap();
    assert!(empty.get_ref().job_response.is_empty());
    let payload: JobPayload = serde_json::from_value(
        serde_json::json!({ "id": 7, "token": "secret", "variables": [{ "key": "A", "value": "1" }] }),
    )
    .unwrap();
    server.coordinator.enqueue(payload.clone());
    let response = server.get_job(r#"{"last_update":"1","info":{"name":"gitlab-runner"}}"#).await.unwrap();
    let header = |name: &str| response.metadata().get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(
        [header("x-gitlab-last-update"), header("x-request-id"), header("x-muster-idempotency-key")],
        [Some("1".to_owned()), Some("0af".to_owned()), Some("honored".to_owned())]
    );
    assert_eq!(JobPayload::read(&response.get_ref().job_response).unwrap(), payload);
    assert_eq!(server.coordinator.job(JobId(7)).unwrap().assignments, 1);
}

#[tokio::test]
async fn errors_have_their_grpc_codes() {
    let server = Server::start(coordinator()).await;
    let status = server.get_job(r#"{"token":"wrong"}"#).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "the token of the request must be preferred: {status}");
    let status = server.get_job("not json").await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("invalid request body"), "{status}");
    server.coordinator.fail(Call::RequestJob, [Fault::FailBefore, Fault::Missing]);
    for _ in 0..2 {
        assert_eq!(server.get_job("{}").await.unwrap_err().code(), Code::Unavailable);
    }
    let requests = server.coordinator.requests();
    let large = format!(r#"{{"system_id":"{}"}}"#, "s".repeat(MAX_RUNNER_BODY_BYTES));
    assert_eq!(server.get_job(&large).await.unwrap_err().code(), Code::OutOfRange);
    assert_eq!(server.coordinator.requests(), requests, "a request that is too large must not be processed");
}

#[tokio::test]
async fn discovery_returns_the_address_that_the_caller_used() {
    let server = Server::start(coordinator()).await;
    let port = server.served.url.port().unwrap();
    assert_eq!(server.discover(&[]).await, (200, format!(r#"{{"server_url":"grpc://127.0.0.1:{port}"}}"#)));
    let behind_proxy = [("host", "ci.example"), ("x-forwarded-proto", "https")];
    assert_eq!(server.discover(&behind_proxy).await, (200, r#"{"server_url":"grpcs://ci.example"}"#.to_owned()));
    // Without idempotency keys, a lost response would lose the job, so gRPC must not be announced.
    let gitlab = Server::start(coordinator().as_gitlab(Duration::ZERO)).await;
    assert_eq!(gitlab.discover(&[]).await.0, 501);
}
