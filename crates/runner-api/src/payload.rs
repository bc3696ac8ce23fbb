//! The job payload: the 201 body of `POST /jobs/request` (runner-api 2.5).

use std::collections::BTreeMap;

use muster_job::{JobId, Variable};
use serde::{Deserialize, Deserializer, Serialize};

/// `null` reads as the default, as the Go client does.
fn null_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// One job, as it is handed to a manager.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobPayload {
    /// The job's id; also in the trace and artifact URLs.
    pub id: JobId,
    /// Authenticates trace, update and artifact calls of this job.
    pub token: String,
    /// True: the default git strategy is `fetch`, else `clone`.
    #[serde(default, deserialize_with = "null_default")]
    pub allow_git_fetch: bool,
    /// Names and ids around the job.
    #[serde(default, deserialize_with = "null_default")]
    pub job_info: JobInfo,
    /// What to check out.
    #[serde(default, deserialize_with = "null_default")]
    pub git_info: GitInfo,
    /// Limits that the server sets.
    #[serde(default, deserialize_with = "null_default")]
    pub runner_info: RunnerInfo,
    /// The job's variables; of equal names the last counts.
    #[serde(default, deserialize_with = "null_default")]
    pub variables: Vec<Variable>,
    /// Scripts: `script`, perhaps `release`, perhaps `after_script`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// The job's image.
    #[serde(default)]
    pub image: Option<Image>,
    /// The job's services.
    #[serde(default, deserialize_with = "null_default")]
    pub services: Vec<Image>,
    /// What to upload at the end.
    #[serde(default, deserialize_with = "null_default")]
    pub artifacts: Vec<Artifact>,
    /// What to restore at the start and save at the end.
    #[serde(default, deserialize_with = "null_default")]
    pub cache: Vec<Cache>,
    /// Registry credentials.
    #[serde(default, deserialize_with = "null_default")]
    pub credentials: Vec<Credentials>,
    /// Jobs whose artifacts to download.
    #[serde(default, deserialize_with = "null_default")]
    pub dependencies: Vec<Dependency>,
    /// What the server can do.
    #[serde(default, deserialize_with = "null_default")]
    pub features: Features,
    /// Hooks around the checkout.
    #[serde(default, deserialize_with = "null_default")]
    pub hooks: Vec<Hook>,
    /// The `run:` keyword: a JSON array of steps, as text. Absent, never null (runner-api 11.1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Values for `${{ job.inputs.name }}`.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<JobInput>,
    /// Secrets that the runner has to fetch, by the variable that is to hold them.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, serde_json::Value>,
    /// Whether a policy of the server put the job into its pipeline.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "PolicyOptions::is_default")]
    pub policy_options: PolicyOptions,
    /// Muster's own additions; absent from GitLab.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub muster: Option<Extension>,
}

/// What a Muster coordinator tells a Muster manager beyond GitLab's payload.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Extension {
    /// A bare repository on this machine that holds the commit: checkout needs no transport.
    pub local_repository: Option<String>,
    /// The least time between two trace uploads, in milliseconds. A quiet job gives a sign of life, with which it hears of
    /// a cancel, after ten times that, but at least a second.
    pub trace_interval_ms: Option<u64>,
    /// The coordinator takes the result tree in the final update.
    pub result_tree: bool,
}

/// Names and ids around the job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct JobInfo {
    pub id: i64,
    pub name: String,
    pub stage: String,
    pub pipeline_id: i64,
    pub project_id: i64,
    pub project_name: String,
    pub project_full_path: String,
    pub namespace_id: i64,
    pub root_namespace_id: i64,
    pub time_in_queue_seconds: f64,
    pub project_jobs_running_on_instance_runners_count: String,
    pub queue_size: i64,
    pub queue_depth: i64,
}

/// What to check out.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct GitInfo {
    pub repo_url: String,
    pub repo_object_format: String,
    #[serde(rename = "ref")]
    pub ref_name: String,
    pub sha: String,
    pub before_sha: String,
    /// `branch` or `tag`.
    pub ref_type: String,
    pub refspecs: Vec<String>,
    /// 0 means the full history.
    pub depth: i64,
    pub protected: Option<bool>,
}

/// Limits that the server sets.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunnerInfo {
    /// Seconds; 0 or less means the runner's own default of 7200.
    pub timeout: i64,
}

/// One script of the job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct Step {
    pub name: String,
    pub script: Vec<String>,
    pub timeout: i64,
    pub when: String,
    pub allow_failure: bool,
}

/// An image or a service.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct Image {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<Variable>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pull_policy: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub executor_opts: BTreeMap<String, BTreeMap<String, serde_json::Value>>,
}

/// One upload at the end of the job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct Artifact {
    pub name: String,
    pub untracked: bool,
    pub paths: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// `on_success` (also when empty), `on_failure` or `always`.
    pub when: String,
    pub artifact_type: String,
    /// `zip` (also when empty), `gzip` or `raw`.
    pub artifact_format: String,
    pub expire_in: String,
}

/// One cache.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct Cache {
    pub key: String,
    pub untracked: bool,
    /// `pull-push` (also when empty), `pull` or `push`.
    pub policy: String,
    pub paths: Vec<String>,
    pub when: String,
    pub fallback_keys: Vec<String>,
}

/// Credentials of a registry.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct Credentials {
    #[serde(rename = "type")]
    pub kind: String,
    pub url: String,
    pub username: String,
    pub password: String,
}

/// A job whose artifacts this job downloads.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Dependency {
    /// The producing job.
    pub id: i64,
    /// The token to download with: the requesting job's.
    pub token: String,
    /// The producing job's name.
    pub name: String,
    /// Its archive; entries without a file name are skipped.
    pub artifacts_file: ArtifactsFile,
}

/// An archive that can be downloaded.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct ArtifactsFile {
    pub filename: String,
    pub size: i64,
}

/// What the server can do.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Features {
    /// Section markers are wanted in the trace.
    pub trace_sections: bool,
    /// Further token prefixes to mask.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub token_mask_prefixes: Vec<String>,
    /// The failure reasons that the server understands.
    pub failure_reasons: Vec<String>,
    /// The trace that the job belongs to, and where its spans go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracing: Option<Tracing>,
}

/// The trace that the job belongs to (runner-config 1.11).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tracing {
    /// 32 hexadecimal digits.
    pub trace_id: String,
    /// 16 hexadecimal digits: the span that the job's is below.
    pub span_parent_id: String,
    /// Collectors for the job's spans.
    #[serde(deserialize_with = "null_default")]
    pub otel_endpoints: Vec<OtelEndpoint>,
}

/// One collector.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OtelEndpoint {
    /// Its URL: http, https, grpc or grpcs.
    pub url: String,
    /// What it wants of who sends spans; kept as it came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<serde_json::Value>,
}

/// One input of the job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobInput {
    /// Its name.
    pub key: String,
    /// Its value.
    pub value: JobInputValue,
}

/// The value of an input.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobInputValue {
    /// `string`, `number`, `boolean`, `array` or `struct`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The value itself.
    pub content: serde_json::Value,
    /// It must not be put into a text.
    pub sensitive: bool,
}

/// What the server says about a job of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct PolicyOptions {
    #[serde(deserialize_with = "null_default")]
    pub execution_policy_job: bool,
    #[serde(deserialize_with = "null_default")]
    pub policy_name: String,
    pub policy_variables_override_allowed: Option<bool>,
    #[serde(deserialize_with = "null_default")]
    pub policy_variables_override_exceptions: Vec<String>,
}

impl PolicyOptions {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A script around the checkout.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct Hook {
    pub name: String,
    pub script: Vec<String>,
}
