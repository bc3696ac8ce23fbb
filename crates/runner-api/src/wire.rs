//! Requests and small answers of the runner API (runner-api 1, 2.1, 2.2, 4.1).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Muster's addition to the answers to job requests: whether [`JobRequest::idempotency_key`] has an effect.
pub const IDEMPOTENCY_HEADER: &str = "x-muster-idempotency-key";
/// Value of [`IDEMPOTENCY_HEADER`] of a coordinator that gives the same job again to the same key.
pub const IDEMPOTENCY_HONORED: &str = "honored";

/// `POST /runners`: registration with a registration token.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct RegisterRequest {
    pub token: String,
    pub info: Info,
    pub description: Option<String>,
    pub maintenance_note: Option<String>,
    /// Comma separated.
    pub tag_list: Option<String>,
    pub run_untagged: bool,
    pub locked: bool,
    pub access_level: Option<String>,
    /// Seconds.
    pub maximum_timeout: Option<i64>,
    pub paused: bool,
}

/// Answer to register, verify and reset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunnerCredentials {
    /// The runner's id, more than 0.
    pub id: i64,
    /// Its authentication token.
    pub token: String,
    /// RFC 3339, or none.
    pub token_expires_at: Option<String>,
}

/// `POST /runners/verify`, and the body of the `DELETE` calls.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct TokenRequest {
    pub token: String,
    pub system_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub info: Option<Info>,
}

/// `POST /jobs/request`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobRequest {
    /// What the runner is and can do.
    pub info: Info,
    /// The runner's authentication token.
    pub token: String,
    /// Which manager of the runner asks.
    pub system_id: String,
    /// The newest `X-GitLab-Last-Update` that the manager has seen.
    pub last_update: String,
    /// Muster's addition: the same key gets the same job again (rule R1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

/// What a runner is and can do.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct Info {
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

impl Info {
    /// Whether the runner declares `feature`.
    #[must_use]
    pub fn has(&self, feature: &str) -> bool {
        self.features.get(feature).copied().unwrap_or(false)
    }
}

/// `PUT /jobs/:id`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UpdateRequest {
    /// The job's token.
    pub token: String,
    /// `running`, `success` or `failed`.
    pub state: String,
    /// GitLab's name of the reason; only with `failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// What the trace should be.
    pub output: Output,
    /// Absent for 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    /// By it a later job goes on in this job's environment. Since GitLab 19.4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_environment_key: Option<String>,
    /// Muster's addition, sent only where the payload asked for it: the job's result tree as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result_tree: Option<serde_json::Value>,
}

/// Length and checksum of the whole trace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Output {
    /// `crc32:` and eight lower-case hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytesize: Option<u64>,
}
