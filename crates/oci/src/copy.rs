//! Copies an index or image with its content to another repository. Digests do not change.

use std::sync::Arc;

use serde::Deserialize;
use url::Url;

use crate::blob::Blob;
use crate::body::read_body;
use crate::client::{MAX_DOCUMENT_BYTES, Registry, accept_headers, verify};
use crate::digest::{Digest, DigestError};
use crate::error::{RegistryError, ResponseError};
use crate::manifest::{Descriptor, INDEX_TYPES, MANIFEST_TYPES};
use crate::publish::Document;

const MAX_BLOB_BYTES: u64 = 1024 * 1024 * 1024;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct References {
    media_type: String,
    manifests: Vec<Descriptor>,
    config: Option<Descriptor>,
    layers: Vec<Descriptor>,
}

/// Copies the index or image of a tag or digest, and adds `tags`. Returns its digest.
///
/// Without tags, only the content that the index or image refers to is copied, and not the index or image itself.
///
/// # Errors
/// [`RegistryError`] of one of the two repositories.
pub async fn copy(from: &Registry, reference: &str, to: &Registry, tags: &[&str]) -> Result<Digest, RegistryError> {
    let (document, references, _) = fetch(from, reference).await?;
    for entry in &references.manifests {
        let (manifest, inner, url) = fetch(from, &entry.digest).await?;
        if !inner.manifests.is_empty() {
            return Err(RegistryError::invalid(url, ResponseError::NestedIndex));
        }
        copy_blobs(from, &inner, to).await?;
        to.push_document(None, &manifest).await?;
    }
    copy_blobs(from, &references, to).await?;
    for tag in tags {
        to.push_document(Some(tag), &document).await?;
    }
    Ok(Digest::of(&document.bytes))
}

impl Registry {
    /// Returns the digest of the index or image of a tag, if the tag exists.
    pub async fn digest_of(&self, tag: &str) -> Result<Option<Digest>, RegistryError> {
        match fetch(self, tag).await {
            Ok((document, ..)) => Ok(Some(Digest::of(&document.bytes))),
            Err(RegistryError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Fetches the index or image of a tag or digest. Returns the document, its references, and the URL.
async fn fetch(from: &Registry, reference: &str) -> Result<(Document, References, Url), RegistryError> {
    let url = from.url(&["manifests", reference])?;
    let is_digest = reference.contains(':');
    // Names the content in the error that it does not exist.
    let full_name = format!("{}{}{reference}", from.repository(), if is_digest { '@' } else { ':' });
    let response =
        from.get(&url, accept_headers(&[&INDEX_TYPES[..], &MANIFEST_TYPES[..]].concat()), Some(full_name)).await?;
    let header = response.headers().get(reqwest::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let header = header.unwrap_or_default().to_owned();
    let bytes = read_body(response, url.as_str(), MAX_DOCUMENT_BYTES).await?;
    if is_digest {
        verify(&url, reference, Digest::of(&bytes))?;
    }
    let references: References =
        serde_json::from_slice(&bytes).map_err(|error| RegistryError::invalid(url.as_str(), error))?;
    let media_type = if references.media_type.is_empty() { header } else { references.media_type.clone() };
    Ok((Document { media_type, bytes }, references, url))
}

async fn copy_blobs(from: &Registry, references: &References, to: &Registry) -> Result<(), RegistryError> {
    for blob in references.config.iter().chain(&references.layers) {
        if to.has_blob(&blob.digest).await? {
            continue;
        }
        let url = from.url(&["blobs", &blob.digest])?;
        if blob.size > MAX_BLOB_BYTES {
            return Err(RegistryError::TooLarge { url: url.into(), limit: MAX_BLOB_BYTES });
        }
        let directory =
            tempfile::tempdir().map_err(|source| RegistryError::File { path: std::env::temp_dir(), source })?;
        let path = directory.path().join("blob");
        from.download(blob, &path).await?;
        let file = tokio::fs::File::open(&path).await.map_err(|source| RegistryError::File { path, source })?;
        let digest: Digest = blob.digest.parse().map_err(|error: DigestError| RegistryError::invalid(url, error))?;
        to.push_blob(&Blob::in_file(Arc::new(file.into_std().await), 0, blob.size, digest)).await?;
    }
    Ok(())
}
