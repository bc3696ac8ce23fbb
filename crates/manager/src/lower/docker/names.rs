//! Names and labels of containers, networks and volumes (docs/spec/job-execution.md, sections 2.9, 5.2 and 5.11).

use std::collections::BTreeMap;

use muster_job::{go_duration, short_token};
use muster_runner_api::payload::JobPayload;
use sha2::{Digest, Sha256};

use super::super::settings::job_timeout;
use super::super::variables::Variables;
use super::super::{JobContext, LowerError};

pub(super) const LABEL: &str = "com.gitlab.gitlab-runner";
const MAX_NAME_BYTES: usize = 63;
const VOLUME_HASH_BYTES: usize = 16;
const CONTAINER_HASH_BYTES: usize = 8;

pub(super) struct Names {
    /// Name for all jobs of the project in the same slot. Also the default host name.
    pub(super) project: String,
    /// Prefix of the volumes that later jobs of the project reuse.
    pub(super) volumes: String,
    /// Prefix of the job's containers and temporary volumes.
    pub(super) job: String,
}

impl Names {
    pub(super) fn of(payload: &JobPayload, context: &JobContext) -> Self {
        let (runner, slot) = (&context.runner, context.slot.project_slot);
        let (token, project_id) = (short_token(runner.token.expose()), payload.job_info.project_id);
        let project = host_name(&format!("runner-{token}-project-{project_id}-concurrent-{slot}"));
        // If an instance has its own engine, the names of its volumes contain its slot. Instances that share an engine
        // may have equal slot numbers, so the names contain `project_slot`, in which concurrent jobs of a project
        // differ.
        let with_own_engine =
            context.share.as_ref().filter(|share| !share.shares_host && super::has_local_engine(runner));
        let volume_slot = with_own_engine.map_or(slot, |share| share.slot);
        let owner = format!("{}-{}-{project_id}-{volume_slot}", runner.token.expose(), runner.system_id);
        // The name depends only on the job, so that a restarted manager finds leftover containers and volumes.
        let job = digest(&format!("{}/{}/{}", runner.url, payload.id.0, payload.token), CONTAINER_HASH_BYTES);
        Self {
            volumes: format!("runner-{}", digest(&owner, VOLUME_HASH_BYTES)),
            job: format!("{project}-{job}"),
            project,
        }
    }
}

/// Returns the host name of build containers that all projects of the runner can use.
pub(super) fn runner_host_name(context: &JobContext) -> String {
    host_name(&format!("runner-{}", short_token(context.runner.token.expose())))
}

pub(in super::super) fn network(payload: &JobPayload, context: &JobContext) -> String {
    let (token, project_id) = (short_token(context.runner.token.expose()), payload.job_info.project_id);
    host_name(&format!("runner-{token}-{project_id}-{}-{}", context.slot.project_slot, payload.id.0))
}

/// Returns the text in lower case, shortened, and without characters that host names must not have.
fn host_name(text: &str) -> String {
    let text = text.to_ascii_lowercase();
    text.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(MAX_NAME_BYTES).collect()
}

fn digest(text: &str, bytes: usize) -> String {
    Sha256::digest(text).iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

/// Fails if a configured label has no name.
pub(super) fn labels(
    payload: &JobPayload,
    context: &JobContext,
    variables: &Variables,
    configured: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, LowerError> {
    let (git, job, runner) = (&payload.git_info, &payload.job_info, &context.runner);
    let value = |name: &str| variables.get(name).unwrap_or_default();
    let own = [
        ("job.id", payload.id.0.to_string()),
        ("job.url", value("CI_JOB_URL")),
        ("job.sha", git.sha.clone()),
        ("job.before_sha", git.before_sha.clone()),
        ("job.ref", git.ref_name.clone()),
        ("job.timeout", go_duration(job_timeout(payload))),
        ("project.id", job.project_id.to_string()),
        ("project.runner_id", context.slot.project_slot.to_string()),
        ("pipeline.id", value("CI_PIPELINE_ID")),
        ("runner.id", short_token(runner.token.expose())),
        ("runner.local_id", context.slot.id.to_string()),
        ("runner.system_id", runner.system_id.clone()),
        ("managed", "true".to_owned()),
    ];
    let mut labels: BTreeMap<String, String> = own.map(|(name, value)| (label(name), value)).into();
    for (name, value) in configured {
        if name.trim().is_empty() {
            return Err(LowerError::configuration("container_labels of [runners.docker] has a label without a name"));
        }
        labels.insert(name.clone(), variables.expand(value));
    }
    Ok(labels)
}

pub(super) fn label(name: &str) -> String {
    format!("{LABEL}.{name}")
}
