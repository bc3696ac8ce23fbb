//! The server side: one set of routes under `/api/v4`, over the port [`RunnerService`].
//!
//! This module turns HTTP into calls and answers into the statuses, headers and bodies that a stock gitlab-runner
//! 16.6-19.4 needs (runner-api 1-5, 9, 11). It holds no state and decides nothing about jobs.
//!
//! Tokens come from `RUNNER-TOKEN` or `JOB-TOKEN`, or from the body, as the runner's version has it; `PRIVATE-TOKEN`,
//! which some versions send, is ignored (runner-api 0). A token that does not fit is 403, never 401.

mod answer;
mod artifacts;
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

/// Bytes of a JSON body of the runner calls; GitLab's front end takes 32 KiB for a job request (runner-api 2.3).
pub const RUNNER_BODY_MAX_BYTES: usize = 256 * 1024;
/// Bytes of a job update; it may carry the result tree.
pub const UPDATE_BODY_MAX_BYTES: usize = 16 * 1024 * 1024;
/// Bytes of one piece of a trace; gitlab-runner sends up to 1 MiB (runner-api 3.1).
pub const TRACE_BODY_MAX_BYTES: usize = 4 * 1024 * 1024;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

type Service = Arc<dyn RunnerService>;

/// The routes of the runner API, with their `/api/v4` in front.
pub fn router(service: Arc<dyn RunnerService>) -> Router {
    let runners = Router::new()
        .route("/runners", post(runners::register).delete(runners::unregister))
        .route("/runners/verify", post(runners::verify))
        .route("/runners/reset_authentication_token", post(runners::reset_token))
        .route("/runners/{id}/reset_authentication_token", post(runners::reset_token_with_pat))
        .route("/runners/managers", axum::routing::delete(runners::unregister_manager))
        .route("/runners/router/discovery", get(runners::discovery))
        .route("/jobs/request", post(jobs::request))
        .layer(DefaultBodyLimit::max(RUNNER_BODY_MAX_BYTES));
    let updates =
        Router::new().route("/jobs/{id}", put(jobs::update)).layer(DefaultBodyLimit::max(UPDATE_BODY_MAX_BYTES));
    let traces = Router::new()
        .route("/jobs/{id}/trace", patch(jobs::append_trace))
        .layer(DefaultBodyLimit::max(TRACE_BODY_MAX_BYTES));
    // The size of artifacts is the service's to limit: they are never held in memory here.
    let artifacts = Router::new()
        .route("/jobs/{id}/artifacts", post(artifacts::upload).get(artifacts::download))
        .layer(DefaultBodyLimit::disable());
    let api = runners.merge(updates).merge(traces).merge(artifacts).layer(from_fn(echo_request_id));
    Router::new().nest("/api/v4", api).with_state(service)
}

/// Gives the caller's request id back, so that both logs can be joined.
async fn echo_request_id(request: Request, next: Next) -> Response {
    let id = request.headers().get(&REQUEST_ID).cloned();
    let mut response = next.run(request).await;
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Decodes a JSON body, whatever its declared type: `DELETE` and old runners are careless with it.
fn decode<T: DeserializeOwned>(body: &Bytes) -> Result<T, Refusal> {
    serde_json::from_slice(body)
        .map_err(|error| Refusal(ServiceError::BadRequest(format!("the body is not the JSON of this call: {error}"))))
}

/// The token of the body, or else of the header `name`.
fn token_from(body: String, headers: &HeaderMap, name: &str) -> String {
    if body.is_empty() { header_text(headers, name).unwrap_or_default().to_owned() } else { body }
}

/// A header as text; one that is no text counts as absent.
fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The token that authenticates a job's trace and artifact calls. An absent one is 403, as a wrong one.
fn job_token(headers: &HeaderMap) -> Result<&str, Refusal> {
    header_text(headers, "job-token")
        .filter(|token| !token.is_empty())
        .ok_or(Refusal(ServiceError::Forbidden { status: None }))
}

/// An answer without a body.
fn empty(status: StatusCode) -> Response {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
}
