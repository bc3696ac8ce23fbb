//! Client of the runner API.
//!
//! Methods do not retry ([`crate::retry`] does), except that HTTP repeats a failed gRPC job request. Clones of a
//! [`Client`] share connections, which are replaced when certificates change.

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
pub use tls::{TlsFiles, http_client, http_client_without_verification};
pub use transport::ConnectionAge;
use transport::Transport;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// Client of the runner API of a coordinator.
#[derive(Debug, Clone)]
pub struct Client {
    transport: Arc<Transport>,
    /// Base URL with a final `/api/v4/`.
    base: Url,
    observer: Option<Arc<dyn CallObserver>>,
    grpc: Arc<GrpcSwitch>,
}

impl Client {
    /// Creates a client for the coordinator at `url`, without `/api/v4`.
    ///
    /// # Errors
    /// [`ClientError::Setup`] if `url` is not an HTTP or HTTPS URL, or the system's certificates cannot be read.
    pub fn new(url: &Url) -> Result<Self, ClientError> {
        Self::with_tls(url, &TlsFiles::default())
    }

    /// Creates a client with certificates for this runner.
    ///
    /// # Errors
    /// [`ClientError::Setup`], also for an invalid file.
    pub fn with_tls(url: &Url, tls: &TlsFiles) -> Result<Self, ClientError> {
        Self::with_max_connection_age(url, tls, ConnectionAge::Any)
    }

    /// Creates a client with a maximum age of reused connections.
    ///
    /// # Errors
    /// [`ClientError::Setup`].
    pub fn with_max_connection_age(url: &Url, tls: &TlsFiles, age: ConnectionAge) -> Result<Self, ClientError> {
        let base = base_url(url)?;
        let transport = Arc::new(Transport::new(base.clone(), tls.clone(), age)?);
        Ok(Self { transport, base, observer: None, grpc: Arc::default() })
    }

    /// Returns this client with another base URL, to follow [`ClientError::Redirected`].
    ///
    /// # Errors
    /// [`ClientError::Setup`] if the URL is invalid.
    pub fn with_base_url(&self, url: &Url) -> Result<Self, ClientError> {
        Ok(Self { base: base_url(url)?, grpc: Arc::default(), ..self.clone() })
    }

    /// Creates a client despite invalid certificate files. Until they change, calls lack the configured certificates.
    ///
    /// # Errors
    /// [`ClientError::Setup`] if the URL is invalid.
    pub fn with_deferred_tls(url: &Url, tls: &TlsFiles, age: ConnectionAge) -> Result<Self, ClientError> {
        let base = base_url(url)?;
        let transport = Arc::new(Transport::with_deferred_tls(base.clone(), tls.clone(), age)?);
        Ok(Self { transport, base, observer: None, grpc: Arc::default() })
    }

    /// Updates the state of a job, and reports its result (`PUT /jobs/:id`).
    ///
    /// # Errors
    /// [`ClientError`]. [`ClientError::is_job_closed`] means that nothing more may be reported.
    pub async fn update_job(&self, job: JobId, request: &UpdateRequest) -> Result<UpdateReply, ClientError> {
        let call = self.json(Method::PUT, &format!("jobs/{job}"), request).header("JOB-TOKEN", &request.token);
        reply::update(self.send(observe::UPDATE_JOB, "job update", call).await?).await
    }

    /// Sends the trace from byte `start` (`PATCH /jobs/:id/trace`). Without bytes, only queries the acknowledged
    /// length.
    ///
    /// # Errors
    /// [`ClientError`]. [`ClientError::is_job_closed`] means that the job must be stopped.
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
        // Like `Url::join`, but cannot fail.
        url.set_path(&format!("{}{path}", self.base.path()));
        url
    }

    fn call(&self, method: Method, path: &str) -> RequestBuilder {
        self.call_to(method, self.url(path))
    }

    fn call_to(&self, method: Method, url: Url) -> RequestBuilder {
        with_request_id(self.transport.http().request(method, url)).timeout(CALL_TIMEOUT)
    }
}

fn with_request_id(call: RequestBuilder) -> RequestBuilder {
    call.header("X-Request-Id", uuid::Uuid::new_v4().simple().to_string())
}

/// Sends a request. A missing response is a transient error.
async fn send(call: &'static str, request: RequestBuilder) -> Result<Response, ClientError> {
    request.send().await.map_err(|error| ClientError::unreachable(call, connect_error::describe(&error)))
}

/// Removes `/` and `/ci` at the end, and appends `/api/v4/` (docs/spec/runner-api.md, section 0).
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
