//! Parts of a payload. All members accept `null`, which GitLab sends for unset keywords (docs/spec/runner-api.md,
//! section 2.5).

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use muster_job::Variable;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Deserializes `null` as the default, as in Go.
pub(super) fn null_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// Maximum number of entries of a list: more than all of GitLab's limits together.
pub(super) const MAX_ITEMS: usize = 100_000;
pub(super) const TOO_MANY: &str = "more than 100000 entries";

/// Deserializes `null` as an empty list, and skips `null` entries.
pub(super) fn null_items<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    Ok(null_items_or_none(from)?.unwrap_or_default())
}

/// Like [`null_items`], but `None` for a missing list.
fn null_items_or_none<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<Vec<T>>, D::Error> {
    from.deserialize_option(Items(PhantomData))
}

struct Items<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
    type Value = Option<Vec<T>>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a list")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element::<Option<T>>()? {
            if items.len() == MAX_ITEMS {
                return Err(A::Error::custom(TOO_MANY));
            }
            items.extend(item);
        }
        Ok(Some(items))
    }
}

/// Options by group. A `null` group is empty, and `null` options are skipped.
type Groups = BTreeMap<String, BTreeMap<String, serde_json::Value>>;

fn null_groups<'de, D: Deserializer<'de>>(from: D) -> Result<Groups, D::Error> {
    let groups = Option::<BTreeMap<String, Option<BTreeMap<String, serde_json::Value>>>>::deserialize(from)?;
    let mut groups: Groups =
        groups.unwrap_or_default().into_iter().map(|(name, group)| (name, group.unwrap_or_default())).collect();
    groups.values_mut().for_each(|group| group.retain(|_, option| !option.is_null()));
    Ok(groups)
}

/// Names and IDs of the job, its project and its pipeline.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct JobInfo {
    #[serde(deserialize_with = "null_default")]
    pub id: i64,
    #[serde(deserialize_with = "null_default")]
    pub name: String,
    #[serde(deserialize_with = "null_default")]
    pub stage: String,
    #[serde(deserialize_with = "null_default")]
    pub pipeline_id: i64,
    #[serde(deserialize_with = "null_default")]
    pub project_id: i64,
    #[serde(deserialize_with = "null_default")]
    pub project_name: String,
    #[serde(deserialize_with = "null_default")]
    pub project_full_path: String,
    #[serde(deserialize_with = "null_default")]
    pub namespace_id: i64,
    #[serde(deserialize_with = "null_default")]
    pub root_namespace_id: i64,
    #[serde(deserialize_with = "null_default")]
    pub time_in_queue_seconds: f64,
    #[serde(deserialize_with = "null_default")]
    pub project_jobs_running_on_instance_runners_count: String,
    #[serde(deserialize_with = "null_default")]
    pub queue_size: i64,
    #[serde(deserialize_with = "null_default")]
    pub queue_depth: i64,
}

/// Repository and commit to check out.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct GitInfo {
    #[serde(deserialize_with = "null_default")]
    pub repo_url: String,
    #[serde(deserialize_with = "null_default")]
    pub repo_object_format: String,
    #[serde(deserialize_with = "null_default", rename = "ref")]
    pub ref_name: String,
    #[serde(deserialize_with = "null_default")]
    pub sha: String,
    #[serde(deserialize_with = "null_default")]
    pub before_sha: String,
    /// `branch` or `tag`.
    #[serde(deserialize_with = "null_default")]
    pub ref_type: String,
    #[serde(deserialize_with = "null_items")]
    pub refspecs: Vec<String>,
    /// Depth of the clone. 0 means the whole history.
    #[serde(deserialize_with = "null_default")]
    pub depth: i64,
    pub protected: Option<bool>,
}

/// Limits that the server sets for the job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunnerInfo {
    /// Timeout of the job in seconds. 0 or less means the runner's default, 7200.
    #[serde(deserialize_with = "null_default")]
    pub timeout: i64,
}

/// Script of the job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct Step {
    #[serde(deserialize_with = "null_default")]
    pub name: String,
    #[serde(deserialize_with = "null_items")]
    pub script: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    pub timeout: i64,
    #[serde(deserialize_with = "null_default")]
    pub when: String,
    #[serde(deserialize_with = "null_default")]
    pub allow_failure: bool,
}

/// Image or service.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct Image {
    #[serde(deserialize_with = "null_default")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    #[serde(deserialize_with = "null_items_or_none", skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    #[serde(deserialize_with = "null_items_or_none", skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    #[serde(deserialize_with = "null_items", skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<Variable>,
    #[serde(deserialize_with = "null_items", skip_serializing_if = "Vec::is_empty")]
    pub pull_policy: Vec<String>,
    #[serde(deserialize_with = "null_groups", skip_serializing_if = "BTreeMap::is_empty")]
    pub executor_opts: BTreeMap<String, BTreeMap<String, serde_json::Value>>,
}

