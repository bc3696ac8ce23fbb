//! Documents about other content of a repository (OCI distribution specification, "referrers").
//!
//! In registries without the referrers API, an index with the tag `sha256-<digits>` lists the documents.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::blob::Blob;
use crate::client::{Registry, parse_body};
use crate::digest::Digest;
use crate::error::RegistryError;
use crate::manifest::{Descriptor, INDEX_TYPES, Index, MANIFEST_TYPES};
use crate::publish::Document;

const EMPTY: &[u8] = b"{}";
const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";
/// Response header of registries that implement the referrers API.
const SUBJECT_HEADER: &str = "OCI-Subject";

impl Registry {
    /// Returns the documents about the content with a digest.
    ///
    /// # Errors
    /// [`RegistryError`]. Without documents, the list is empty.
    pub async fn referrers(&self, subject: Digest) -> Result<Vec<Descriptor>, RegistryError> {
        let subject = subject.to_string();
        let url = self.url(&["referrers", &subject])?;
        match self.get_index(&url).await? {
            Some(index) => Ok(index.manifests),
            None => Ok(self
                .get_index(&self.url(&["manifests", &fallback_tag(&subject)])?)
                .await?
                .unwrap_or_default()
                .manifests),
        }
    }

    async fn get_index(&self, url: &url::Url) -> Result<Option<Index>, RegistryError> {
        match self.get(url, crate::client::accept_headers(&INDEX_TYPES[..1]), None).await {
            Ok(response) => parse_body(response, url).await.map(Some),
            Err(RegistryError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Publishes a document about the index with the digest `subject` and `size` bytes.
    ///
    /// Without the referrers API, the document replaces an earlier one of the same type.
    pub async fn publish_referrer(
        &self,
        subject: Digest,
        size: u64,
        artifact_type: &str,
        annotations: &BTreeMap<String, String>,
    ) -> Result<(), RegistryError> {
        let subject = subject.to_string();
        let config = Blob::from(EMPTY.to_vec());
        self.push_blob(&config).await?;
        let config = config.digest().to_string();
        let empty = json!({"mediaType": EMPTY_TYPE, "digest": config, "size": EMPTY.len()});
        let document = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPES[0],
            "artifactType": artifact_type,
            "config": empty,
            "layers": [empty],
            "subject": {"mediaType": INDEX_TYPES[0], "digest": subject, "size": size},
            "annotations": annotations,
        });
        let document = Document::new(MANIFEST_TYPES[0], &document);
        let response = self.push_document(None, &document).await?;
        if response.headers().contains_key(SUBJECT_HEADER) {
            return Ok(());
        }
        let tag = fallback_tag(&subject);
        let known = self.get_index(&self.url(&["manifests", &tag])?).await?.unwrap_or_default().manifests;
        let others = known.iter().filter(|entry| entry.artifact_type != artifact_type).map(|entry| json!(entry));
        let own = json!({
            "mediaType": MANIFEST_TYPES[0],
            "digest": Digest::of(&document.bytes).to_string(),
            "size": document.bytes.len(),
            "artifactType": artifact_type,
            "annotations": annotations,
        });
        let manifests: Vec<Value> = others.chain([own]).collect();
        let list = json!({"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": manifests});
        self.push_manifest(Some(&tag), INDEX_TYPES[0], &list).await.map(drop)
    }
}

fn fallback_tag(digest: &str) -> String {
    digest.replace(':', "-")
}
