//! Shell commands around parts of every job.

use serde::{Deserialize, Serialize};

/// Shell commands of the operator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are those of config.toml")]
pub struct RunnerScripts {
    pub pre_get_sources: Option<String>,
    pub post_get_sources: Option<String>,
    pub pre_build: Option<String>,
    pub post_build: Option<String>,
}