/// Artifact to upload.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct Artifact {
    #[serde(deserialize_with = "null_default")]
    pub name: String,
    #[serde(deserialize_with = "null_default")]
    pub untracked: bool,
    #[serde(deserialize_with = "null_items")]
    pub paths: Vec<String>,
    #[serde(deserialize_with = "null_items", skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// `on_success`, `on_failure` or `always`. Empty means `on_success`.
    #[serde(deserialize_with = "null_default")]
    pub when: String,
    #[serde(deserialize_with = "null_default")]
    pub artifact_type: String,
    /// `zip`, `gzip` or `raw`. Empty means `zip`.
    #[serde(deserialize_with = "null_default")]
    pub artifact_format: String,
    #[serde(deserialize_with = "null_default")]
    pub expire_in: String,
}

/// Cache of the job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct Cache {
    #[serde(deserialize_with = "null_default")]
    pub key: String,
    #[serde(deserialize_with = "null_default")]
    pub untracked: bool,
    /// `pull-push`, `pull` or `push`. Empty means `pull-push`.
    #[serde(deserialize_with = "null_default")]
    pub policy: String,
    #[serde(deserialize_with = "null_items")]
    pub paths: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    pub when: String,
    #[serde(deserialize_with = "null_items")]
    pub fallback_keys: Vec<String>,
}

/// Credentials for a registry.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct Credentials {
    #[serde(deserialize_with = "null_default", rename = "type")]
    pub kind: String,
    #[serde(deserialize_with = "null_default")]
    pub url: String,
    #[serde(deserialize_with = "null_default")]
    pub username: String,
    #[serde(deserialize_with = "null_default")]
    pub password: String,
}

/// Job with artifacts for this job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Dependency {
    /// ID of that job.
    #[serde(deserialize_with = "null_default")]
    pub id: i64,
    /// Token for the download.
    #[serde(deserialize_with = "null_default")]
    pub token: String,
    /// Name of that job.
    #[serde(deserialize_with = "null_default")]
    pub name: String,
    /// Archive. If it has no file name, the dependency is skipped.
    #[serde(deserialize_with = "null_default")]
    pub artifacts_file: ArtifactsFile,
}

/// Archive to download.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct ArtifactsFile {
    #[serde(deserialize_with = "null_default")]
    pub filename: String,
    #[serde(deserialize_with = "null_default")]
    pub size: i64,
}

/// Features of the server.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Features {
    /// Whether the trace has section markers.
    #[serde(deserialize_with = "null_default")]
    pub trace_sections: bool,
    /// Prefixes of further tokens to mask.
    #[serde(deserialize_with = "null_items", skip_serializing_if = "Vec::is_empty")]
    pub token_mask_prefixes: Vec<String>,
    /// Failure reasons that the server knows.
    #[serde(deserialize_with = "null_items")]
    pub failure_reasons: Vec<String>,
    /// OpenTelemetry trace of the job, and the collectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracing: Option<Tracing>,
}

/// OpenTelemetry trace of the job (docs/spec/runner-config.md, section 1.11).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tracing {
    /// Trace ID: 32 hexadecimal digits.
    #[serde(deserialize_with = "null_default")]
    pub trace_id: String,
    /// ID of the parent span: 16 hexadecimal digits.
    #[serde(deserialize_with = "null_default")]
    pub span_parent_id: String,
    /// Collectors for the job's spans.
    #[serde(deserialize_with = "null_items")]
    pub otel_endpoints: Vec<OtelEndpoint>,
}

/// OpenTelemetry collector.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OtelEndpoint {
    /// URL: http, https, grpc or grpcs.
    #[serde(deserialize_with = "null_default")]
    pub url: String,
    /// Authentication for the collector, exactly as the server sends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<serde_json::Value>,
}

/// Input of the job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobInput {
    /// Name.
    #[serde(deserialize_with = "null_default")]
    pub key: String,
    /// Value.
    #[serde(deserialize_with = "null_default")]
    pub value: JobInputValue,
}

/// Value of an input.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobInputValue {
    /// Type: `string`, `number`, `boolean`, `array` or `struct`.
    #[serde(deserialize_with = "null_default", rename = "type")]
    pub kind: String,
    /// The value.
    pub content: serde_json::Value,
    /// Whether the value is sensitive. A sensitive value must not be interpolated.
    #[serde(deserialize_with = "null_default")]
    pub sensitive: bool,
}

/// Options for a job that was added by a policy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct PolicyOptions {
    #[serde(deserialize_with = "null_default")]
    pub execution_policy_job: bool,
    #[serde(deserialize_with = "null_default")]
    pub policy_name: String,
    pub policy_variables_override_allowed: Option<bool>,
    #[serde(deserialize_with = "null_items")]
    pub policy_variables_override_exceptions: Vec<String>,
}

impl PolicyOptions {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Options for suspended environments, since GitLab 19.0.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct SuspendOptions {
    #[serde(deserialize_with = "null_default")]
    pub suspend_on_success: bool,
    #[serde(deserialize_with = "null_default")]
    pub suspend_on_failure: bool,
    #[serde(deserialize_with = "null_default")]
    pub runtime_environment_key: String,
}

impl SuspendOptions {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Script before or after the checkout.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct Hook {
    #[serde(deserialize_with = "null_default")]
    pub name: String,
    #[serde(deserialize_with = "null_items")]
    pub script: Vec<String>,
}
