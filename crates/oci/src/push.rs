//! Uploads blobs and manifests.

use reqwest::Response;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use serde_json::Value;

use crate::blob::Blob;
use crate::client::Registry;
use crate::digest::Digest;
use crate::error::{RegistryError, ResponseError};
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
        let put = |http: &reqwest::Client| {
            let request = http.put(upload.clone()).header(CONTENT_TYPE, "application/octet-stream");
            request.header(CONTENT_LENGTH, blob.size()).body(blob.body())
        };
        self.send(&upload, &put, None).await.map(drop)
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
