//! Transfers caches to and from an object store, by signed URLs (docs/spec/job-execution.md, sections 10.3 and 10.4).

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use filetime::FileTime;
use futures::StreamExt;
use muster_runner_api::client::TlsFiles;
use muster_steps::stop::StopToken;
use parking_lot::Mutex;
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Body, Response, StatusCode, Url};
use tokio_util::io::ReaderStream;

use super::download::Download;
pub use super::remote_error::RemoteError;
use crate::transfer::{MessageLevel, Meter, TransferContext};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of bytes to read of an error response.
const MAX_REASON_BYTES: usize = 16 * 1024;

const RANGE_BYTES: u64 = 16 << 20;

/// HTTP client for the transfers of one cache.
#[derive(Debug, Clone)]
pub struct Remote {
    pub(super) http: reqwest::Client,
    pub(super) retries: u32,
    pub(super) delay: Duration,
    pub(super) range_bytes: u64,
}

/// An object in a store.
#[derive(Debug, Clone)]
pub struct RemoteObject {
    /// Signed URL for GET.
    pub url: Url,
    /// Signed URL for HEAD, which returns the age of the object. `None` means that the age cannot be queried.
    pub head: Option<Url>,
}

impl Remote {
    /// Returns a client with this timeout for each attempt and this delay before each of up to `retries` retries.
    ///
    /// # Errors
    /// [`RemoteError::Setup`] if the HTTP client cannot be created.
    pub fn new(timeout: Duration, retries: u32, delay: Duration) -> Result<Self, RemoteError> {
        let http = muster_runner_api::client::http_client(&TlsFiles::default());
        let http = http.map_err(|error| RemoteError::Setup(error.to_string()))?;
        let http = http.connect_timeout(CONNECT_TIMEOUT).timeout(timeout);
        // An archive must not be decompressed, even if the store declares a content encoding.
        let http = http.no_gzip().build().map_err(|error| RemoteError::Setup(error.to_string()))?;
        Ok(Self { http, retries, delay, range_bytes: RANGE_BYTES })
    }

    /// Downloads the newest object to `file`, unless the file is at least as new.
    ///
    /// If an object has no URL for HEAD, the first existing object is used.
    ///
    /// # Errors
    /// As for [`Self::download`].
    pub async fn download_newest(
        &self,
        context: &dyn TransferContext,
        objects: &[RemoteObject],
        file: &Path,
        stop: &StopToken,
    ) -> Result<(), RemoteError> {
        let heads: Vec<&Url> = objects.iter().filter_map(|object| object.head.as_ref()).collect();
        let mut ordered: Vec<&Url> = objects.iter().map(|object| &object.url).collect();
        if objects.len() > 1 && heads.len() == objects.len() {
            let times = futures::future::try_join_all(heads.into_iter().map(|head| self.modified(head)));
            let times = tokio::select! {
                cause = stop.stopped() => return Err(RemoteError::Stopped(cause)),
                times = times => times?,
            };
            let mut by_time: Vec<(Option<SystemTime>, &Url)> = times.into_iter().zip(ordered).collect();
            by_time.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
            ordered = by_time.into_iter().map(|(_, url)| url).collect();
        }
        let mut result = Err(RemoteError::Missing);
        for url in ordered {
            result = self.download(context, url, file, stop).await;
            if !matches!(result, Err(RemoteError::Missing)) {
                break;
            }
        }
        result
    }

    /// For a local archive that has not changed: returns whether the store already has it, and reports that in the log.
    ///
    /// # Errors
    /// As for [`Self::modified`].
    pub async fn has(&self, context: &dyn TransferContext, head: &Url, stop: &StopToken) -> Result<bool, RemoteError> {
        let modified = tokio::select! {
            cause = stop.stopped() => return Err(RemoteError::Stopped(cause)),
            modified = self.modified(head) => modified?,
        };
        let message = match modified {
            Some(_) => "Primary cache already exists remotely, skipping upload",
            None => "Primary cache does not exist remotely, uploading existing archive",
        };
        context.report(MessageLevel::Plain, message);
        Ok(modified.is_some())
    }

