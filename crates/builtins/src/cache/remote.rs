//! Transfers caches to and from an object store, by signed URLs (docs/spec/job-execution.md, sections 10.3 and 10.4).

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use filetime::FileTime;
use futures::StreamExt;
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Body, Response, StatusCode, Url};
use tokio_util::io::ReaderStream;

use crate::transfer::{MessageLevel, TransferContext};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of bytes to read of an error response.
const MAX_REASON_BYTES: usize = 16 * 1024;

/// HTTP client for the transfers of one cache.
#[derive(Debug, Clone)]
pub struct Remote {
    http: reqwest::Client,
    retries: u32,
    delay: Duration,
}

/// Error of a transfer.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The object does not exist.
    #[error("file does not exist")]
    Missing,
    /// The store answered with an error.
    #[error("received: {status}{reason}")]
    Status {
        /// HTTP status.
        status: StatusCode,
        /// Reason from the body of the response. It may be empty.
        reason: String,
    },
    /// The store is unreachable, or the connection broke.
    #[error("{0}")]
    Network(String),
    /// The file on this machine cannot be read or written.
    #[error("failed to {0}")]
    File(String, #[source] io::Error),
    /// A parameter of the transfer is invalid.
    #[error("{0}")]
    Setup(String),
    /// The transfer was stopped.
    #[error("stopped")]
    Stopped(muster_job::TerminationCause),
}

impl RemoteError {
    fn network(error: reqwest::Error) -> Self {
        Self::Network(muster_job::error_chain(&error.without_url()))
    }

    fn is_transient(&self) -> bool {
        match self {
            Self::Network(_) => true,
            Self::Status { status, .. } => status.is_server_error(),
            _ => false,
        }
    }
}

impl From<RemoteError> for Failure {
    fn from(error: RemoteError) -> Self {
        match error {
            RemoteError::Stopped(cause) => Self::Stopped(cause),
            RemoteError::File(operation, error) => Self::System(format!("failed to {operation}: {error}")),
            other => Self::Step(other.to_string()),
        }
    }
}

