//! Answers: errors of the service as status codes, and the headers that steer a runner.

use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use muster_job::JobStatus;
use serde_json::json;

use crate::service::ServiceError;

pub(super) const JOB_STATUS: HeaderName = HeaderName::from_static("job-status");
pub(super) const LAST_UPDATE: HeaderName = HeaderName::from_static("x-gitlab-last-update");
pub(super) const TRACE_INTERVAL: HeaderName = HeaderName::from_static("x-gitlab-trace-update-interval");

/// A [`ServiceError`] on its way out.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) ServiceError);

impl From<ServiceError> for Refusal {
    fn from(error: ServiceError) -> Self {
        Self(error)
    }
}

impl Refusal {
    /// The status code of each error.
    ///
    /// A full disk is 507: gitlab-runner's HTTP layer repeats 500, 502-504 and all from 512 within the call, but not
    /// 505-511 (runner-api 6.1). So the call fails at once and the loop above it, with its longer waits, tries again.
    fn code(&self) -> StatusCode {
        match &self.0 {
            ServiceError::Forbidden { .. } => StatusCode::FORBIDDEN,
            ServiceError::NotFound(_) => StatusCode::NOT_FOUND,
            ServiceError::BadRequest(_) => StatusCode::BAD_REQUEST,
            ServiceError::Conflict(_) => StatusCode::CONFLICT,
            ServiceError::Gone(_) => StatusCode::GONE,
            ServiceError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            ServiceError::StorageFull(_) => StatusCode::INSUFFICIENT_STORAGE,
            ServiceError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let code = self.code();
        if code.is_server_error() {
            tracing::error!(error = %self.0, "runner API call failed");
        }
        let message = format!("{} {}", code.as_u16(), code.canonical_reason().unwrap_or_default());
        let message = match &self.0 {
            ServiceError::Forbidden { .. } => message,
            error => format!("{message} - {error}"),
        };
        let mut response = (code, Json(json!({ "message": message }))).into_response();
        if let ServiceError::Forbidden { status: Some(status) } = self.0 {
            set_status(response.headers_mut(), status);
        }
        response
    }
}

/// Sets `Job-Status`. `canceled` and `failed` make a runner stop the job; `canceling` makes it wind the job down.
pub(super) fn set_status(headers: &mut HeaderMap, status: JobStatus) {
    headers.insert(JOB_STATUS, HeaderValue::from_static(status.as_str()));
}

/// Sets the interval between trace uploads. Less than a second cannot be said; without the header a runner keeps 3 s.
pub(super) fn set_interval(headers: &mut HeaderMap, interval: Duration) {
    if interval.as_secs() > 0 {
        headers.insert(TRACE_INTERVAL, HeaderValue::from(interval.as_secs()));
    }
}

/// Sets `Range: 0-<size>`: the total size, not the last index (runner-api 11.9).
pub(super) fn set_size(headers: &mut HeaderMap, size: u64) {
    if let Ok(value) = HeaderValue::try_from(format!("0-{size}")) {
        headers.insert(header::RANGE, value);
    }
}

/// Sets the queue's version, if it can stand in a header.
pub(super) fn set_last_update(headers: &mut HeaderMap, last_update: &str) {
    if last_update.is_empty() {
        return;
    }
    match HeaderValue::try_from(last_update) {
        Ok(value) => drop(headers.insert(LAST_UPDATE, value)),
        Err(error) => tracing::warn!(%error, "the queue's version cannot stand in a header"),
    }
}

/// Announces that the same idempotency key gets the same job again.
pub(super) fn set_repeats(headers: &mut HeaderMap) {
    headers.insert(crate::wire::IDEMPOTENCY_HEADER, HeaderValue::from_static(crate::wire::IDEMPOTENCY_HONORED));
}