    /// Returns when the object was last modified, or the Unix epoch if the store does not report it. `None` means that
    /// the object does not exist.
    ///
    /// # Errors
    /// If the store is unreachable or answers with an error.
    pub async fn modified(&self, url: &Url) -> Result<Option<SystemTime>, RemoteError> {
        let response = self.http.head(url.clone()).send().await.map_err(RemoteError::network)?;
        match check_status(response).await {
            Ok(response) => Ok(Some(last_modified(&response).unwrap_or(SystemTime::UNIX_EPOCH))),
            Err(RemoteError::Missing) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Downloads the object to `file`, unless the file is at least as new. Replaces the file atomically.
    ///
    /// # Errors
    /// [`RemoteError`]. The file is then unchanged.
    pub async fn download(
        &self,
        context: &dyn TransferContext,
        url: &Url,
        file: &Path,
        stop: &StopToken,
    ) -> Result<(), RemoteError> {
        self.with_retries(context, stop, || self.download_once(context, url, file)).await
    }

    async fn download_once(&self, context: &dyn TransferContext, url: &Url, file: &Path) -> Result<(), RemoteError> {
        let write_failed = |error| RemoteError::File(format!("write `{}`", file.display()), error);
        let response = self.http.get(url.clone()).send().await.map_err(RemoteError::network)?;
        let response = check_status(response).await?;
        let changed = last_modified(&response);
        let local_time = fs::symlink_metadata(file).and_then(|metadata| metadata.modified()).ok();
        let name = |path: Option<&std::ffi::OsStr>| path.unwrap_or_default().to_string_lossy().into_owned();
        if local_time.is_some_and(|time| changed.unwrap_or(SystemTime::UNIX_EPOCH) <= time) {
            context.report(MessageLevel::Plain, &format!("{} is up to date", name(file.file_name())));
            return Ok(());
        }
        let etag = response.headers().get(header::ETAG).and_then(|etag| etag.to_str().ok());
        let etag = etag.map(|etag| format!(" ETag={etag}")).unwrap_or_default();
        // Every format has the suffix `.zip`, so the suffix is not printed.
        context.report(
            MessageLevel::Plain,
            &format!("Downloading {} from {}{etag}", name(file.file_stem()), without_secrets(url)),
        );
        let directory = file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(directory).map_err(write_failed)?;
        let temporary = tempfile::Builder::new().prefix("cache").tempfile_in(directory).map_err(write_failed)?;
        let meter = context.meter("Downloading cache", response.content_length());
        Download::new(self, context, url, temporary.as_file(), meter).run(response).await?;
        if let Some(time) = changed {
            filetime::set_file_handle_times(temporary.as_file(), None, Some(FileTime::from_system_time(time)))
                .map_err(write_failed)?;
        }
        temporary.persist(file).map_err(|error| write_failed(error.error))?;
        Ok(())
    }

    /// Uploads `file` to `url`, unless it is larger than `max_bytes` (0 means no limit).
    ///
    /// `headers` have the form `Name: value`. A header without a colon is ignored.
    ///
    /// # Errors
    /// If a header is invalid, the file cannot be read, or the upload fails.
    pub async fn upload(
        &self,
        context: &dyn TransferContext,
        file: &Path,
        url: &Url,
        headers: &[String],
        max_bytes: u64,
        stop: &StopToken,
    ) -> Result<(), RemoteError> {
        let size = || Ok(fs::symlink_metadata(file)?.len());
        let size = size().map_err(|error| RemoteError::File(format!("read `{}`", file.display()), error))?;
        if max_bytes != 0 && size > max_bytes {
            let message = format!(
                "Cache archive size ({size}) is too big (Limit is set to {max_bytes}). Cache will be stored only locally."
            );
            context.report(MessageLevel::Plain, &message);
            return Ok(());
        }
        let headers = parse_headers(headers)?;
        self.with_retries(context, stop, || self.upload_once(context, file, url, &headers)).await
    }

    async fn upload_once(
        &self,
        context: &dyn TransferContext,
        file: &Path,
        url: &Url,
        headers: &HeaderMap,
    ) -> Result<(), RemoteError> {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        context.report(MessageLevel::Plain, &format!("Uploading {name} to {}", without_secrets(url)));
        let size = fs::symlink_metadata(file).ok().map(|metadata| metadata.len());
        let meter = Arc::new(Mutex::new(context.meter("Uploading cache", size)));
        let answered = self.put(file, url, headers, meter).await?;
        // The next download compares the time of the file with the object's, so both must come from the store's clock.
        if let Some(time) = answered {
            filetime::set_file_mtime(file, FileTime::from_system_time(time))
                .map_err(|error| RemoteError::File(format!("set the time of `{}`", file.display()), error))?;
        }
        Ok(())
    }

    /// Uploads `file`. Returns the date of the response, if it is valid.
    pub(super) async fn put(
        &self,
        file: &Path,
        url: &Url,
        headers: &HeaderMap,
        meter: Arc<Mutex<Meter>>,
    ) -> Result<Option<SystemTime>, RemoteError> {
        let read_failed = |error| RemoteError::File(format!("read `{}`", file.display()), error);
        let path = file.to_owned();
        let content = muster_files::run_blocking(file, move || muster_files::open(&path))
            .await
            .map_err(|error| read_failed(error.into()))?;
        let metadata = content.metadata().map_err(read_failed)?;
        let body = ReaderStream::with_capacity(tokio::fs::File::from_std(content), 256 * 1024)
            .inspect(move |chunk| (meter.lock())(chunk.as_ref().map_or(0, |chunk| chunk.len())));
        let mut headers = headers.clone();
        headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_LENGTH, metadata.len().into());
        let time = metadata.modified().map(httpdate::fmt_http_date).map_err(read_failed)?;
        if let Ok(time) = HeaderValue::from_str(&time) {
            headers.insert(header::LAST_MODIFIED, time);
        }
        let call = self.http.put(url.clone()).headers(headers).body(Body::wrap_stream(body));
        let response = check_status(call.send().await.map_err(RemoteError::network)?).await?;
        Ok(http_date(&response, header::DATE))
    }

    pub(super) async fn with_retries<T, F: Future<Output = Result<T, RemoteError>>>(
        &self,
        context: &dyn TransferContext,
        stop: &StopToken,
        transfer: impl Fn() -> F,
    ) -> Result<T, RemoteError> {
        let mut retries_left = self.retries;
        loop {
            let result = tokio::select! {
                cause = stop.stopped() => return Err(RemoteError::Stopped(cause)),
                result = transfer() => result,
            };
            match result {
                Err(error) if error.is_transient() && retries_left > 0 => {
                    retries_left -= 1;
                    context.report(MessageLevel::Warning, &format!("Retrying... error={error}"));
                }
                result => return result,
            }
            tokio::select! {
                cause = stop.stopped() => return Err(RemoteError::Stopped(cause)),
                () = tokio::time::sleep(self.delay) => {}
            }
        }
    }
}

pub(super) async fn check_status(response: Response) -> Result<Response, RemoteError> {
    let status = response.status();
    match status {
        status if status.is_success() => Ok(response),
        StatusCode::NOT_FOUND => Err(RemoteError::Missing),
        _ => Err(RemoteError::Status { status, reason: reason(response).await }),
    }
}

/// Returns the code and the message of an XML error response, or an empty text.
async fn reason(mut response: Response) -> String {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_REASON_BYTES {
            break;
        }
    }
    let text = String::from_utf8_lossy(&body);
    let element = |name: &str| {
        let after = text.split_once(&format!("<{name}>"))?.1;
        Some(after.split_once(&format!("</{name}>"))?.0.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    match (element("Code"), element("Message")) {
        (Some(code), message) => {
            format!(". Request failed with code: {code}, message: {}", message.unwrap_or_default())
        }
        (None, _) => String::new(),
    }
}

fn last_modified(response: &Response) -> Option<SystemTime> {
    http_date(response, header::LAST_MODIFIED)
}

fn http_date(response: &Response, name: HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(response.headers().get(name)?.to_str().ok()?).ok()
}

fn without_secrets(url: &Url) -> Url {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    let _ = (url.set_username(""), url.set_password(None));
    url
}

pub(super) fn parse_headers(headers: &[String]) -> Result<HeaderMap, RemoteError> {
    let mut map = HeaderMap::new();
    for (name, value) in headers.iter().filter_map(|header| header.split_once(':')) {
        let invalid = || RemoteError::Setup(format!("`{}` is not a valid header", name.trim()));
        let name = HeaderName::try_from(name.trim()).map_err(|_| invalid())?;
        map.insert(name, HeaderValue::try_from(value.trim()).map_err(|_| invalid())?);
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::transfer::test_support::RecordingContext;

    /// A store that closes the connection in the middle of the first `broken` responses.
    async fn breaking_store(broken: usize) -> Url {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}/object", listener.local_addr().unwrap())).unwrap();
        tokio::spawn(async move {
            for index in 0.. {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await.unwrap();
                let head = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\n";
                let body = if index < broken { "01234" } else { "0123456789" };
                stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            }
        });
        url
    }

    #[tokio::test]
    async fn download_that_breaks_in_the_middle_keeps_the_old_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cache.zip");
        fs::write(&file, "old").unwrap();
        filetime::set_file_mtime(&file, FileTime::from_unix_time(-1, 0)).unwrap();
        let context = RecordingContext::new(directory.path().to_owned());
        let remote = Remote::new(Duration::from_secs(60), 2, Duration::from_millis(1)).unwrap();
        let stop = StopToken::new();
        let error = remote.download(&context, &breaking_store(3).await, &file, &stop).await.unwrap_err();
        assert!(matches!(error, RemoteError::Network(_)), "{error:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        assert_eq!(context.messages.lock().iter().filter(|line| line.starts_with("Retrying...")).count(), 2);
        remote.download(&context, &breaking_store(2).await, &file, &stop).await.unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "0123456789");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no partial file may be left");
    }
}
