//! Requests and small responses (docs/spec/runner-api.md, sections 1, 2.1, 2.2 and 4.1).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Muster's header of job responses: whether [`JobRequest::idempotency_key`] has an effect.
pub const IDEMPOTENCY_HEADER: &str = "x-muster-idempotency-key";
/// Value of [`IDEMPOTENCY_HEADER`]: the same key gets the same job.
pub const IDEMPOTENCY_HONORED: &str = "honored";

/// `POST /runners` with a registration token.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct RegisterRequest {
    pub token: String,
    pub info: VersionInfo,
    pub description: Option<String>,
    pub maintenance_note: Option<String>,
    /// Tags, comma-separated.
    pub tag_list: Option<String>,
    pub run_untagged: bool,
    pub locked: bool,
    pub access_level: Option<String>,
    /// Timeout in seconds.
    pub maximum_timeout: Option<i64>,
    pub paused: bool,
}

/// Response to register, verify and reset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunnerCredentials {
    /// ID of the runner.
    pub id: i64,
    /// Authentication token of the runner.
    pub token: String,
    /// Expiry of the token in RFC 3339. `None` means never.
    pub token_expires_at: Option<String>,
}

/// `POST /runners/verify`, and `DELETE` calls.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct TokenRequest {
    pub token: String,
    pub system_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info: Option<VersionInfo>,
}

/// `POST /jobs/request`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobRequest {
    /// Version and features of the runner.
    pub info: VersionInfo,
    /// Authentication token of the runner.
    pub token: String,
    /// ID of the manager.
    pub system_id: String,
    /// Last received `X-GitLab-Last-Update`.
    pub last_update: String,
    /// Muster's addition: the same key gets the same job (docs/spec/life-of-a-job.md, rule R1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// Version and features of a runner.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct VersionInfo {
    pub name: String,
    pub version: String,
    pub revision: String,
    pub platform: String,
    pub architecture: String,
    pub executor: String,
    pub shell: String,
    pub features: BTreeMap<String, bool>,
    pub config: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl VersionInfo {
    /// Returns whether the runner supports `feature`.
    #[must_use]
    pub fn has(&self, feature: &str) -> bool {
        self.features.get(feature).copied().unwrap_or(false)
    }
}

/// `PUT /jobs/:id`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UpdateRequest {
    /// Token of the job.
    pub token: String,
    /// `running`, `success` or `failed`.
    pub state: String,
    /// GitLab's failure reason, for `failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// Length and checksum of the trace.
    pub output: Output,
    /// Exit code of the script, unless 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    /// Key to resume the environment of this job later. Since GitLab 19.4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_environment_key: Option<String>,
    /// Muster's addition: the result tree as JSON, if the payload announces that the coordinator accepts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_tree: Option<serde_json::Value>,
}

/// Length and checksum of the trace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Output {
    /// `crc32:` and eight lower-case hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Length in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytesize: Option<u64>,
}
