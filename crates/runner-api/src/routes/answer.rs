//! Statuses for errors of the service, and headers for runners.

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

#[derive(Debug)]
pub(super) struct Refusal(pub(super) ServiceError);

impl From<ServiceError> for Refusal {
    fn from(error: ServiceError) -> Self {
        Self(error)
    }
}

impl Refusal {
    /// Returns the status for the error.
    ///
    /// A full disk is 507: gitlab-runner retries 500, 502 to 504 and 512 or higher within the call, but not 505 to 511
    /// (docs/spec/runner-api.md, section 6.1). So the call fails immediately, and its caller retries later.
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

impl Refusal {
    /// Returns the status for the error, and logs a server error.
    pub(super) fn log_and_get_code(&self) -> StatusCode {
        let code = self.code();
        if code.is_server_error() {
            tracing::error!(error = %self.0, "runner API call failed");
        }
        code
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let code = self.log_and_get_code();
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

/// Sets `Job-Status`. `canceled` and `failed` stop the job immediately, and `canceling` gracefully.
pub(super) fn set_status(headers: &mut HeaderMap, status: JobStatus) {
    headers.insert(JOB_STATUS, HeaderValue::from_static(status.as_str()));
}

/// Sets the interval of trace uploads in whole seconds. The runner's default is 3 s.
pub(super) fn set_interval(headers: &mut HeaderMap, interval: Duration) {
    if interval.as_secs() > 0 {
        headers.insert(TRACE_INTERVAL, HeaderValue::from(interval.as_secs()));
    }
}

/// Sets `Range: 0-<size>` with the total size, not the last index (docs/spec/runner-api.md, section 11.9).
pub(super) fn set_size(headers: &mut HeaderMap, size: u64) {
    if let Ok(value) = HeaderValue::try_from(format!("0-{size}")) {
        headers.insert(header::RANGE, value);
    }
}

/// Sets the version of the queue, unless it is empty or not a valid header value.
pub(super) fn set_last_update(headers: &mut HeaderMap, last_update: &str) {
    if last_update.is_empty() {
        return;
    }
    match HeaderValue::try_from(last_update) {
        Ok(value) => drop(headers.insert(LAST_UPDATE, value)),
        Err(error) => tracing::warn!(%error, "queue version is not a valid header value"),
    }
}

pub(super) fn set_idempotency_honored(headers: &mut HeaderMap) {
    headers.insert(crate::wire::IDEMPOTENCY_HEADER, HeaderValue::from_static(crate::wire::IDEMPOTENCY_HONORED));
}
