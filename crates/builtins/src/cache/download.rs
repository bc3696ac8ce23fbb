//! Downloads one object of a store into a file. A large object is downloaded in concurrent ranges. If the transfer of
//! a range breaks, it continues at the next byte. If a single stream breaks, it starts again.
//!
//! ```text
//! response --strong ETag, `Accept-Ranges: bytes`--> ranges --> temporary file --checksum--> done
//!     `--otherwise--> one stream -----------------------^
//! ```
//!
//! Each request for a range requires the entity tag of the first response, so the file never mixes two versions.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode, Url};

use super::remote::{Remote, RemoteError, check_status};
use crate::transfer::{MessageLevel, Meter, TransferContext};

/// Maximum number of ranges that are transferred at the same time.
const MAX_CONCURRENT: usize = 4;
/// Number of bytes that are read at once for the checksum.
const CHUNK: usize = 256 * 1024;

pub(super) struct Download<'a> {
    remote: &'a Remote,
    context: &'a dyn TransferContext,
    url: &'a Url,
    file: &'a File,
    meter: Mutex<Meter>,
}

/// Remaining part of a range: the bytes that were not transferred yet.
#[derive(Debug, Clone, Copy)]
struct Range {
    /// Position of the next byte.
    at: u64,
    /// Position after the last byte.
    end: u64,
}

impl<'a> Download<'a> {
    pub(super) fn new(
        remote: &'a Remote,
        context: &'a dyn TransferContext,
        url: &'a Url,
        file: &'a File,
        meter: Meter,
    ) -> Self {
        Self { remote, context, url, file, meter: Mutex::new(meter) }
    }

    /// Writes the object to the file. `response` must be for the whole object.
    ///
    /// # Errors
    /// If the transfer fails, or if the length or the checksum of the content is wrong.
    pub(super) async fn run(&self, response: Response) -> Result<(), RemoteError> {
        let checksum = declared_checksum(response.headers());
        match (resumable_tag(response.headers()), response.content_length()) {
            (Some(tag), Some(length)) => self.transfer_ranges(response, &tag, length).await?,
            (_, length) => {
                let mut range = Range { at: 0, end: length.unwrap_or(u64::MAX) };
                self.write_body(response, &mut range).await?;
                if length.is_some_and(|length| range.at != length) {
                    return Err(RemoteError::Network("the response ended before the end of the object".to_owned()));
                }
            }
        }
        match checksum {
            Some(checksum) => self.check_md5(checksum).await,
            None => Ok(()),
        }
    }

    async fn transfer_ranges(&self, response: Response, tag: &HeaderValue, length: u64) -> Result<(), RemoteError> {
        let range_bytes = self.remote.range_bytes;
        let starts = (0..length.div_ceil(range_bytes).max(1)).map(|index| index * range_bytes);
        let mut first = Some(response);
        let ranges = starts.map(|at| {
            let range = Range { at, end: length.min(at + range_bytes) };
            Ok::<_, RemoteError>((range, first.take()))
        });
        let ranges = futures::stream::iter(ranges);
        ranges
            .try_for_each_concurrent(MAX_CONCURRENT, |(range, response)| {
                self.transfer_range(range, response, tag, length)
            })
            .await
    }

    /// Transfers a range, and continues it after a transient error.
    async fn transfer_range(
        &self,
        mut range: Range,
        mut response: Option<Response>,
        tag: &HeaderValue,
        length: u64,
    ) -> Result<(), RemoteError> {
        let mut retries_left = self.remote.retries;
        loop {
            let transferred = match response.take() {
                Some(response) => self.write_body(response, &mut range).await,
                None => match self.request(range, tag, length).await {
                    Ok(response) => self.write_body(response, &mut range).await,
                    Err(error) => Err(error),
                },
            };
            if range.at == range.end {
                return Ok(());
            }
            let error = transferred
                .err()
                .unwrap_or_else(|| RemoteError::Network("the response ended before the end of the range".to_owned()));
            if !error.is_transient() || matches!(error, RemoteError::Damaged(_)) {
                return Err(error);
            }
            if retries_left == 0 {
                return Err(RemoteError::Interrupted { position: range.at, length, source: Box::new(error) });
            }
            retries_left -= 1;
            let line = format!("Retrying... error={error}; continuing at byte {} of {length}", range.at);
            self.context.report(MessageLevel::Warning, &line);
            tokio::time::sleep(self.remote.delay).await;
        }
    }

