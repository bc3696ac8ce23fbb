//! Builds an index with images for several platforms, and publishes it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::blob::Blob;
use crate::client::Registry;
use crate::digest::Digest;
use crate::error::RegistryError;
use crate::manifest::{INDEX_TYPES, MANIFEST_TYPES, Platform};

const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";

/// Image for one platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Platform of the image.
    pub platform: Platform,
    /// Contents of the layers, in order.
    pub layers: Vec<Blob>,
}

/// Document of a registry, with the exact bytes of which the digest is computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Media type of the document.
    pub media_type: String,
    /// Content of the document.
    pub bytes: Vec<u8>,
}

impl Document {
    pub(crate) fn new(media_type: &str, content: &Value) -> Self {
        Self { media_type: media_type.to_owned(), bytes: content.to_string().into_bytes() }
    }
}

/// Index with everything that it refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltIndex {
    /// Layers and configurations.
    pub blobs: Vec<Blob>,
    /// Manifests of the images.
    pub manifests: Vec<Document>,
    /// The index itself.
    pub index: Document,
}

impl BuiltIndex {
    /// Builds the manifests of images and their index, each with the `annotations`.
    #[must_use]
    pub fn new(layer_type: &str, images: Vec<Image>, annotations: &BTreeMap<String, String>) -> Self {
        let (mut blobs, mut manifests, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        for Image { platform, layers } in images {
            let described = |media_type: &str, content: &Blob| json!({"mediaType": media_type, "digest": content.digest().to_string(), "size": content.size()});
            let (os, architecture) = (&platform.os, &platform.architecture);
            let config = json!({"os": os, "architecture": architecture, "rootfs": {"type": "layers", "diff_ids": []}});
            let config = Blob::from(config.to_string().into_bytes());
            let manifest = Document::new(
                MANIFEST_TYPES[0],
                &json!({
                    "schemaVersion": 2,
                    "mediaType": MANIFEST_TYPES[0],
                    "config": described(CONFIG_TYPE, &config),
                    "layers": layers.iter().map(|layer| described(layer_type, layer)).collect::<Vec<_>>(),
                    "annotations": annotations,
                }),
            );
            let mut entry = described(MANIFEST_TYPES[0], &manifest.bytes.clone().into());
            if let Some(entry) = entry.as_object_mut() {
                entry.insert("platform".to_owned(), json!(platform));
            }
            entries.push(entry);
            blobs.extend(layers);
            blobs.push(config);
            manifests.push(manifest);
        }
        let index = json!({
            "schemaVersion": 2,
            "mediaType": INDEX_TYPES[0],
            "manifests": entries,
            "annotations": annotations,
        });
        Self { blobs, manifests, index: Document::new(INDEX_TYPES[0], &index) }
    }

    /// Uploads the blobs, the manifests, and the index under each tag. Returns the digest of the index.
    pub async fn push(self, registry: &Registry, tags: &[&str]) -> Result<Digest, RegistryError> {
        for blob in &self.blobs {
            registry.push_blob(blob).await?;
        }
        for manifest in self.manifests {
            registry.push_document(None, &manifest).await?;
        }
        for tag in tags {
            registry.push_document(Some(tag), &self.index).await?;
        }
        Ok(Digest::of(&self.index.bytes))
    }
}

/// Uploads images and their index under a tag. Returns the digest of the index.
pub async fn publish(
    registry: &Registry,
    tag: &str,
    layer_type: &str,
    images: Vec<Image>,
    annotations: &BTreeMap<String, String>,
) -> Result<Digest, RegistryError> {
    BuiltIndex::new(layer_type, images, annotations).push(registry, &[tag]).await
}
