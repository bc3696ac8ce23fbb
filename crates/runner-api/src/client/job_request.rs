//! Job requests, over gRPC if announced and not paused, or else over HTTP.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode, header};
use reqwest::Response;
use tokio::time::Instant;

use super::{Client, ClientError, JobOffer, Progress, grpc, observe, redirect, reply};
use crate::job_router::{GRPC, TRANSPORT_HEADER};
use crate::wire::JobRequest;

const CALL: &str = "job request";
/// Timeout of a job request. GitLab holds a request for up to 50 s, and proxies may hold it longer.
pub(super) const JOB_REQUEST_TIMEOUT: Duration = Duration::from_secs(150);

pub(super) struct JobCall<'a> {
    pub(super) body: Bytes,
    pub(super) token: &'a str,
    pub(super) progress: &'a Progress,
    deadline: Instant,
}

impl JobCall<'_> {
    pub(super) fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

impl Client {
    /// Requests a job (`POST /jobs/request`, or over gRPC). The coordinator may hold the call until there is a job.
    ///
    /// If gRPC fails, HTTP repeats the request with the same idempotency key, so that no job is lost. A job of which
    /// only the ID and the token are readable has a [`crate::payload::JobPayload::decode_error`].
    ///
    /// # Errors
    /// [`ClientError`]. The coordinator may nevertheless have assigned a job.
    pub async fn request_job(&self, request: &JobRequest, progress: &Progress) -> Result<JobOffer, ClientError> {
        let body = serde_json::to_vec(request);
        let body = body.map_err(|error| ClientError::Request { call: CALL, message: error.to_string() })?;
        let deadline = Instant::now() + JOB_REQUEST_TIMEOUT;
        let call = JobCall { body: body.into(), token: &request.token, progress, deadline };
        if self.grpc.is_on(Instant::now()) {
            match grpc::request_job(self, &call).await {
                Ok(offer) => {
                    self.grpc.record_response();
                    if !offer.honors_idempotency_key {
                        // After a lost response, a coordinator without idempotency keys would lose the job.
                        self.grpc.set_announced(false);
                    }
                    return Ok(offer);
                }
                Err(reason) => self.leave_grpc(&call, reason)?,
            }
        }
        self.request_job_over_http(&call).await
    }

    /// Pauses gRPC, unless the request was canceled. Returns an error if HTTP cannot repeat the request.
    fn leave_grpc(&self, call: &JobCall<'_>, error: String) -> Result<(), ClientError> {
        if call.progress.is_canceled() {
            return Err(ClientError::unreachable(CALL, error));
        }
        if let Some(pause) = self.grpc.record_failure(Instant::now()) {
            let (url, pause_s) = (redirect::configured_url(&self.base), pause.as_secs());
            tracing::warn!(url, error, pause_s, "failed to request a job over gRPC, using HTTP");
        }
        if call.time_left().is_zero() {
            return Err(ClientError::unreachable(CALL, error));
        }
        Ok(())
    }

    async fn request_job_over_http(&self, call: &JobCall<'_>) -> Result<JobOffer, ClientError> {
        let (response, is_redirected) = self.send_job_request(call).await?;
        call.progress.mark_answered();
        let (last_update, honors_idempotency_key) = reply::queue_state(response.headers());
        let announced = reply::text_header(response.headers(), TRANSPORT_HEADER).is_some_and(|value| value == GRPC);
        let is_accepted = matches!(response.status(), StatusCode::CREATED | StatusCode::NO_CONTENT);
        // Errors announce nothing, and redirects are only followed over HTTP.
        if is_accepted && self.grpc.set_announced(announced && honors_idempotency_key && !is_redirected) {
            let url = redirect::configured_url(&self.base);
            tracing::info!(url, "coordinator supports gRPC, using it for job requests");
        }
        let (job, text) = match response.status() {
            StatusCode::NO_CONTENT => (None, String::new()),
            _ => {
                let (job, text) = reply::job(CALL, response).await?;
                (Some(Box::new(job)), text)
            }
        };
        Ok(JobOffer { job, text, last_update, honors_idempotency_key })
    }

    /// Sends a job request and follows redirects. Also returns whether there was a redirect.
    async fn send_job_request(&self, call: &JobCall<'_>) -> Result<(Response, bool), ClientError> {
        let mut url = self.url("jobs/request");
        let mut redirects = 0;
        loop {
            let attempt = self
                .call_to(Method::POST, url)
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::CONTENT_LENGTH, call.body.len())
                .header(header::ACCEPT, "application/json")
                .header("RUNNER-TOKEN", call.token)
                .timeout(call.time_left())
                .body(call.progress.body(call.body.clone()));
            let response = self.send(observe::REQUEST_JOB, CALL, attempt).await?;
            match redirect::next(&response).filter(|_| redirects < redirect::MAX_REDIRECTS) {
                Some(to) => url = to,
                None => return Ok((response, redirects > 0)),
            }
            redirects += 1;
        }
    }
}
