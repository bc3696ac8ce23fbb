//! The client side: what a manager and its agents say to a coordinator.
//!
//! Each method is one HTTP call with a limit on its time, and never repeats itself: who calls decides with
//! [`crate::retry`] whether and when to say it again. One [`Client`] is one pool of connections, made anew when its
//! certificates change; clones share it.

mod artifacts;
mod error;
#[cfg(test)]
mod hostile_tests;
mod observe;
mod own_certificate;
mod progress;
mod redirect;
mod reply;
mod runners;
#[cfg(test)]
mod tests;
mod tls;
mod transport;
mod unreached;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode, header};
use muster_job::JobId;
use reqwest::{RequestBuilder, Response};
use serde::Serialize;
use tokio::time::Instant;
use url::Url;

use crate::wire::{IDEMPOTENCY_HEADER, IDEMPOTENCY_HONORED, JobRequest, UpdateRequest};

pub use artifacts::UploadLimits;
pub use error::ClientError;
pub use observe::{CallObserver, EndedCall};
pub use progress::Progress;
pub use reply::{JobOffer, TraceReply, UpdateReply};
pub use tls::TlsFiles;
pub use transport::ConnectionAge;
use transport::Transport;

const CONNECT_LIMIT: Duration = Duration::from_secs(30);
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// A job request may be held for 50 s by GitLab's front end, and for longer by proxies.
const JOB_REQUEST_LIMIT: Duration = Duration::from_secs(150);
const IDLE_LIMIT: Duration = Duration::from_secs(90);

/// The runner API at one coordinator.
#[derive(Debug, Clone)]
pub struct Client {
    transport: Arc<Transport>,
    /// Ends in `/api/v4/`.
    base: Url,
    observer: Option<Arc<dyn CallObserver>>,
}

impl Client {
    /// A client of the coordinator at `url`, which is given without `/api/v4`.
    ///
    /// # Errors
    /// [`ClientError::Setup`] where `url` is not http or https, or the system's certificates cannot be read.
    pub fn new(url: &Url) -> Result<Self, ClientError> {
        Self::with_tls(url, &TlsFiles::default())
    }

    /// The same, with certificates of the runner's own.
    ///
    /// # Errors
    /// [`ClientError::Setup`], also where one of the files cannot be used; it is named.
    pub fn with_tls(url: &Url, tls: &TlsFiles) -> Result<Self, ClientError> {
        Self::aging(url, tls, ConnectionAge::Any)
    }

    /// The same, whose connections are used again up to some age.
    ///
    /// # Errors
    /// [`ClientError::Setup`].
    pub fn aging(url: &Url, tls: &TlsFiles, age: ConnectionAge) -> Result<Self, ClientError> {
        let base = base_url(url)?;
        let transport = Arc::new(Transport::new(base.clone(), tls.clone(), age)?);
        Ok(Self { transport, base, observer: None })
    }

    /// The same client for the coordinator at another place, as [`ClientError::Moved`] names it.
    #[must_use]
    pub fn at(&self, place: &Url) -> Self {
        Self { base: base_url(place).unwrap_or_else(|_| self.base.clone()), ..self.clone() }
    }

    /// The same, also where a file of certificates cannot be used at the moment: calls go without it, and fail where it is
    /// needed, until the file changes.
    ///
    /// # Errors
    /// [`ClientError::Setup`] where the URL cannot be used.
    pub fn patient(url: &Url, tls: &TlsFiles, age: ConnectionAge) -> Result<Self, ClientError> {
        let base = base_url(url)?;
        let transport = Arc::new(Transport::patient(base.clone(), tls.clone(), age)?);
        Ok(Self { transport, base, observer: None })
    }

    /// `POST /jobs/request`: may be held by the coordinator until there is a job. `progress` tells how far it is.
    ///
    /// # Errors
    /// [`ClientError`]; the coordinator may have given a job away whose id nobody can read. A job whose id and token can be
    /// read, also where the rest of the answer is lost, comes as one that says why it cannot be done
    /// ([`crate::payload::JobPayload::unreadable`]).
    pub async fn request_job(&self, request: &JobRequest, progress: &Progress) -> Result<JobOffer, ClientError> {
        const CALL: &str = "job request";
        let response = self.ask(CALL, request, progress).await?;
        progress.answered();
        let last_update = reply::text_header(response.headers(), "x-gitlab-last-update");
        let announced = reply::text_header(response.headers(), IDEMPOTENCY_HEADER);
        let repeats = announced.is_some_and(|value| value == IDEMPOTENCY_HONORED);
        let job = match response.status() {
            StatusCode::NO_CONTENT => None,
            _ => Some(Box::new(reply::job(CALL, response).await?)),
        };
        Ok(JobOffer { job, last_update, repeats })
    }

    /// Sends a job request, and follows the coordinator as [`redirect`] has it: a body that notes its progress is used up by each.
    async fn ask(
        &self,
        call: &'static str,
        request: &JobRequest,
        progress: &Progress,
    ) -> Result<Response, ClientError> {
        let body = serde_json::to_vec(request).map_err(|error| ClientError::Setup(error.to_string()))?;
        let body = Bytes::from(body);
        let by = Instant::now() + JOB_REQUEST_LIMIT;
        let mut url = self.url("jobs/request");
        let mut hops = 0;
        loop {
            let ask = self
                .call_to(Method::POST, url)
                .header(header::CONTENT_TYPE, "application/json")
                .header(header::CONTENT_LENGTH, body.len())
                .header(header::ACCEPT, "application/json")
                .header("RUNNER-TOKEN", &request.token)
                .timeout(by.saturating_duration_since(Instant::now()))
                .body(progress.body(body.clone()));
            let response = self.send(observe::REQUEST_JOB, call, ask).await?;
            match redirect::next(&response).filter(|_| hops < redirect::HOPS_MAX) {
                Some(to) => url = to,
                None => return Ok(response),
            }
            hops += 1;
        }
    }

    /// `PUT /jobs/:id`: the job's state, and at the end its result.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::is_gone`] where there is nothing more to report.
    pub async fn update_job(&self, job: JobId, request: &UpdateRequest) -> Result<UpdateReply, ClientError> {
        let call = self.json(Method::PUT, &format!("jobs/{job}"), request).header("JOB-TOKEN", &request.token);
        reply::update(self.send(observe::UPDATE_JOB, "job update", call).await?).await
    }

    /// `PATCH /jobs/:id/trace`: the bytes of the trace from `start` on. Empty `bytes` ask for the acknowledged length.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::is_gone`] where the job has to stop.
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
        // `base` ends in a slash and `path` is ours: this is `Url::join` without its ways to fail.
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
            .timeout(CALL_LIMIT)
    }
}

/// Sends; a failure to get any answer can heal.
async fn send(call: &'static str, request: RequestBuilder) -> Result<Response, ClientError> {
    request.send().await.map_err(|error| ClientError::unreachable(call, unreached::words(&error)))
}

/// Strips a trailing `/` and `/ci`, and appends `/api/v4/` (runner-api 0).
fn base_url(url: &Url) -> Result<Url, ClientError> {
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(ClientError::Setup("only http and https URLs with a host can be a coordinator".to_owned()));
    }
    let mut base = url.clone();
    let path = url.path().trim_end_matches('/');
    base.set_path(&format!("{}/api/v4/", path.strip_suffix("/ci").unwrap_or(path)));
    base.set_query(None);
    base.set_fragment(None);
    Ok(base)
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

fn user_agent() -> String {
    format!("muster {} ({}/{})", env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH)
}

/// The error with its causes, which reqwest keeps out of its own text.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