impl Remote {
    /// Returns a client. `limit` is the timeout of one attempt, `delay` the delay before each of up to `retries` retries.
    ///
    /// # Errors
    /// [`RemoteError::Setup`] if the system's certificates cannot be read.
    pub fn new(limit: Duration, retries: u32, delay: Duration) -> Result<Self, RemoteError> {
        let http = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).timeout(limit);
        // An archive must not be decompressed, even if the store declares a content encoding.
        let http = http.no_gzip().build().map_err(|error| RemoteError::Setup(error.to_string()))?;
        Ok(Self { http, retries, delay })
    }

    /// Returns when the object at `url` was last modified. `None` means that it does not exist.
    ///
    /// # Errors
    /// The store is unreachable or answers with an error.
    pub async fn modified(&self, url: &Url) -> Result<Option<SystemTime>, RemoteError> {
        let response = self.http.head(url.clone()).send().await.map_err(RemoteError::network)?;
        match check_status(response).await {
            Ok(response) => Ok(Some(last_modified(&response).unwrap_or(SystemTime::UNIX_EPOCH))),
            Err(RemoteError::Missing) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Downloads the object at `url` to `file`, unless the file is as new. The file is replaced atomically.
    ///
    /// # Errors
    /// [`RemoteError`]. The file is unchanged then.
    pub async fn download(
        &self,
        context: &dyn TransferContext,
        url: &Url,
        file: &Path,
        stop: &StopToken,
    ) -> Result<(), RemoteError> {
        self.with_retries(context, stop, async || self.download_once(context, url, file).await).await
    }

    async fn download_once(&self, context: &dyn TransferContext, url: &Url, file: &Path) -> Result<(), RemoteError> {
        let local = |error| RemoteError::File(format!("write `{}`", file.display()), error);
        let response = self.http.get(url.clone()).send().await.map_err(RemoteError::network)?;
        let response = check_status(response).await?;
        let changed = last_modified(&response);
        let own = fs::symlink_metadata(file).and_then(|metadata| metadata.modified()).ok();
        let name = |path: Option<&std::ffi::OsStr>| path.unwrap_or_default().to_string_lossy().into_owned();
        if own.is_some_and(|own| changed.unwrap_or(SystemTime::UNIX_EPOCH) <= own) {
            context.report(MessageLevel::Plain, &format!("{} is up to date", name(file.file_name())));
            return Ok(());
        }
        let etag = response.headers().get(header::ETAG).and_then(|etag| etag.to_str().ok());
        let etag = etag.map(|etag| format!(" ETag={etag}")).unwrap_or_default();
        // The suffix is not printed: it is always `.zip`, in whatever format the archive is.
        context.report(
            MessageLevel::Plain,
            &format!("Downloading {} from {}{etag}", name(file.file_stem()), without_secrets(url)),
        );
        let directory = file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory).map_err(local)?;
        let mut part = tempfile::Builder::new().prefix("cache").tempfile_in(directory).map_err(local)?;
        let mut meter = context.meter("Downloading cache", response.content_length());
        let mut body = response.bytes_stream();
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(RemoteError::network)?;
            part.write_all(&chunk).map_err(local)?;
            meter(chunk.len());
        }
        if let Some(time) = changed {
            filetime::set_file_handle_times(part.as_file(), None, Some(FileTime::from_system_time(time)))
                .map_err(local)?;
        }
        part.persist(file).map_err(|error| local(error.error))?;
        Ok(())
    }

    /// Uploads `file` to `url`. `headers` have the form `Name: value`; those without a colon are ignored.
    ///
    /// # Errors
    /// A header is invalid, the file cannot be read, or the store is unreachable or answers with an error.
    pub async fn upload(
        &self,
        context: &dyn TransferContext,
        file: &Path,
        url: &Url,
        headers: &[String],
        stop: &StopToken,
    ) -> Result<(), RemoteError> {
        let headers = parse_headers(headers)?;
        self.with_retries(context, stop, async || self.upload_once(context, file, url, &headers).await).await
    }

    async fn upload_once(
        &self,
        context: &dyn TransferContext,
        file: &Path,
        url: &Url,
        headers: &HeaderMap,
    ) -> Result<(), RemoteError> {
        let local = |error| RemoteError::File(format!("read `{}`", file.display()), error);
        let own = file.to_owned();
        let content =
            muster_files::apart(file, move || muster_files::open(&own)).await.map_err(|error| local(error.into()))?;
        let metadata = content.metadata().map_err(local)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        context.report(MessageLevel::Plain, &format!("Uploading {name} to {}", without_secrets(url)));
        let mut meter = context.meter("Uploading cache", Some(metadata.len()));
        let body = ReaderStream::with_capacity(tokio::fs::File::from_std(content), 256 * 1024)
            .inspect(move |chunk| meter(chunk.as_ref().map_or(0, |chunk| chunk.len())));
        let mut headers = headers.clone();
        headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_LENGTH, metadata.len().into());
        let time = metadata.modified().map(httpdate::fmt_http_date).map_err(local)?;
        if let Ok(time) = HeaderValue::from_str(&time) {
            headers.insert(header::LAST_MODIFIED, time);
        }
        let call = self.http.put(url.clone()).headers(headers).body(Body::wrap_stream(body));
        check_status(call.send().await.map_err(RemoteError::network)?).await.map(drop)
    }

    /// Makes a transfer, and retries it after transient errors.
    async fn with_retries(
        &self,
        context: &dyn TransferContext,
        stop: &StopToken,
        transfer: impl AsyncFn() -> Result<(), RemoteError>,
    ) -> Result<(), RemoteError> {
        let mut retries_left = self.retries;
        loop {
            let ended = tokio::select! {
                cause = stop.stopped() => return Err(RemoteError::Stopped(cause)),
                ended = transfer() => ended,
            };
            match ended {
                Err(error) if error.is_transient() && retries_left > 0 => {
                    retries_left -= 1;
                    context.report(MessageLevel::Warning, &format!("Retrying... error={error}"));
                }
                ended => return ended,
            }
            tokio::select! {
                cause = stop.stopped() => return Err(RemoteError::Stopped(cause)),
                () = tokio::time::sleep(self.delay) => {}
            }
        }
    }
}

/// Returns the response if its status is a success.
async fn check_status(response: Response) -> Result<Response, RemoteError> {
    let status = response.status();
    match status {
        status if status.is_success() => Ok(response),
        StatusCode::NOT_FOUND => Err(RemoteError::Missing),
        _ => Err(RemoteError::Status { status, reason: reason(response).await }),
    }
}

/// Returns the reason from an error response, which is XML with `<Code>` and `<Message>`. It is empty if there is no code.
async fn reason(mut response: Response) -> String {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_REASON_BYTES {
            break;
        }
    }
    let text = String::from_utf8_lossy(&body);
    let inside = |name: &str| {
        let after = text.split_once(&format!("<{name}>"))?.1;
        Some(after.split_once(&format!("</{name}>"))?.0.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    match (inside("Code"), inside("Message")) {
        (Some(code), message) => {
            format!(". Request failed with code: {code}, message: {}", message.unwrap_or_default())
        }
        (None, _) => String::new(),
    }
}

fn last_modified(response: &Response) -> Option<SystemTime> {
    httpdate::parse_http_date(response.headers().get(header::LAST_MODIFIED)?.to_str().ok()?).ok()
}

/// Returns the URL without parts that may be secret. The signature is in the query.
fn without_secrets(url: &Url) -> Url {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    let _ = (url.set_username(""), url.set_password(None));
    url
}

fn parse_headers(headers: &[String]) -> Result<HeaderMap, RemoteError> {
    let mut map = HeaderMap::new();
    for (name, value) in headers.iter().filter_map(|header| header.split_once(':')) {
        let unusable = || RemoteError::Setup(format!("`{}` is not a valid header", name.trim()));
        let name = HeaderName::try_from(name.trim()).map_err(|_| unusable())?;
        map.insert(name, HeaderValue::try_from(value.trim()).map_err(|_| unusable())?);
    }
    Ok(map)
}
