//! Publishes an index with images for several platforms.

use std::collections::BTreeMap;

use serde_json::{Value, json};

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
    pub layers: Vec<Vec<u8>>,
}

/// Uploads images and the index that lists them, under a tag. Returns the digest of the index.
///
/// # Errors
/// [`RegistryError`].
pub async fn publish(
    registry: &Registry,
    tag: &str,
    layer_type: &str,
    images: Vec<Image>,
    annotations: &BTreeMap<String, String>,
) -> Result<Digest, RegistryError> {
    let mut manifests = Vec::new();
    for image in images {
        let Platform { os, architecture, .. } = &image.platform;
        let mut layers = Vec::new();
        for layer in image.layers {
            let size = layer.len();
            let digest = registry.push_blob(layer).await?;
            layers.push(json!({"mediaType": layer_type, "digest": digest.to_string(), "size": size}));
        }
        let config = json!({"os": os, "architecture": architecture, "rootfs": {"type": "layers", "diff_ids": []}});
        let config = config.to_string().into_bytes();
        let size = config.len();
        let config = registry.push_blob(config).await?.to_string();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPES[0],
            "config": {"mediaType": CONFIG_TYPE, "digest": config, "size": size},
            "layers": layers,
            "annotations": annotations,
        });
        let (digest, size) = registry.push_manifest(None, MANIFEST_TYPES[0], &manifest).await?;
        manifests.push(json!({
            "mediaType": MANIFEST_TYPES[0],
            "digest": digest.to_string(),
            "size": size,
            "platform": image.platform,
        }));
    }
    let index: Value = json!({
        "schemaVersion": 2,
        "mediaType": INDEX_TYPES[0],
        "manifests": manifests,
        "annotations": annotations,
    });
    registry.push_manifest(Some(tag), INDEX_TYPES[0], &index).await.map(|(digest, _)| digest)
}
