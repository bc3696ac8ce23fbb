//! Uploads blobs and manifests.

use reqwest::Response;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use serde_json::Value;

use crate::blob::Blob;
use crate::client::Registry;
use crate::digest::Digest;
use crate::error::{RegistryError, ResponseError};
use crate::idle::SentBytes;
use crate::publish::Document;

impl Registry {
    /// Uploads a blob, unless the repository already has it.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn push_blob(&self, blob: &Blob) -> Result<(), RegistryError> {
        let digest = blob.digest().to_string();
        if self.has_blob(&digest).await? {
            return Ok(());
        }
        let start = self.url(&["blobs", "uploads/"])?;
        let response = self.send(&start, &|http| http.post(start.clone()).header(CONTENT_LENGTH, 0), None).await?;
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let location = location.ok_or_else(|| RegistryError::invalid(start.as_str(), ResponseError::NoLocation))?;
        let mut upload = start.join(location).map_err(|error| RegistryError::invalid(start.as_str(), error))?;
        upload.query_pairs_mut().append_pair("digest", &digest);
        let sent = SentBytes::default();
        let put = |http: &reqwest::Client| {
            let request = http.put(upload.clone()).header(CONTENT_TYPE, "application/octet-stream");
            request.header(CONTENT_LENGTH, blob.size()).body(blob.body(&sent))
        };
        self.send_counted(&upload, &put, None, &sent).await.map(drop)
    }

    /// Returns whether the repository has a blob. Returns false if the credentials do not permit this query.
    pub(crate) async fn has_blob(&self, digest: &str) -> Result<bool, RegistryError> {
        let url = self.url(&["blobs", digest])?;
        match self.send(&url, &|http| http.head(url.clone()), None).await {
            Ok(_) => Ok(true),
            Err(RegistryError::NotFound { .. }) => Ok(false),
            // Credentials may permit only uploads. The answer to `HEAD` has no body, so it never contains the reason for a refusal.
            Err(RegistryError::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Uploads a manifest or an index under a tag, or under its own digest if `tag` is `None`. Returns its digest and its size in bytes.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn push_manifest(
        &self,
        tag: Option<&str>,
        media_type: &str,
        document: &Value,
    ) -> Result<(Digest, u64), RegistryError> {
        let document = Document::new(media_type, document);
        self.push_document(tag, &document).await?;
        Ok((Digest::of(&document.bytes), document.bytes.len() as u64))
    }

    /// Uploads a manifest or an index under a tag, or under its own digest if `tag` is `None`. Returns the response.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub(crate) async fn push_document(
        &self,
        tag: Option<&str>,
        document: &Document,
    ) -> Result<Response, RegistryError> {
        let by_digest = Digest::of(&document.bytes).to_string();
        let url = self.url(&["manifests", tag.unwrap_or(&by_digest)])?;
        let text = bytes::Bytes::from(document.bytes.clone());
        let put = |http: &reqwest::Client| {
            http.put(url.clone()).header(CONTENT_TYPE, &document.media_type).body(text.clone())
        };
        self.send(&url, &put, None).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinSet;

    use super::*;
    use crate::reference::{Defaults, Repository};

    /// Size of the blob in bytes, which is larger than the buffers of a connection.
    const BLOB_BYTES: usize = 64 * 1024 * 1024;
    /// Number of bytes that the registry reads before each pause.
    const PART_BYTES: usize = 16 * 1024 * 1024;

    /// Serves a registry without blobs, which pauses while it receives an upload. Returns its client.
    async fn registry(pause: Duration) -> (Registry, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = format!("{}/group/app", listener.local_addr().unwrap());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, pause));
            }
        });
        let repository = Repository::parse(&name, &Defaults { registry: "docker.io", group: "library" }).unwrap();
        (Registry::new(repository, None).unwrap(), serving)
    }

    async fn serve(stream: TcpStream, pause: Duration) {
        let mut stream = BufReader::new(stream);
        let (mut head, mut line) = (String::new(), String::new());
        while stream.read_line(&mut line).await.is_ok_and(|read| read > 2) {
            head.push_str(&line);
            line.clear();
        }
        let answer = match head.split(' ').next() {
            Some("HEAD") => "404 Not Found",
            Some("POST") => "202 Accepted\r\nlocation: /v2/upload",
            _ => {
                let mut part = vec![0; PART_BYTES];
                for _ in 0..BLOB_BYTES / PART_BYTES {
                    tokio::time::sleep(pause).await;
                    if stream.read_exact(&mut part).await.is_err() {
                        return;
                    }
                }
                "201 Created"
            }
        };
        let text = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        let _ = stream.write_all(text.as_bytes()).await;
    }

    fn large_blob() -> Blob {
        let file = tempfile::tempfile().unwrap();
        file.set_len(BLOB_BYTES as u64).unwrap();
        Blob::in_file(Arc::new(file), 0, BLOB_BYTES as u64, Digest::of(b"not checked"))
    }

    #[tokio::test(start_paused = true)]
    async fn slow_upload_succeeds_while_it_makes_progress() {
        let (registry, _serving) = registry(Duration::from_secs(50)).await;
        let began = tokio::time::Instant::now();
        registry.push_blob(&large_blob()).await.unwrap();
        assert!(began.elapsed() > Duration::from_secs(60), "no timeout could have expired");
    }

    #[tokio::test(start_paused = true)]
    async fn upload_without_progress_fails() {
        let (registry, _serving) = registry(Duration::from_secs(1_000_000)).await;
        let error = registry.push_blob(&large_blob()).await.unwrap_err();
        assert!(matches!(error, RegistryError::Idle { .. }), "{error}");
    }
}
