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
use crate::retry::{MAX_ATTEMPTS, wait};

impl Registry {
    /// Uploads a blob, unless the repository has it.
    pub async fn push_blob(&self, blob: &Blob) -> Result<(), RegistryError> {
        let digest = blob.digest().to_string();
        let mut failures = 0;
        // A failed attempt may have stored the blob, so each attempt starts with this query.
        while !self.has_blob(&digest).await? {
            match self.upload(blob, &digest).await {
                Ok(()) => return Ok(()),
                Err(error) if failures + 1 < MAX_ATTEMPTS && error.is_transient() => {
                    failures += 1;
                    tracing::debug!(%error, failures, "upload interrupted, starting another one");
                    wait(failures).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends a blob in a new upload session, because a registry ends a session after a failed request.
    async fn upload(&self, blob: &Blob, digest: &str) -> Result<(), RegistryError> {
        let start = self.url(&["blobs", "uploads/"])?;
        let post = |http: &reqwest::Client, _: &SentBytes| http.post(start.clone()).header(CONTENT_LENGTH, 0);
        let response = self.send_once(&start, &post, None).await?;
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let location = location.ok_or_else(|| RegistryError::invalid(&start, ResponseError::NoLocation))?;
        let mut upload = start.join(location).map_err(|error| RegistryError::invalid(&start, error))?;
        if start.scheme() == "https" && upload.scheme() != "https" {
            return Err(RegistryError::invalid(&start, ResponseError::InsecureUpload));
        }
        upload.query_pairs_mut().append_pair("digest", digest);
        let put = |http: &reqwest::Client, sent: &SentBytes| {
            let request = http.put(upload.clone()).header(CONTENT_TYPE, "application/octet-stream");
            request.header(CONTENT_LENGTH, blob.size()).body(blob.body(sent))
        };
        self.send_once(&upload, &put, Some(blob.size())).await.map(drop)
    }

    /// Returns whether the repository has a blob. False if the credentials do not permit this query.
    pub(crate) async fn has_blob(&self, digest: &str) -> Result<bool, RegistryError> {
        let url = self.url(&["blobs", digest])?;
        match self.send(&url, &|http| http.head(url.clone()), None).await {
            Ok(_) => Ok(true),
            Err(RegistryError::NotFound { .. }) => Ok(false),
            // Credentials may permit only uploads.
            Err(RegistryError::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Uploads a manifest or an index under a tag. `None` means under its digest. Returns digest and size in bytes.
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

    /// Uploads a manifest or an index under a tag. `None` means under its digest.
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

    use parking_lot::Mutex;
    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinSet;

    use super::*;
    use crate::credentials::Credentials;
    use crate::reference::{Defaults, Repository};

    const CONTENT: &[u8] = b"content of a layer";

    /// Registry at which the first upload fails, and thereby ends its session.
    #[derive(Default)]
    struct BrokenUpload {
        /// Requests so far, as `METHOD path`.
        requests: Mutex<Vec<String>>,
        /// Whether the first upload is stored, and only its response is lost.
        stores_first: bool,
        refuses_first_session: bool,
        received: Mutex<Vec<Vec<u8>>>,
    }

    impl BrokenUpload {
        async fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
            let mut stream = BufReader::new(stream);
            let (mut head, mut line) = (String::new(), String::new());
            while stream.read_line(&mut line).await? > 2 {
                head.push_str(&line);
                line.clear();
            }
            let request: Vec<&str> = head.split(' ').take(2).collect();
            let request = request.join(" ").split('?').next().unwrap_or_default().to_owned();
            self.requests.lock().push(request.clone());
            let sessions = self.requests.lock().iter().filter(|request| request.starts_with("POST")).count();
            let answer = match request.split(' ').next() {
                Some("HEAD") if self.received.lock().is_empty() => "404 Not Found".to_owned(),
                Some("HEAD") => "200 OK".to_owned(),
                Some("POST") if self.refuses_first_session && sessions == 1 => "503 Service Unavailable".to_owned(),
                Some("POST") => format!("202 Accepted\r\nlocation: /v2/upload/{sessions}"),
                _ => {
                    let mut content = vec![0; CONTENT.len()];
                    stream.read_exact(&mut content).await?;
                    let is_first = sessions == 1;
                    if !is_first || self.stores_first {
                        self.received.lock().push(content);
                    }
                    if is_first {
                        return Ok(()); // Closes the connection without a response.
                    }
                    "201 Created".to_owned()
                }
            };
            let text = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(text.as_bytes()).await
        }

        /// Pushes a blob, and returns the requests.
        async fn push(self) -> Vec<String> {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let name = format!("{}/app", listener.local_addr().unwrap());
            let this = Arc::new(self);
            let served = Arc::clone(&this);
            let mut serving = JoinSet::new();
            serving.spawn(async move {
                let mut connections = JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    let served = Arc::clone(&served);
                    connections.spawn(async move { served.serve(stream).await });
                }
            });
            let repository = Repository::parse(&name, &Defaults { registry: "docker.io", group: "library" }).unwrap();
            let registry = Registry::new(repository, None).unwrap();
            let mut file = tempfile::tempfile().unwrap();
            std::io::Write::write_all(&mut file, CONTENT).unwrap();
            let blob = Blob::in_file(Arc::new(file), 0, CONTENT.len() as u64, Digest::of(CONTENT));
            registry.push_blob(&blob).await.unwrap();
            assert_eq!(*this.received.lock(), [CONTENT]);
            this.requests.lock().clone()
        }
    }

    #[tokio::test]
    async fn broken_upload_is_repeated_in_a_new_session() {
        let requests = BrokenUpload::default().push().await;
        let uploads: Vec<_> = requests.iter().filter(|request| request.starts_with("PUT")).collect();
        assert_eq!(uploads, ["PUT /v2/upload/1", "PUT /v2/upload/2"]);
    }

    #[tokio::test]
    async fn upload_whose_response_is_lost_is_not_repeated() {
        let requests = BrokenUpload { stores_first: true, ..BrokenUpload::default() }.push().await;
        let uploads: Vec<_> = requests.iter().filter(|request| request.starts_with("PUT")).collect();
        assert_eq!(uploads, ["PUT /v2/upload/1"]);
    }

    #[tokio::test]
    async fn refused_upload_session_is_retried_only_by_push_blob() {
        let requests = BrokenUpload { refuses_first_session: true, ..BrokenUpload::default() }.push().await;
        let methods: Vec<_> = requests.iter().filter_map(|request| request.split(' ').next()).collect();
        // Another retry of `POST` alone would add a `POST` after the first one.
        assert_eq!(methods, ["HEAD", "POST", "HEAD", "POST", "PUT"]);
    }

    #[tokio::test]
    async fn sent_bytes_start_at_zero_after_a_login() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let name = format!("{}/app", listener.local_addr().unwrap());
        let repository = Repository::parse(&name, &Defaults { registry: "docker.io", group: "library" }).unwrap();
        let credentials = Credentials { username: "u".to_owned(), password: "p".to_owned(), is_identity_token: false };
        let registry = Registry::new(repository, Some(credentials)).unwrap();
        let counts = Mutex::new(Vec::new());
        let url = registry.url(&["blobs", "uploads/"]).unwrap();
        let request = |http: &reqwest::Client, sent: &SentBytes| {
            counts.lock().push(sent.get());
            sent.add(7);
            http.put(url.clone()).header(CONTENT_LENGTH, 0)
        };
        let answering = async {
            for answer in ["401 Unauthorized\r\nwww-authenticate: Basic realm=\"r\"", "201 Created"] {
                let mut stream = BufReader::new(listener.accept().await.unwrap().0);
                let mut line = String::new();
                while stream.read_line(&mut line).await.unwrap() > 2 {
                    line.clear();
                }
                let text = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(text.as_bytes()).await.unwrap();
            }
        };
        let (sent, ()) = tokio::join!(registry.send_once(&url, &request, Some(7)), answering);
        sent.unwrap();
        assert_eq!(*counts.lock(), [0, 0]);
    }
}
