//! Job requests over gRPC (docs/spec/runner-api.md, section 7).
//!
//! A header of HTTP responses announces gRPC to Muster's client, and `GET /runners/router/discovery` to gitlab-runner.
//! gRPC is announced only if the service honors idempotency keys, because a client repeats a request whose response was
//! lost.

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use serde_json::json;
use tonic::metadata::{MetadataMap, MetadataValue};

use super::answer::{self, Refusal};
use super::{MAX_RUNNER_BODY_BYTES, Service, decode, empty, header_text};
use crate::job_router::job_router_server::{JobRouter, JobRouterServer, SERVICE_NAME};
use crate::job_router::{self, GRPC, GetJobRequest, GetJobResponse, TRANSPORT_HEADER};
use crate::service::ServiceError;
use crate::wire::JobRequest;

/// Returns the route of the gRPC service, outside of `/api/v4`.
pub(super) fn routes(service: Service) -> Router<Service> {
    let server = JobRouterServer::new(Jobs(service)).max_decoding_message_size(MAX_RUNNER_BODY_BYTES);
    Router::new().route_service(&format!("/{SERVICE_NAME}/{{*method}}"), server)
}

struct Jobs(Service);

#[async_trait::async_trait]
impl JobRouter for Jobs {
    /// A disconnect or cancellation drops this future and the held request.
    async fn get_job(
        &self,
        request: tonic::Request<GetJobRequest>,
    ) -> Result<tonic::Response<GetJobResponse>, tonic::Status> {
        let (metadata, _, message) = request.into_parts();
        let mut request: JobRequest = decode(&message.job_request).map_err(status)?;
        if request.token.is_empty() {
            request.token = bearer(&metadata).unwrap_or_default().to_owned();
        }
        let assignment = self.0.request_job(request).await.map_err(|error| status(Refusal(error)))?;
        let job_response = match assignment.job {
            Some(job) => serde_json::to_vec(&job).map_err(|error| {
                status(Refusal(ServiceError::Internal(format!("failed to encode the payload: {error}"))))
            })?,
            None => Vec::new(),
        };
        let mut response = tonic::Response::new(GetJobResponse { job_response: job_response.into() });
        let mut headers = HeaderMap::new();
        answer::set_last_update(&mut headers, &assignment.last_update);
        if self.0.repeats_assignments() {
            answer::set_idempotency_honored(&mut headers);
        }
        *response.metadata_mut() = MetadataMap::from_headers(headers);
        Ok(response)
    }
}

fn bearer(metadata: &MetadataMap) -> Option<&str> {
    metadata.get(header::AUTHORIZATION.as_str()).map(MetadataValue::to_str)?.ok()?.strip_prefix("Bearer ")
}

fn status(refusal: Refusal) -> tonic::Status {
    tonic::Status::new(job_router::code(refusal.log_and_get_code()), refusal.0.to_string())
}

pub(super) fn announce(headers: &mut HeaderMap) {
    headers.insert(TRANSPORT_HEADER, HeaderValue::from_static(GRPC));
}

/// `GET /runners/router/discovery`: URL of the gRPC service, with the host and port that the caller used. Without gRPC,
/// 501, so that runners poll over HTTP (docs/spec/runner-api.md, section 9.1).
pub(super) async fn discovery(State(service): State<Service>, uri: Uri, headers: HeaderMap) -> Response {
    let host = uri.authority().map(|authority| authority.as_str()).or_else(|| header_text(&headers, "host"));
    let Some(host) = host.filter(|host| !host.is_empty() && service.repeats_assignments()) else {
        return empty(StatusCode::NOT_IMPLEMENTED);
    };
    // A proxy that ends TLS sets this header.
    let scheme = if header_text(&headers, "x-forwarded-proto") == Some("https") { "grpcs" } else { "grpc" };
    Json(json!({ "server_url": format!("{scheme}://{host}") })).into_response()
}

#[cfg(test)]
mod tests;
