//! Downloads blobs into files.

use std::path::Path;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{CONTENT_RANGE, HeaderMap, RANGE};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncSeekExt, AsyncWriteExt};
use url::Url;

use crate::client::{Registry, verify};
use crate::digest::{self, Digest};
use crate::error::{RegistryError, ResponseError};
use crate::idle;
use crate::manifest::Descriptor;
use crate::retry::{MAX_ATTEMPTS, wait};

/// Timeout of a whole download.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(3600);

impl Registry {
    /// Downloads a blob into a file, which may already contain the start of the blob. Retries until several consecutive
    /// attempts make no progress, and verifies the digest.
    ///
    /// # Errors
    /// [`RegistryError`]. If the content is too large or has another digest, the file is deleted. Otherwise, a later
    /// call can continue.
    pub async fn download(&self, blob: &Descriptor, file_path: &Path) -> Result<(), RegistryError> {
        let url = self.url(&["blobs", &blob.digest])?;
        let work = self.download_all(&url, blob, file_path);
        match tokio::time::timeout(DOWNLOAD_TIMEOUT, work).await {
            Ok(result) => result,
            Err(_) => Err(RegistryError::Timeout { url: url.into(), timeout: DOWNLOAD_TIMEOUT }),
        }
    }

    async fn download_all(&self, url: &Url, blob: &Descriptor, file_path: &Path) -> Result<(), RegistryError> {
        let failed = |source| RegistryError::File { path: file_path.to_owned(), source };
        let mut options = tokio::fs::OpenOptions::new();
        let mut file =
            options.create(true).truncate(false).read(true).write(true).open(file_path).await.map_err(failed)?;
        let mut part = Part::read(file_path, blob.size).await.map_err(failed)?;
        // Removes content that is not a part of this blob. If the blob is empty, nothing is requested that would replace it.
        file.set_len(part.length).await.map_err(failed)?;
        let mut failures = 0;
        while part.length < blob.size {
            let length_before = part.length;
            match self.download_part(url, blob, (file_path, &mut file), &mut part).await {
                Ok(()) => {}
                Err(PartError::Permanent(error)) => {
                    drop(file);
                    if matches!(error, RegistryError::TooLarge { .. }) {
                        let _ = tokio::fs::remove_file(file_path).await;
                    }
                    return Err(error);
                }
                Err(PartError::Interrupted(error)) => {
                    failures = if part.length > length_before { 0 } else { failures + 1 };
                    if failures == MAX_ATTEMPTS {
                        return Err(error);
                    }
                    tracing::debug!(%url, %error, received = part.length, "download interrupted, continuing");
                    wait(failures).await;
                }
            }
        }
        file.sync_all().await.map_err(failed)?;
        let found = Digest::finish(part.hash);
        if let Err(error) = verify(url, &blob.digest, found) {
            let _ = tokio::fs::remove_file(file_path).await;
            return Err(error);
        }
        Ok(())
    }

    async fn download_part(
        &self,
        url: &Url,
        blob: &Descriptor,
        (path, file): (&Path, &mut tokio::fs::File),
        part: &mut Part,
    ) -> Result<(), PartError> {
        let mut headers = HeaderMap::new();
        if part.length > 0
            && let Ok(range) = format!("bytes={}-", part.length).parse()
        {
            headers.insert(RANGE, range);
        }
        let mut response = self.get(url, headers, Some(blob.digest.clone())).await.map_err(PartError::Permanent)?;
        let io = |source| PartError::Permanent(RegistryError::File { path: path.to_owned(), source });
        let is_partial = response.status() == StatusCode::PARTIAL_CONTENT;
        match if is_partial { first_byte(response.headers()) } else { Some(0) } {
            Some(first) if first == part.length => {}
            // The response names no range, and none was requested. It is accepted, because the digest will show whether
            // it has the whole blob.
            None if part.length == 0 => {}
            // The registry ignores ranges and sends the whole blob.
            Some(0) => *part = Part::default(),
            _ => {
                // The next attempt requests the whole blob.
                *part = Part::default();
                return Err(PartError::Interrupted(RegistryError::invalid(url, ResponseError::OtherRange)));
            }
        }
        file.set_len(part.length).await.map_err(io)?;
        file.seek(std::io::SeekFrom::Start(part.length)).await.map_err(io)?;
        loop {
            let chunk = idle::next_chunk(&mut response, url.as_str()).await.map_err(PartError::Interrupted)?;
            let Some(chunk) = chunk else { break };
            part.length += chunk.len() as u64;
            if part.length > blob.size {
                return Err(PartError::Permanent(RegistryError::TooLarge { url: url.into(), limit: blob.size }));
            }
            part.hash.update(&chunk);
            file.write_all(&chunk).await.map_err(io)?;
        }
        file.flush().await.map_err(io)?;
        if part.length < blob.size {
            let (received, size) = (part.length, blob.size);
            return Err(PartError::Interrupted(RegistryError::Incomplete { url: url.into(), received, size }));
        }
        Ok(())
    }
}