    /// Requests a range of the object version with this entity tag.
    async fn request(&self, range: Range, tag: &HeaderValue, length: u64) -> Result<Response, RemoteError> {
        let last = range.end.saturating_sub(1);
        let call = self.remote.http.get(self.url.clone());
        let call = call.header(header::RANGE, format!("bytes={}-{last}", range.at)).header(header::IF_MATCH, tag);
        let response = check_status(call.send().await.map_err(RemoteError::network)?).await?;
        let content_range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
        let expected = format!("bytes {}-{last}/{length}", range.at);
        if response.status() != StatusCode::PARTIAL_CONTENT || content_range != Some(&expected) {
            let message = format!(
                "the store answered a request for `{expected}` with status {} and the range `{}`",
                response.status(),
                content_range.unwrap_or_default()
            );
            return Err(RemoteError::Damaged(message));
        }
        if let Some(found) = response.headers().get(header::ETAG).filter(|found| *found != tag) {
            let [found, expected] = [found, tag].map(|tag| String::from_utf8_lossy(tag.as_bytes()));
            let message = format!("the object changed during the download: its ETag is {found}, expected {expected}");
            return Err(RemoteError::Damaged(message));
        }
        Ok(response)
    }

    async fn write_body(&self, response: Response, range: &mut Range) -> Result<(), RemoteError> {
        let mut body = response.bytes_stream();
        while range.at < range.end {
            let Some(chunk) = body.next().await else { break };
            let chunk = chunk.map_err(RemoteError::network)?;
            let length = usize::try_from(range.end - range.at).map_or(chunk.len(), |left| left.min(chunk.len()));
            let chunk = chunk.get(..length).unwrap_or_default();
            self.file.write_all_at(chunk, range.at).map_err(|error| file_error("write", error))?;
            range.at += length as u64;
            (self.meter.lock())(length);
        }
        Ok(())
    }

    async fn check_md5(&self, expected: [u8; 16]) -> Result<(), RemoteError> {
        let file = self.file.try_clone().map_err(|error| file_error("read", error))?;
        let found = tokio::task::spawn_blocking(move || md5_of(&file)).await;
        let found = found.map_err(io::Error::other).flatten().map_err(|error| file_error("read", error))?;
        if found == expected {
            return Ok(());
        }
        let message = format!("its MD5 is {}, but the store declared {}", hex::encode(found), hex::encode(expected));
        Err(RemoteError::Damaged(message))
    }
}

fn file_error(operation: &str, error: io::Error) -> RemoteError {
    RemoteError::File(format!("{operation} the temporary file of a download"), error)
}

