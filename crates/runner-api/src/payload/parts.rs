//! What a payload is made of. `null` is accepted for every member (runner-api 2.5): GitLab sends it for what a job's
//! author did not write.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use muster_job::Variable;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// `null` reads as the default, as the Go client does.
pub(super) fn null_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// The most entries of one list: beyond what GitLab lets a project, its groups and its pipeline have together.
pub(super) const MAX_ITEMS: usize = 100_000;
/// Told of a list with more.
pub(super) const TOO_MANY: &str = "more than 100000 entries";

/// `null` reads as an empty list; an entry that is `null` is none.
pub(super) fn null_items<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    Ok(null_items_or_none(from)?.unwrap_or_default())
}

/// The same, where no list is something else than an empty one.
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

/// Options by group: a group, or an option, that is `null` is none.
type Groups = BTreeMap<String, BTreeMap<String, serde_json::Value>>;

fn null_groups<'de, D: Deserializer<'de>>(from: D) -> Result<Groups, D::Error> {
    let groups = Option::<BTreeMap<String, Option<BTreeMap<String, serde_json::Value>>>>::deserialize(from)?;
    let mut groups: Groups =
        groups.unwrap_or_default().into_iter().map(|(name, group)| (name, group.unwrap_or_default())).collect();
    groups.values_mut().for_each(|group| group.retain(|_, option| !option.is_null()));
    Ok(groups)
}

/// Names and ids around the job.
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

/// What to check out.
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
    /// 0 means the full history.
    #[serde(deserialize_with = "null_default")]
    pub depth: i64,
    pub protected: Option<bool>,
}

/// Limits that the server sets.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunnerInfo {
    /// Seconds; 0 or less means the runner's own default of 7200.
    #[serde(deserialize_with = "null_default")]
    pub timeout: i64,
}

/// One script of the job.
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

/// An image or a service.
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

/// One upload at the end of the job.
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
    /// `on_success` (also when empty), `on_failure` or `always`.
    #[serde(deserialize_with = "null_default")]
    pub when: String,
    #[serde(deserialize_with = "null_default")]
    pub artifact_type: String,
    /// `zip` (also when empty), `gzip` or `raw`.
    #[serde(deserialize_with = "null_default")]
    pub artifact_format: String,
    #[serde(deserialize_with = "null_default")]
    pub expire_in: String,
}

/// One cache.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct Cache {
    #[serde(deserialize_with = "null_default")]
    pub key: String,
    #[serde(deserialize_with = "null_default")]
    pub untracked: bool,
    /// `pull-push` (also when empty), `pull` or `push`.
    #[serde(deserialize_with = "null_default")]
    pub policy: String,
    #[serde(deserialize_with = "null_items")]
    pub paths: Vec<String>,
    #[serde(deserialize_with = "null_default")]
    pub when: String,
    #[serde(deserialize_with = "null_items")]
    pub fallback_keys: Vec<String>,
}

/// Credentials of a registry.
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

/// A job whose artifacts this job downloads.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Dependency {
    /// The producing job.
    #[serde(deserialize_with = "null_default")]
    pub id: i64,
    /// The token to download with: the requesting job's.
    #[serde(deserialize_with = "null_default")]
    pub token: String,
    /// The producing job's name.
    #[serde(deserialize_with = "null_default")]
    pub name: String,
    /// Its archive; entries without a file name are skipped.
    #[serde(deserialize_with = "null_default")]
    pub artifacts_file: ArtifactsFile,
}

/// An archive that can be downloaded.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct ArtifactsFile {
    #[serde(deserialize_with = "null_default")]
    pub filename: String,
    #[serde(deserialize_with = "null_default")]
    pub size: i64,
}

/// What the server can do.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Features {
    /// Section markers are wanted in the trace.
    #[serde(deserialize_with = "null_default")]
    pub trace_sections: bool,
    /// Further token prefixes to mask.
    #[serde(deserialize_with = "null_items", skip_serializing_if = "Vec::is_empty")]
    pub token_mask_prefixes: Vec<String>,
    /// The failure reasons that the server understands.
    #[serde(deserialize_with = "null_items")]
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
    #[serde(deserialize_with = "null_default")]
    pub trace_id: String,
    /// 16 hexadecimal digits: the span that the job's is below.
    #[serde(deserialize_with = "null_default")]
    pub span_parent_id: String,
    /// Collectors for the job's spans.
    #[serde(deserialize_with = "null_items")]
    pub otel_endpoints: Vec<OtelEndpoint>,
}

/// One collector.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OtelEndpoint {
    /// Its URL: http, https, grpc or grpcs.
    #[serde(deserialize_with = "null_default")]
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
    #[serde(deserialize_with = "null_default")]
    pub key: String,
    /// Its value.
    #[serde(deserialize_with = "null_default")]
    pub value: JobInputValue,
}

/// The value of an input.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct JobInputValue {
    /// `string`, `number`, `boolean`, `array` or `struct`.
    #[serde(deserialize_with = "null_default", rename = "type")]
    pub kind: String,
    /// The value itself.
    pub content: serde_json::Value,
    /// It must not be put into a text.
    #[serde(deserialize_with = "null_default")]
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
    #[serde(deserialize_with = "null_items")]
    pub policy_variables_override_exceptions: Vec<String>,
}

impl PolicyOptions {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What becomes of the job's environment, and which one it goes on in. Since GitLab 19.0.
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

/// A script around the checkout.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are GitLab's")]
pub struct Hook {
    #[serde(deserialize_with = "null_default")]
    pub name: String,
    #[serde(deserialize_with = "null_items")]
    pub script: Vec<String>,
}
