//! JSON documents of a registry (docs/spec/fleeting.md, section 6.3).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

pub(super) const INDEX_TYPES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
pub(super) const MANIFEST_TYPES: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];

/// List of the images for several platforms, or of documents that describe other content of the repository
/// ("referrers").
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Index {
    /// Media type of the document. Empty if it is missing.
    pub media_type: String,
    /// Entries of the index.
    pub manifests: Vec<Descriptor>,
    /// Annotations with arbitrary keys.
    pub annotations: BTreeMap<String, String>,
    /// Size of the document in bytes.
    #[serde(skip)]
    pub bytes: u64,
}

/// Manifest of the image for one platform.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Manifest {
    /// Layers of the image.
    pub layers: Vec<Descriptor>,
}

/// Description of a blob or manifest.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Descriptor {
    /// Media type of the content.
    pub media_type: String,
    /// Digest of the content: `sha256:` and 64 hexadecimal digits.
    pub digest: String,
    /// Size of the content in bytes.
    pub size: u64,
    /// Platform of an index entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Type of the content if it is a document about other content. Otherwise empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub artifact_type: String,
    /// Annotations with arbitrary keys.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Platform of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Platform {
    /// Operating system, named as in Go.
    pub os: String,
    /// Architecture, named as in Go.
    pub architecture: String,
    /// Variant of the architecture, such as `v7`. Often empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub variant: String,
    /// Version of the operating system. Often empty.
    #[serde(rename = "os.version", skip_serializing_if = "String::is_empty")]
    pub os_version: String,
    /// Required features of the operating system. Often empty.
    #[serde(rename = "os.features", skip_serializing_if = "Vec::is_empty")]
    pub os_features: Vec<String>,
    /// Required features of the machine. Often empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        if self.variant.is_empty() { Ok(()) } else { write!(f, "/{}", self.variant) }
    }
}
