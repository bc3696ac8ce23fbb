//! The job payload: the 201 body of `POST /jobs/request` (runner-api 2.5).

use std::collections::BTreeMap;

use muster_job::{JobId, Variable};
use serde::{Deserialize, Serialize};

mod least;
mod parts;
#[cfg(test)]
mod tests;

use least::{Least, Owner};
pub use parts::{
    Artifact, ArtifactsFile, Cache, Credentials, Dependency, Features, GitInfo, Hook, Image, JobInfo, JobInput,
    JobInputValue, OtelEndpoint, PolicyOptions, RunnerInfo, Step, SuspendOptions, Tracing,
};
use parts::{null_default, null_items};

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
    #[serde(default, deserialize_with = "null_items")]
    pub variables: Vec<Variable>,
    /// Scripts: `script`, perhaps `release`, perhaps `after_script`.
    #[serde(default, deserialize_with = "null_items", skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// The job's image.
    #[serde(default)]
    pub image: Option<Image>,
    /// The job's services.
    #[serde(default, deserialize_with = "null_items")]
    pub services: Vec<Image>,
    /// What to upload at the end.
    #[serde(default, deserialize_with = "null_items")]
    pub artifacts: Vec<Artifact>,
    /// What to restore at the start and save at the end.
    #[serde(default, deserialize_with = "null_items")]
    pub cache: Vec<Cache>,
    /// Registry credentials.
    #[serde(default, deserialize_with = "null_items")]
    pub credentials: Vec<Credentials>,
    /// Jobs whose artifacts to download.
    #[serde(default, deserialize_with = "null_items")]
    pub dependencies: Vec<Dependency>,
    /// What the server can do.
    #[serde(default, deserialize_with = "null_default")]
    pub features: Features,
    /// Hooks around the checkout.
    #[serde(default, deserialize_with = "null_items")]
    pub hooks: Vec<Hook>,
    /// The `run:` keyword: a JSON array of steps, as text. Absent, never null (runner-api 11.1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// Values for `${{ job.inputs.name }}`.
    #[serde(default, deserialize_with = "null_items", skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<JobInput>,
    /// Secrets that the runner has to fetch, by the variable that is to hold them.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, serde_json::Value>,
    /// Whether a policy of the server put the job into its pipeline.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "PolicyOptions::is_default")]
    pub policy_options: PolicyOptions,
    /// Whether the job leaves its environment for a later one, or goes on in that of an earlier one.
    #[serde(default, deserialize_with = "null_default", skip_serializing_if = "SuspendOptions::is_default")]
    pub suspend_options: SuspendOptions,
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
    /// The manager's own note: why it cannot read the payload. The job is then only reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

impl JobPayload {
    /// Reads a payload. One that is not what the protocol has, and whose id and token can be read all the same, becomes a
    /// job that says so ([`Self::unreadable`]): the coordinator has handed it out, and only a report ends it.
    ///
    /// # Errors
    /// Where in the text it fails; never a value of the payload, since it may be a secret.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let mut reader = serde_json::Deserializer::from_slice(body);
        let why = match serde_path_to_error::deserialize::<_, Self>(&mut reader) {
            Ok(payload) => return Owner::of(payload.id, &payload.token).map(|_| payload),
            Err(error) if error.inner().to_string().contains(parts::TOO_MANY) => {
                format!("the member `{}` has {}", error.path(), parts::TOO_MANY)
            }
            Err(error) if error.inner().is_data() => {
                format!("the member `{}` is not of the kind it is to be", error.path())
            }
            Err(error) => format!("no JSON at line {}, column {}", error.inner().line(), error.inner().column()),
        };
        Self::read_part(body, &why).ok_or(why)
    }

    /// A job that says that its description cannot be read, and `why`, if the part that is here says whose it is.
    #[must_use]
    pub fn read_part(part: &[u8], why: &str) -> Option<Self> {
        let least = Least::read(part);
        let Owner { id, token } = Owner::of(least.id?, &least.token?).ok()?;
        let note = format!("the coordinator's description of the job cannot be read: {why}");
        let mut payload: Self = serde_json::from_value(serde_json::json!({ "id": id, "token": token })).ok()?;
        payload.job_info = serde_json::from_value(least.job_info).unwrap_or_default();
        payload.features = serde_json::from_value(least.features).unwrap_or_default();
        payload.muster = Some(Extension { unreadable: Some(note), ..Extension::default() });
        Some(payload)
    }

    /// Why the job can only be reported, where its payload could not be read.
    #[must_use]
    pub fn unreadable(&self) -> Option<&str> {
        self.muster.as_ref()?.unreadable.as_deref()
    }
}
