//! Server routes of the runner API, which call the trait [`RunnerService`]: HTTP under `/api/v4`, and gRPC for job
//! requests.
//!
//! Responses are those that gitlab-runner 16.6 to 19.4 expects (docs/spec/runner-api.md, sections 1 to 5, 9 and 11).
//!
//! Tokens are in `RUNNER-TOKEN`, in `JOB-TOKEN` or in the body. Only the reset with a personal access token reads
//! `PRIVATE-TOKEN` (section 0). An invalid token is 403, never 401.

mod answer;
mod artifacts;
mod job_router;
mod jobs;
mod runners;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, patch, post, put};
use axum::{Router, body::Bytes};
use http::{HeaderMap, HeaderName, StatusCode};
use serde::de::DeserializeOwned;

use crate::service::{RunnerService, ServiceError};
use answer::Refusal;

/// Maximum size of a runner call's body in bytes. GitLab accepts 32 KiB for a job request (docs/spec/runner-api.md,
/// section 2.3).
pub const MAX_RUNNER_BODY_BYTES: usize = 256 * 1024;
/// Maximum size of a job update, which may contain the result tree, in bytes.
pub const MAX_UPDATE_BODY_BYTES: usize = 16 * 1024 * 1024;
/// Maximum size of a trace piece in bytes. gitlab-runner sends up to 1 MiB (docs/spec/runner-api.md, section 3.1).
pub const MAX_TRACE_BODY_BYTES: usize = 4 * 1024 * 1024;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

type Service = Arc<dyn RunnerService>;

/// Returns the routes of the runner API, with the prefix `/api/v4`, and of the gRPC service.
pub fn router(service: Arc<dyn RunnerService>) -> Router {
    let runners = Router::new()
        .route("/runners", post(runners::register).delete(runners::unregister))
        .route("/runners/verify", post(runners::verify))
        .route("/runners/reset_authentication_token", post(runners::reset_token))
        .route("/runners/{id}/reset_authentication_token", post(runners::reset_token_with_pat))
        .route("/runners/managers", axum::routing::delete(runners::unregister_manager))
        .route("/runners/router/discovery", get(job_router::discovery))
        .route("/jobs/request", post(jobs::request))
        .layer(DefaultBodyLimit::max(MAX_RUNNER_BODY_BYTES));
    let updates =
        Router::new().route("/jobs/{id}", put(jobs::update)).layer(DefaultBodyLimit::max(MAX_UPDATE_BODY_BYTES));
    let traces = Router::new()
        .route("/jobs/{id}/trace", patch(jobs::append_trace))
        .layer(DefaultBodyLimit::max(MAX_TRACE_BODY_BYTES));
    // The service limits the size of artifacts.
    let artifacts = Router::new()
        .route("/jobs/{id}/artifacts", post(artifacts::upload).get(artifacts::download))
        .layer(DefaultBodyLimit::disable());
    let api = runners.merge(updates).merge(traces).merge(artifacts);
    let api = Router::new().nest("/api/v4", api).merge(job_router::routes(Arc::clone(&service)));
    api.layer(from_fn(echo_request_id)).with_state(service)
}

/// Returns the caller's request ID in the response, to correlate both logs.
async fn echo_request_id(request: Request, next: Next) -> Response {
    let id = request.headers().get(&REQUEST_ID).cloned();
    let mut response = next.run(request).await;
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Decodes a JSON body. Ignores the content type, because `DELETE` calls and old runners may not send it.
fn decode<T: DeserializeOwned>(body: &Bytes) -> Result<T, Refusal> {
    serde_json::from_slice(body)
        .map_err(|error| Refusal(ServiceError::BadRequest(format!("invalid request body: {error}"))))
}

/// Returns `body_token`, or if that is empty, the token in the header `name`.
fn token_from(body_token: String, headers: &HeaderMap, name: &str) -> String {
    if body_token.is_empty() { header_text(headers, name).unwrap_or_default().to_owned() } else { body_token }
}

/// Returns a header as text. An invalid header counts as missing.
fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the token for trace and artifact calls. A missing token is 403, like an invalid one.
fn job_token(headers: &HeaderMap) -> Result<&str, Refusal> {
    header_text(headers, "job-token")
        .filter(|token| !token.is_empty())
        .ok_or(Refusal(ServiceError::Forbidden { status: None }))
}

fn empty(status: StatusCode) -> Response {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
}
