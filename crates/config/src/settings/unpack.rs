//! Limits for unpacking archives: `[runners.unpack]`.

use serde::{Deserialize, Serialize};

/// Limits for unpacking an artifact or a cache. 0 means the agent's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UnpackSettings {
    /// Maximum size of all files in bytes.
    pub max_bytes: u64,
    /// Maximum number of entries.
    pub max_entries: u64,
    /// Maximum number of unpacked bytes for each byte of the archive. Applies above a minimum size only.
    pub max_ratio: u64,
    /// Maximum size of headers in bytes: of all entries of a zip, or of one entry of a tar.
    pub max_header_bytes: u64,
    /// Whether the limits are set in `ci.toml`, so that errors name it instead of `config.toml`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub set_in_ci_toml: bool,
}
