//! Job payload: body of a 201 response to `POST /jobs/request` (docs/spec/runner-api.md, section 2.5).

use std::collections::BTreeMap;

use muster_job::{JobId, Variable};
use serde::{Deserialize, Serialize};

mod partial;
mod parts;
#[cfg(test)]
mod tests;

use partial::{JobCredentials, PartialPayload};
pub use parts::{
    Artifact, ArtifactsFile, Cache, Credentials, Dependency, Features, GitInfo, Hook, Image, JobInfo, JobInput,
    JobInputValue, OtelEndpoint, PolicyOptions, RunnerInfo, Step, SuspendOptions, Tracing,
};
use parts::{null_default, null_items};

/// Job as the coordinator sends it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobPayload {
    /// ID of the job, also in the URLs for traces and artifacts.
    pub id: JobId,
    /// Token for trace, update and artifact calls of this job.
    pub token: String,
    /// Whether the default git strategy is `fetch`, not `clone`.
    #[serde(default, deserialize_with = "null_default")]
    pub allow_git_fetch: bool,
    /// Names and IDs of the job, its project and its pipeline.
    #[serde(default, deserialize_with = "null_default")]
    pub job_info: JobInfo,
    /// Repository and commit to check out.
    #[serde(default, deserialize_with = "null_default")]
    pub git_info: GitInfo,
    /// Limits that the server sets for the job.
    #[serde(default, deserialize_with = "null_default")]
    pub runner_info: RunnerInfo,
    /// Variables of the job. The last variable of a name applies.
    #[serde(default, deserialize_with = "null_items")]
    pub variables: Vec<Variable>,
    /// Scripts: `script`, `release` and `after_script`.
    #[serde(default, deserialize_with = "null_items", skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// Image of the job.
    #[serde(default)]
    pub image: Option<Image>,
    /// Services of the job.
    #[serde(default, deserialize_with = "null_items")]
    pub services: Vec<Image>,
    /// Artifacts to upload at the end.
    #[serde(default, deserialize_with = "null_items")]
    pub artifacts: Vec<Artifact>,
    /// Caches of the job.
    #[serde(default, deserialize_with = "null_items")]
    pub cache: Vec<Cache>,
    /// Credentials for registries.
    #[serde(default, deserialize_with = "null_items")]
    pub credentials: Vec<Credentials>,
    /// Jobs with artifacts for this job.
    #[serde(default, deserialize_with = "null_items")]
    pub dependencies: Vec<Dependency>,
    /// Features of the server.
    #[serde(default, deserialize_with = "null_default")]
    pub features: Features,
    /// Scripts before and after the checkout.
    #[serde(default, deserialize_with = "null_items")]
    pub hooks: Vec<Hook>,
    /// `run` keyword: a JSON array of steps as text. Absent without steps (docs/spec/runner-api.md, section 11.1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Values for `${{ job.inputs.name }}`.
    #[serde(default, deserialize_with = "null_items", skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<JobInput>,
    /// Secrets that the runner fetches, by variable.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, serde_json::Value>,
    /// Set if a policy of the server added the job.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "PolicyOptions::is_default")]
    pub policy_options: PolicyOptions,
    /// Whether to suspend the environment, or resume an earlier one.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "SuspendOptions::is_default")]
    pub suspend_options: SuspendOptions,
    /// Muster's extension. GitLab does not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub muster: Option<MusterExtension>,
}

/// Fields of Muster in addition to GitLab's payload.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MusterExtension {
    /// Path of a bare repository on this machine that contains the commit. The checkout then needs no network.
    pub local_repository: Option<String>,
    /// Minimum interval between trace uploads in milliseconds.
    pub trace_interval_ms: Option<u64>,
    /// Whether the final update may contain the result tree.
    pub result_tree: bool,
    /// Set by the manager: reason why the payload cannot be decoded. Such a job is reported as failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_error: Option<String>,
    /// Set by the manager for a driver's jobs: text of the response, with members that Muster may not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

impl JobPayload {
    /// Decodes a payload.
    ///
    /// An invalid payload with a readable ID and token becomes a job with [`Self::decode_error`], which can be reported
    /// as failed.
    ///
    /// # Errors
    /// The reason, such as the position of the error, without values, which may be secret.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let reader = || serde_json::Deserializer::from_slice(body);
        // Only an invalid payload is read with the paths of its members, which takes longer.
        let decoded = Self::deserialize(&mut reader()).or_else(|_| serde_path_to_error::deserialize(&mut reader()));
        let reason = match decoded {
            Ok(payload) => return JobCredentials::checked(payload.id, &payload.token).map(|_| payload),
            Err(error) if error.inner().to_string().contains(parts::TOO_MANY) => {
                format!("the member `{}` has {}", error.path(), parts::TOO_MANY)
            }
            Err(error) if error.inner().is_data() => {
                format!("the member `{}` has the wrong type", error.path())
            }
            Err(error) => format!("invalid JSON at line {}, column {}", error.inner().line(), error.inner().column()),
        };
        Self::recover_partial(body, &reason).ok_or(reason)
    }

    /// Returns a job that reports `reason`, if the ID and the token are readable in an incomplete payload.
    #[must_use]
    pub fn recover_partial(part: &[u8], reason: &str) -> Option<Self> {
        let partial = PartialPayload::read(part);
        let JobCredentials { id, token } = JobCredentials::checked(partial.id?, &partial.token?).ok()?;
        let note = format!("failed to decode the job payload: {reason}");
        let mut payload: Self = serde_json::from_value(serde_json::json!({ "id": id, "token": token })).ok()?;
        payload.job_info = serde_json::from_value(partial.job_info).unwrap_or_default();
        payload.features = serde_json::from_value(partial.features).unwrap_or_default();
        payload.muster = Some(MusterExtension { decode_error: Some(note), ..MusterExtension::default() });
        Some(payload)
    }

    /// Returns why the payload could not be decoded.
    #[must_use]
    pub fn decode_error(&self) -> Option<&str> {
        self.muster.as_ref()?.decode_error.as_deref()
    }
}
