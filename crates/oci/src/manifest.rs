//! The documents of a registry (docs/spec/fleeting.md, section 6.3).

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

/// What an index may call itself.
pub(super) const INDEX_TYPES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
/// What a manifest may call itself.
pub(super) const MANIFEST_TYPES: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];

/// What a tag points to: an entry for each platform.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Index {
    /// Its own kind; may be missing.
    pub media_type: String,
    /// The entries.
    pub manifests: Vec<Descriptor>,
}

/// One platform's image.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Manifest {
    /// Its layers.
    pub layers: Vec<Descriptor>,
}

/// A thing at the registry, by its digest.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Descriptor {
    /// What kind of thing.
    pub media_type: String,
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: String,
    /// Bytes.
    pub size: u64,
    /// Of an index's entry: where it runs.
    pub platform: Option<Platform>,
    /// Free words.
    pub annotations: BTreeMap<String, String>,
}

/// Where an image runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Platform {
    /// In Go's words.
    pub os: String,
    /// In Go's words.
    pub architecture: String,
    /// `v7`, `v8`; often empty.
    pub variant: String,
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        if self.variant.is_empty() { Ok(()) } else { write!(f, "/{}", self.variant) }
    }
}
