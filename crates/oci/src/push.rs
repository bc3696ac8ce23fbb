//! Uploads blobs and manifests.

use reqwest::Response;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use serde_json::Value;

use crate::client::Registry;
use crate::digest::Digest;
use crate::error::{RegistryError, ResponseError};

impl Registry {
    /// Uploads a blob, unless the repository already has it.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn push_blob(&self, content: Vec<u8>) -> Result<Digest, RegistryError> {
        let digest = Digest::of(&content);
        let url = self.url(&["blobs", &digest.to_string()])?;
        match self.send(&url, &|http| http.head(url.clone()), None).await {
            Ok(_) => return Ok(digest),
            Err(RegistryError::NotFound { .. }) => {}
            // Credentials may permit only uploads. The answer to `HEAD` has no body, so it never contains the reason for a refusal.
            Err(RegistryError::Refused { .. }) => {}
            Err(error) => return Err(error),
        }
        let start = self.url(&["blobs", "uploads/"])?;
        let response = self.send(&start, &|http| http.post(start.clone()).header(CONTENT_LENGTH, 0), None).await?;
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let location = location.ok_or_else(|| RegistryError::invalid(start.as_str(), ResponseError::NoLocation))?;
        let mut upload = start.join(location).map_err(|error| RegistryError::invalid(start.as_str(), error))?;
        upload.query_pairs_mut().append_pair("digest", &digest.to_string());
        let content = bytes(content);
        let put = |http: &reqwest::Client| {
            http.put(upload.clone()).header(CONTENT_TYPE, "application/octet-stream").body(content.clone())
        };
        self.send(&upload, &put, None).await?;
        Ok(digest)
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
        let (digest, size, _) = self.put_manifest(tag, media_type, document).await?;
        Ok((digest, size))
    }

    /// Uploads a manifest. Also returns the response.
    pub(crate) async fn put_manifest(
        &self,
        tag: Option<&str>,
        media_type: &str,
        document: &Value,
    ) -> Result<(Digest, u64, Response), RegistryError> {
        let text = document.to_string().into_bytes();
        let (digest, size) = (Digest::of(&text), text.len() as u64);
        let by_digest = digest.to_string();
        let url = self.url(&["manifests", tag.unwrap_or(&by_digest)])?;
        let text = bytes(text);
        let put = |http: &reqwest::Client| http.put(url.clone()).header(CONTENT_TYPE, media_type).body(text.clone());
        let response = self.send(&url, &put, None).await?;
        Ok((digest, size, response))
    }
}

/// Returns a body that can be sent several times without a copy.
fn bytes(content: Vec<u8>) -> bytes::Bytes {
    content.into()
}
