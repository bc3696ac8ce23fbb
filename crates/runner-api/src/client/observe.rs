//! Observation of ended calls.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use reqwest::{RequestBuilder, Response};

use super::{Client, ClientError, reply, send};
pub(super) use crate::job_router::GRPC;

/// Ended call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedCall {
    /// Name in gitlab-runner: `request_job`, `update_job`, `patch_trace` or `reset_token`.
    pub endpoint: &'static str,
    /// HTTP method.
    pub method: &'static str,
    /// HTTP status. Over gRPC, the status that the same response has over HTTP. `None` means no response, or a gRPC
    /// error.
    pub status: Option<u16>,
    /// Time to the response headers or the failure. Over gRPC, to the end of the response.
    pub took: Duration,
}

/// Receives the ended calls of the endpoints that [`EndedCall::endpoint`] lists. Must not block.
pub trait CallObserver: Debug + Send + Sync {
    /// Called when a call has ended.
    fn ended(&self, call: &EndedCall);
}

pub(super) const REQUEST_ID_HEADER: &str = "x-request-id";
pub(super) const HTTP: &str = "http";

// Name and method of each observed call.
pub(super) const REQUEST_JOB: (&str, &str) = ("request_job", "POST");
pub(super) const UPDATE_JOB: (&str, &str) = ("update_job", "PUT");
pub(super) const RESET_TOKEN: (&str, &str) = ("reset_token", "POST");
pub(super) const PATCH_TRACE: (&str, &str) = ("patch_trace", "PATCH");

impl Client {
    /// Sets the observer of the client's calls.
    #[must_use]
    pub fn with_observer(mut self, observer: std::sync::Arc<dyn CallObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    pub(super) async fn send(
        &self,
        (endpoint, method): (&'static str, &'static str),
        call: &'static str,
        request: RequestBuilder,
    ) -> Result<Response, ClientError> {
        let started = Instant::now();
        let answer = send(call, request).await;
        let took = started.elapsed();
        let status = answer.as_ref().ok().map(|answer| answer.status().as_u16());
        let id = answer.as_ref().ok().and_then(|answer| reply::text_header(answer.headers(), REQUEST_ID_HEADER));
        self.report_ended(EndedCall { endpoint, method, status, took }, HTTP, id.as_deref());
        answer
    }

    /// Notifies the observer, and logs the call. `transport` is [`HTTP`] or [`GRPC`].
    pub(super) fn report_ended(&self, call: EndedCall, transport: &'static str, request_id: Option<&str>) {
        if let Some(observer) = &self.observer {
            observer.ended(&call);
        }
        tracing::debug!(
            endpoint = call.endpoint,
            transport,
            status = call.status.map_or(-1, i32::from),
            correlation_id = request_id.unwrap_or_default(),
            duration_s = call.took.as_secs_f64(),
            "call to the coordinator ended"
        );
    }
}