enum PartError {
    /// The connection broke or stalled, or the response ended too early.
    Interrupted(RegistryError),
    /// The error must not be retried: it is permanent, or [`Registry::get`] has already retried.
    Permanent(RegistryError),
}

#[derive(Default)]
struct Part {
    hash: Sha256,
    length: u64,
}

impl Part {
    /// Reads the part that an earlier download stored. A file of more than `size` bytes is ignored.
    async fn read(path: &Path, size: u64) -> std::io::Result<Self> {
        let path = path.to_owned();
        let read = move || {
            let mut part = Self::default();
            part.length = digest::feed(&mut part.hash, &mut std::fs::File::open(path)?)?;
            Ok(if part.length > size { Self::default() } else { part })
        };
        tokio::task::spawn_blocking(read).await.map_err(std::io::Error::other)?
    }
}

/// Returns the position of a partial response's first byte in the blob, if it is known.
fn first_byte(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, BufReader};
    use tokio::net::TcpListener;

    use super::*;
    use crate::reference::{Defaults, Repository};

    const CONTENT: &[u8] = b"content of a layer";

    /// Answers each request for a range with another range.
    async fn serve_other_ranges(listener: TcpListener) -> std::io::Result<()> {
        loop {
            let mut stream = BufReader::new(listener.accept().await?.0);
            let (mut head, mut line) = (String::new(), String::new());
            while stream.read_line(&mut line).await? > 2 {
                head.push_str(&line.to_lowercase());
                line.clear();
            }
            let (status, body) = if head.contains("\nrange:") {
                ("206 Partial Content\r\ncontent-range: bytes 4-17/18", &CONTENT[4..])
            } else {
                ("200 OK", CONTENT)
            };
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(body).await?;
        }
    }

    #[tokio::test]
    async fn blob_is_requested_again_after_a_response_with_another_range() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = format!("{}/app", listener.local_addr().unwrap());
        let repository = Repository::parse(&name, &Defaults { registry: "docker.io", group: "library" }).unwrap();
        let registry = Registry::new(repository, None).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &CONTENT[..9]).unwrap();
        let digest = Digest::of(CONTENT).to_string();
        let blob = Descriptor { digest, size: CONTENT.len() as u64, ..Descriptor::default() };
        tokio::select! {
            downloaded = registry.download(&blob, file.path()) => downloaded.unwrap(),
            served = serve_other_ranges(listener) => panic!("{served:?}"),
        }
        assert_eq!(std::fs::read(file.path()).unwrap(), CONTENT);
    }
    #[tokio::test]
    async fn file_of_an_empty_blob_is_emptied() {
        let repository = Repository::parse("r.example/app", &Defaults { registry: "docker.io", group: "library" });
        let registry = Registry::new(repository.unwrap(), None).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), CONTENT).unwrap();
        let blob = Descriptor { digest: Digest::of(b"").to_string(), size: 0, ..Descriptor::default() };
        registry.download(&blob, file.path()).await.unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"");
    }
}
