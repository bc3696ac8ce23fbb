//! What came of each call of a job's life, for metrics and logs.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use reqwest::{RequestBuilder, Response};

use super::{Client, ClientError, reply, send};

/// A call that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedCall {
    /// GitLab Runner's name of what was called: `request_job`, `update_job`, `patch_trace` or `reset_token`.
    pub endpoint: &'static str,
    /// The HTTP method.
    pub method: &'static str,
    /// The status of the answer; none where there was no answer.
    pub status: Option<u16>,
    /// From sending it to the head of the answer.
    pub took: Duration,
}

/// Hears of calls. Must not wait.
pub trait CallObserver: Debug + Send + Sync {
    /// A call ended.
    fn ended(&self, call: &EndedCall);
}

/// The measured calls: the endpoint's name, and the method.
pub(super) const REQUEST_JOB: (&str, &str) = ("request_job", "POST");
pub(super) const UPDATE_JOB: (&str, &str) = ("update_job", "PUT");
pub(super) const RESET_TOKEN: (&str, &str) = ("reset_token", "POST");
pub(super) const PATCH_TRACE: (&str, &str) = ("patch_trace", "PATCH");

impl Client {
    /// The same client, whose calls `observer` hears of.
    #[must_use]
    pub fn observed(mut self, observer: std::sync::Arc<dyn CallObserver>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Sends, and tells what came of it.
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
        if let Some(observer) = &self.observer {
            observer.ended(&EndedCall { endpoint, method, status, took });
        }
        // By this id the server's own log can be searched for the call.
        let id = answer.as_ref().ok().and_then(|answer| reply::text_header(answer.headers(), "x-request-id"));
        tracing::debug!(
            endpoint,
            status = status.map_or(-1, i32::from),
            correlation_id = id.as_deref().unwrap_or_default(),
            duration_s = took.as_secs_f64(),
            "call to the coordinator"
        );
        answer
    }
}