fn md5_of(file: &File) -> io::Result<[u8; 16]> {
    let (mut context, mut buffer, mut at) = (md5::Context::new(), vec![0; CHUNK], 0);
    loop {
        match file.read_at(&mut buffer, at) {
            Ok(0) => return Ok(context.finalize().0),
            Ok(read) => {
                context.consume(buffer.get(..read).unwrap_or_default());
                at += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the entity tag if ranges can be requested. A weak tag does not identify the bytes.
fn resumable_tag(headers: &HeaderMap) -> Option<HeaderValue> {
    let has_ranges = headers.get(header::ACCEPT_RANGES).is_some_and(|units| units == "bytes");
    headers.get(header::ETAG).filter(|tag| has_ranges && tag.as_bytes().starts_with(b"\"")).cloned()
}

/// Returns the MD5 that the store declares. Only Azure and Google Cloud Storage do this.
fn declared_checksum(headers: &HeaderMap) -> Option<[u8; 16]> {
    const GOOGLE_HASH: HeaderName = HeaderName::from_static("x-goog-hash");
    const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");
    let google = headers.get_all(GOOGLE_HASH).iter().filter_map(|value| value.to_str().ok());
    let mut google = google.flat_map(|value| value.split(',')).filter_map(|hash| hash.trim().strip_prefix("md5="));
    let text = headers.get(CONTENT_MD5).and_then(|value| value.to_str().ok()).or_else(|| google.next())?;
    STANDARD.decode(text.trim()).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use muster_steps::stop::StopToken;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::transfer::test_support::RecordingContext;

    const CONTENT: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    const TAGGED: &str = "ETag: \"one\"\r\nAccept-Ranges: bytes\r\n";

    /// A store with one object. It closes the connection in the middle of the first `broken` responses.
    #[derive(Clone)]
    struct Store {
        headers: &'static str,
        range_headers: &'static str,
        broken: usize,
        responses: Arc<AtomicUsize>,
    }

    impl Store {
        fn new(headers: &'static str, range_headers: &'static str, broken: usize) -> Self {
            Self { headers, range_headers, broken, responses: Arc::default() }
        }

        async fn start(&self) -> Url {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = Url::parse(&format!("http://{}/object", listener.local_addr().unwrap())).unwrap();
            let store = self.clone();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let store = store.clone();
                    tokio::spawn(async move { store.respond(stream).await });
                }
            });
            url
        }

        async fn respond(&self, mut stream: TcpStream) {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                if stream.read_buf(&mut request).await.unwrap() == 0 {
                    return;
                }
            }
            let request = String::from_utf8(request).unwrap().to_lowercase();
            let range = request.split_once("range: bytes=").map(|(_, range)| {
                let (start, end) = range.lines().next().unwrap().split_once('-').unwrap();
                (start.parse::<usize>().unwrap(), end.parse::<usize>().unwrap())
            });
            let (start, end) = range.unwrap_or((0, CONTENT.len() - 1));
            let body = &CONTENT[start..=end];
            let status = match range {
                Some(_) => {
                    format!("206\r\nContent-Range: bytes {start}-{end}/{}\r\n{}", CONTENT.len(), self.range_headers)
                }
                None => format!("200\r\n{}", self.headers),
            };
            let head = format!("HTTP/1.1 {status}Connection: close\r\nContent-Length: {}\r\n\r\n", body.len());
            let is_broken = self.responses.fetch_add(1, Ordering::Relaxed) < self.broken;
            let sent = if is_broken { &body[..body.len() / 2] } else { body };
            let _ = stream.write_all(&[head.as_bytes(), sent].concat()).await;
        }
    }

    async fn download(store: &Store, range_bytes: u64) -> (Result<Vec<u8>, RemoteError>, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        let context = RecordingContext::new(directory.path().to_owned());
        let mut remote = Remote::new(Duration::from_secs(60), 2, Duration::from_millis(1)).unwrap();
        remote.range_bytes = range_bytes;
        let file = directory.path().join("cache.zip");
        let result = remote.download(&context, &store.start().await, &file, &StopToken::new()).await;
        let left = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, usize::from(result.is_ok()), "no partial file may be left");
        let messages = context.messages.lock().clone();
        (result.map(|()| std::fs::read(file).unwrap()), messages)
    }

    #[tokio::test]
    async fn object_is_transferred_in_ranges() {
        for range_bytes in [1, 5, 35, 36, 37] {
            let store = Store::new(TAGGED, "ETag: \"one\"\r\n", 0);
            let (content, _) = download(&store, range_bytes).await;
            assert_eq!(content.unwrap(), CONTENT);
            let expected = CONTENT.len().div_ceil(usize::try_from(range_bytes).unwrap());
            assert_eq!(store.responses.load(Ordering::Relaxed), expected, "{range_bytes}");
        }
    }

    #[tokio::test]
    async fn broken_transfer_continues_at_the_next_byte() {
        let store = Store::new(TAGGED, "ETag: \"one\"\r\n", 2);
        let (content, messages) = download(&store, 100).await;
        assert_eq!(content.unwrap(), CONTENT);
        let continued = |at: &str| messages.iter().any(|line| line.contains(&format!("continuing at byte {at} of 36")));
        assert!(continued("18") && continued("27"), "{messages:?}");
    }

    #[tokio::test]
    async fn transfer_that_breaks_too_often_fails_without_a_file() {
        let (content, messages) = download(&Store::new(TAGGED, "ETag: \"one\"\r\n", 100), 100).await;
        let error = content.unwrap_err();
        assert!(matches!(error, RemoteError::Interrupted { length: 36, .. }), "{error:?}");
        assert_eq!(messages.iter().filter(|line| line.starts_with("Retrying...")).count(), 2, "{messages:?}");
    }

    #[tokio::test]
    async fn ranges_of_another_version_are_not_used() {
        let (content, _) = download(&Store::new(TAGGED, "ETag: \"two\"\r\n", 0), 10).await;
        assert!(matches!(content, Err(RemoteError::Damaged(_))), "{content:?}");
    }

    #[tokio::test]
    async fn object_without_strong_tag_or_ranges_is_one_stream() {
        for headers in ["", "ETag: \"one\"\r\n", "ETag: W/\"one\"\r\nAccept-Ranges: bytes\r\n"] {
            let store = Store::new(headers, "", 1);
            let (content, _) = download(&store, 10).await;
            assert_eq!(content.unwrap(), CONTENT, "{headers}");
            assert_eq!(
                store.responses.load(Ordering::Relaxed),
                2,
                "{headers}: the second request must be for all bytes"
            );
        }
    }

    #[tokio::test]
    async fn content_with_another_checksum_is_an_error() {
        let right = STANDARD.encode(md5::compute(CONTENT).0);
        for (value, is_right) in [(right.as_str(), true), ("1B2M2Y8AsgTpgAmY7PhCfg==", false)] {
            for headers in
                [format!("Content-MD5: {value}\r\n"), format!("x-goog-hash: crc32c=AAAAAA==,md5={value}\r\n")]
            {
                let headers: &'static str = Box::leak(headers.into_boxed_str());
                let (content, _) = download(&Store::new(headers, "", 0), 10).await;
                match content {
                    Ok(content) => assert!(is_right && content == CONTENT, "{headers}"),
                    Err(error) => assert!(!is_right && matches!(error, RemoteError::Damaged(_)), "{headers}: {error}"),
                }
            }
        }
    }
}
