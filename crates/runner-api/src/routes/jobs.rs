//! Jobs: request, update, trace (docs/spec/runner-api.md, sections 2 to 4).

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use muster_job::JobId;

use super::answer::{Refusal, set_idempotency_honored, set_interval, set_last_update, set_size, set_status};
use super::{Service, decode, empty, header_text, job_router, job_token, token_from};
use crate::service::ServiceError;
use crate::wire::{JobRequest, UpdateRequest};

/// `POST /jobs/request`: 201 with a job, or 204, with the version of the queue.
pub(super) async fn request(
    State(service): State<Service>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    let mut request: JobRequest = decode(&body)?;
    request.token = token_from(request.token, &headers, "runner-token");
    let assignment = service.request_job(request).await?;
    let mut response = match assignment.job {
        Some(job) => (StatusCode::CREATED, Json(job)).into_response(),
        None => empty(StatusCode::NO_CONTENT),
    };
    set_last_update(response.headers_mut(), &assignment.last_update);
    if service.repeats_assignments() {
        set_idempotency_honored(response.headers_mut());
        job_router::announce(response.headers_mut());
    }
    Ok(response)
}

/// `PUT /jobs/:id`: 200 with the body `200`.
pub(super) async fn update(
    State(service): State<Service>,
    Path(job): Path<i64>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    let mut request: UpdateRequest = decode(&body)?;
    request.token = token_from(request.token, &headers, "job-token");
    let answer = service.update_job(JobId(job), request).await?;
    let mut response = (StatusCode::OK, "200").into_response();
    set_status(response.headers_mut(), answer.status);
    set_interval(response.headers_mut(), answer.update_interval);
    Ok(response)
}

/// `PATCH /jobs/:id/trace`: 202, or 416 after a wrong start, with the size of the trace.
pub(super) async fn append_trace(
    State(service): State<Service>,
    Path(job): Path<i64>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Refusal> {
    let token = job_token(&headers)?;
    let start = header_text(&headers, header::CONTENT_RANGE.as_str())
        .and_then(range_start)
        .ok_or_else(|| ServiceError::BadRequest("invalid Content-Range: expected `<start>-<end>`".to_owned()))?;
    let answer = service.append_trace(JobId(job), token, start, body).await?;
    let code = if answer.accepted { StatusCode::ACCEPTED } else { StatusCode::RANGE_NOT_SATISFIABLE };
    let mut response = empty(code);
    set_status(response.headers_mut(), answer.status);
    set_size(response.headers_mut(), answer.size);
    set_interval(response.headers_mut(), answer.update_interval);
    Ok(response)
}

/// Returns the start in a text `<start>-<end>`, which has neither a unit nor a total. The end is inclusive
/// (docs/spec/runner-api.md, section 11.9), and may be any number.
fn range_start(text: &str) -> Option<u64> {
    let (start, end) = text.split_once('-')?;
    end.parse::<u64>().ok()?;
    start.parse().ok()
}
