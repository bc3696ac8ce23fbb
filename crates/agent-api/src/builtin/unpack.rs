//! Limits for unpacking archives.

use serde::{Deserialize, Serialize};

/// Maximum size of the contents of an artifact or a cache. 0 means the agent's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UnpackLimits {
    /// Maximum size of all files together, in bytes.
    pub max_bytes: u64,
    /// Maximum number of entries.
    pub max_entries: u64,
    /// Maximum number of unpacked bytes per byte of the archive. Applies only to large archives.
    pub max_ratio: u64,
    /// Maximum size of headers in bytes: of all entries in a zip, of one entry in a tar.
    pub max_header_bytes: u64,
    /// Whether the limits are set in `ci.toml`. Errors name this file then, instead of `config.toml`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub set_in_ci_toml: bool,
}

impl UnpackLimits {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
