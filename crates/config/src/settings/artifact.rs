//! Timeouts of artifacts: `[runners.artifact]`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// `[runners.artifact]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactTimeouts {
    /// Maximum time for the whole upload.
    pub upload: Duration,
    /// Maximum time to wait for the answer after the body was sent.
    pub response_header: Duration,
}

impl Default for ArtifactTimeouts {
    fn default() -> Self {
        Self { upload: Duration::from_secs(3600), response_header: Duration::from_secs(600) }
    }
}
