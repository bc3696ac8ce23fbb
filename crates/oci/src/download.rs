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
use crate::error::RegistryError;
use crate::idle;
use crate::manifest::Descriptor;
use crate::retry::{MAX_ATTEMPTS, wait};

/// Timeout of a whole download.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(3600);

impl Registry {
    /// Downloads a blob into a file.
    /// The file may already contain the start of the blob. An interrupted download is continued until several consecutive attempts make no
    /// progress. At the end, the digest is verified.
    ///
    /// # Errors
    /// [`RegistryError`]. If the content is too large or does not match its digest, the file is deleted. After other errors, a later call can
    /// continue with the file.
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
        if response.status() != StatusCode::PARTIAL_CONTENT || !starts_at(response.headers(), part.length) {
            // A response without the requested range counts as the whole blob.
            *part = Part::default();
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

/// Reason why a download stopped.
enum PartError {
    /// The connection broke or stalled, or the response ended too early. The download can be continued.
    Interrupted(RegistryError),
    /// The error must not be retried, because it is permanent, or [`Registry::get`] has already retried the request.
    Permanent(RegistryError),
}

/// The downloaded part of a blob.
#[derive(Default)]
struct Part {
    hash: Sha256,
    length: u64,
}

impl Part {
    /// Reads the part that an earlier download stored in the file. A file of more than `size` bytes is ignored.
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

fn starts_at(headers: &HeaderMap, offset: u64) -> bool {
    let range = headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    range.strip_prefix("bytes ").and_then(|range| range.split('-').next()?.parse().ok()) == Some(offset)
}
