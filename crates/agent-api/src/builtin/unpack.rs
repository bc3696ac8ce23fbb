//! Limits for unpacking archives.

use serde::{Deserialize, Serialize};

/// Limits for the contents of an artifact or a cache. 0 means the agent's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UnpackLimits {
    /// Maximum size of all files in bytes.
    pub max_bytes: u64,
    /// Maximum number of entries.
    pub max_entries: u64,
    /// Maximum number of unpacked bytes per byte of a large archive.
    pub max_ratio: u64,
    /// Maximum size in bytes of the headers of a zip, or of one header of a tar.
    pub max_header_bytes: u64,
    /// Whether errors name `ci.toml`, which sets the limits, instead of `config.toml`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub set_in_ci_toml: bool,
}

impl UnpackLimits {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
