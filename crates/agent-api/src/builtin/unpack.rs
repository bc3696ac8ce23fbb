//! Limits of unpacking.

use serde::{Deserialize, Serialize};

/// Most that an artifact or a cache may unpack to. 0 stands for the agent's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UnpackLimits {
    /// Bytes of all files together.
    pub max_bytes: u64,
    /// Number of entries.
    pub max_entries: u64,
    /// Unpacked bytes for each byte of the archive. Counts only for large archives.
    pub max_ratio: u64,
    /// Bytes of headers: of all entries of a zip, of one entry of a tar.
    pub max_header_bytes: u64,
    /// The limits are set in `ci.toml`, which errors then name instead of `config.toml`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub set_in_ci_toml: bool,
}

impl UnpackLimits {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
