//! Client of the runner API, for managers and their agents.
//!
//! Methods do not retry: callers decide with [`crate::retry`]. Only a job request that fails over gRPC is repeated over HTTP.
//! Clones of a [`Client`] share a pool of connections, which is recreated when the certificates change.

mod artifacts;
mod connect_error;
mod error;
mod grpc;
mod grpc_switch;
#[cfg(test)]
mod hostile_tests;
mod job_request;
mod observe;
mod pinned_certificate;
mod progress;
mod redirect;
mod reply;
mod runners;
#[cfg(test)]
mod tests;
mod tls;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, header};
use muster_job::JobId;
use reqwest::{RequestBuilder, Response};
use serde::Serialize;
use url::Url;

use crate::wire::UpdateRequest;

pub use artifacts::UploadTimeouts;
pub use error::ClientError;
use grpc_switch::GrpcSwitch;
pub use observe::{CallObserver, EndedCall};
pub use progress::Progress;
pub use reply::{JobOffer, TraceReply, UpdateReply};
pub use tls::{TlsFiles, http_client};
pub use transport::ConnectionAge;
use transport::Transport;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// Client of the runner API of a coordinator.
#[derive(Debug, Clone)]
pub struct Client {
    transport: Arc<Transport>,
    /// Base URL, which ends with `/api/v4/`.
    base: Url,
    observer: Option<Arc<dyn CallObserver>>,
    /// Whether the coordinator at `base` gets job requests over gRPC.
    grpc: Arc<GrpcSwitch>,
}

impl Client {
    /// Creates a client for the coordinator at `url`, which does not include `/api/v4`.
    ///
    /// # Errors
    /// Returns [`ClientError::Setup`] if `url` is not an HTTP or HTTPS URL, or if the system's certificates cannot be
    /// read.
    pub fn new(url: &Url) -> Result<Self, ClientError> {
        Self::with_tls(url, &TlsFiles::default())
    }

    /// Creates a client with certificates for this runner.
    ///
    /// # Errors
    /// Returns [`ClientError::Setup`], also if a file is invalid.
    pub fn with_tls(url: &Url, tls: &TlsFiles) -> Result<Self, ClientError> {
        Self::with_max_connection_age(url, tls, ConnectionAge::Any)
    }

    /// Creates a client that reuses connections up to a maximum age.
    ///
    /// # Errors
    /// Returns [`ClientError::Setup`].
    pub fn with_max_connection_age(url: &Url, tls: &TlsFiles, age: ConnectionAge) -> Result<Self, ClientError> {
        let base = base_url(url)?;
        let transport = Arc::new(Transport::new(base.clone(), tls.clone(), age)?);
        Ok(Self { transport, base, observer: None, grpc: Arc::default() })
    }

    /// Returns the same client for another base URL, for [`ClientError::Redirected`].
    ///
    /// # Errors
    /// Returns [`ClientError::Setup`] if the URL is invalid.
    pub fn with_base_url(&self, url: &Url) -> Result<Self, ClientError> {
        Ok(Self { base: base_url(url)?, grpc: Arc::default(), ..self.clone() })
    }

    /// Creates a client even if a certificate file is currently invalid. Until the file changes, calls are sent without
    /// the configured certificates, and fail if one of them is required.
    ///
    /// # Errors
    /// Returns [`ClientError::Setup`] if the URL is invalid.
    pub fn with_deferred_tls(url: &Url, tls: &TlsFiles, age: ConnectionAge) -> Result<Self, ClientError> {
        let base = base_url(url)?;
        let transport = Arc::new(Transport::with_deferred_tls(base.clone(), tls.clone(), age)?);
        Ok(Self { transport, base, observer: None, grpc: Arc::default() })
    }

    /// Updates the state of a job, and its result at the end (`PUT /jobs/:id`).
    ///
    /// # Errors
    /// Returns [`ClientError`]. [`ClientError::is_job_closed`] is true if nothing more may be reported.
    pub async fn update_job(&self, job: JobId, request: &UpdateRequest) -> Result<UpdateReply, ClientError> {
        let call = self.json(Method::PUT, &format!("jobs/{job}"), request).header("JOB-TOKEN", &request.token);
        reply::update(self.send(observe::UPDATE_JOB, "job update", call).await?).await
    }

    /// Sends the bytes of the trace from `start` on (`PATCH /jobs/:id/trace`). If `bytes` is empty, only queries the
    /// acknowledged length.
    ///
    /// # Errors
    /// Returns [`ClientError`]. [`ClientError::is_job_closed`] is true if the job must be stopped.
    pub async fn patch_trace(
        &self,
        job: JobId,
        token: &str,
        start: u64,
        bytes: Bytes,
        debug_trace: bool,
    ) -> Result<TraceReply, ClientError> {
        let length = bytes.len() as u64;
        let end = (start + length).saturating_sub(1).max(start);
        let call = self
            .call(Method::PATCH, &format!("jobs/{job}/trace"))
            .query(&[("debug_trace", debug_trace)])
            .header("JOB-TOKEN", token)
            .header(header::CONTENT_TYPE, "text/plain")
            .header(header::CONTENT_RANGE, format!("{start}-{end}"))
            .body(bytes);
        reply::trace(self.send(observe::PATCH_TRACE, "trace upload", call).await?, start + length).await
    }

    fn json<T: Serialize>(&self, method: Method, path: &str, body: &T) -> RequestBuilder {
        self.call(method, path).json(body).header(header::ACCEPT, "application/json")
    }

    fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        // Same as `Url::join`, but cannot fail: `base` ends with a slash, and `path` is a constant with a number.
        url.set_path(&format!("{}{path}", self.base.path()));
        url
    }

    fn call(&self, method: Method, path: &str) -> RequestBuilder {
        self.call_to(method, self.url(path))
    }

    fn call_to(&self, method: Method, url: Url) -> RequestBuilder {
        self.transport
            .http()
            .request(method, url)
            .header("X-Request-Id", uuid::Uuid::new_v4().simple().to_string())
            .timeout(CALL_TIMEOUT)
    }
}

/// Sends a request. A missing response is a transient error.
async fn send(call: &'static str, request: RequestBuilder) -> Result<Response, ClientError> {
    request.send().await.map_err(|error| ClientError::unreachable(call, connect_error::describe(&error)))
}

/// Removes a trailing `/` and `/ci`, and appends `/api/v4/` (docs/spec/runner-api.md, section 0).
fn base_url(url: &Url) -> Result<Url, ClientError> {
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(ClientError::Setup("the URL must start with http:// or https:// and contain a host".to_owned()));
    }
    let mut base = url.clone();
    let path = url.path().trim_end_matches('/');
    base.set_path(&format!("{}/api/v4/", path.strip_suffix("/ci").unwrap_or(path)));
    base.set_query(None);
    base.set_fragment(None);
    Ok(base)
}

fn user_agent() -> String {
    format!("muster {} ({}/{})", env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH)
}
