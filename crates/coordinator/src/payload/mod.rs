//! Converts a compiled job to the payload that a runner gets.
//!
//! The formats are described in docs/spec/pipeline-yaml.md, section 6, and docs/spec/runner-api.md, section 2.5.
//!
//! Invariants: values that gitlab-runner fails to decode are never sent (docs/spec/runner-api.md, section 11, traps 1 to 8). `run` is
//! text or absent, values of variables are text, and `steps` is empty if the job has `run`.

mod artifacts;
mod cache;
mod error;
mod git;
mod image;
mod inputs;
mod release;
mod requirements;
mod secrets;
mod steps;

use std::collections::BTreeMap;
use std::time::Duration;

use muster_job::{FailureReason, JobId, Secret, Variable, milliseconds};
use muster_pipeline::layers;
use muster_pipeline::model::{ScriptWork, Work};
use muster_runner_api::payload as wire;

pub use error::PayloadError;
pub use requirements::missing_feature;

use crate::assignment::JobAssignment;
use crate::jwt::Signer;

/// Input for [`build`].
#[derive(Debug, Clone, Copy)]
pub struct PayloadInput<'a> {
    /// The job, its project and its pipeline.
    pub assignment: JobAssignment<'a>,
    /// Variables from [`crate::variables::job_variables`].
    pub variables: &'a [Variable],
    /// Archives for the job, in the order in which they are unpacked.
    pub dependencies: &'a [Archive],
    /// Maximum run time of the job: the timeout of the job or otherwise of the project, but at most the maximum of the runner.
    pub timeout: Duration,
    /// Time of the job in the queue, and size of the queue.
    pub queue: QueueFacts,
    /// Values of the `secrets` keyword, by the name of the secret.
    pub secrets: &'a BTreeMap<String, Secret>,
    /// Signer for the job's ID tokens.
    pub signer: &'a Signer,
    /// Minimum time between two trace uploads of Muster's own managers.
    pub trace_interval: Duration,
    /// Whether the manager runs on this machine and may clone from [`crate::GitFacts::repo_path`].
    pub local_repository: bool,
}

/// The archive of a job, for a later job to download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// ID of the job that uploaded the archive.
    pub job: JobId,
    /// Name of that job.
    pub name: String,
    /// File name of the archive.
    pub filename: String,
    /// Size in bytes.
    pub size: u64,
}

/// Time of a job in the queue, and size of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueFacts {
    /// Time for which the job was pending.
    pub waited: Duration,
    /// Number of pending jobs.
    pub size: usize,
    /// Number of pending jobs before this job.
    pub depth: usize,
}

/// Builds the payload of a job.
///
/// # Errors
/// [`PayloadError`] if a secret has no value, an ID token cannot be signed, or the job is a bridge.
pub fn build(input: &PayloadInput<'_>) -> Result<wire::JobPayload, PayloadError> {
    let assignment = &input.assignment;
    let job = assignment.job;
    let Work::Script(work) = &job.work else {
        return Err(PayloadError::Bridge { job: job.name.clone() });
    };
    let variables = layers::merge([
        input.variables.to_vec(),
        secrets::id_tokens(input, work)?,
        secrets::secret_variables(input, work)?,
    ]);
    let mut payload = wire::JobPayload {
        id: assignment.job_id,
        token: assignment.token.expose().to_owned(),
        allow_git_fetch: assignment.project.allow_git_fetch,
        job_info: job_info(input),
        git_info: git::git_info(assignment, input.variables),
        runner_info: wire::RunnerInfo { timeout: seconds(input.timeout) },
        variables,
        steps: steps::steps(work, input.timeout),
        image: work.image.as_ref().map(image::image),
        services: work.services.iter().map(image::image).collect(),
        artifacts: artifacts::artifacts(work),
        cache: cache::caches(assignment, work),
        credentials: Vec::new(),
        dependencies: dependencies(input),
        features: features(),
        hooks: steps::hooks(work),
        run: run(work),
        inputs: Vec::new(),
        secrets: std::collections::BTreeMap::new(),
        policy_options: wire::PolicyOptions::default(),
        suspend_options: wire::SuspendOptions::default(),
        muster: Some(extension(input)),
    };
    inputs::interpolate(&mut payload, &work.inputs);
    Ok(payload)
}

fn run(work: &ScriptWork) -> Option<String> {
    work.run.as_ref().map(ToString::to_string)
}

fn job_info(input: &PayloadInput<'_>) -> wire::JobInfo {
    let JobAssignment { job, job_id, pipeline_id, project, .. } = input.assignment;
    wire::JobInfo {
        id: job_id.0,
        name: job.name.clone(),
        stage: job.stage.clone(),
        pipeline_id: pipeline_id.0,
        project_id: project.id.0,
        project_name: project.name.clone(),
        project_full_path: project.path.clone(),
        namespace_id: project.namespace_id,
        root_namespace_id: project.namespace_id,
        time_in_queue_seconds: input.queue.waited.as_secs_f64(),
        // GitLab sends this text for every runner that is not an instance runner.
        project_jobs_running_on_instance_runners_count: "+Inf".to_owned(),
        queue_size: count(input.queue.size),
        queue_depth: count(input.queue.depth),
    }
}

/// Returns the archives that the job downloads.
///
/// They have the token of this job, because the token of the job that uploaded an archive has expired.
fn dependencies(input: &PayloadInput<'_>) -> Vec<wire::Dependency> {
    input
        .dependencies
        .iter()
        .map(|archive| wire::Dependency {
            id: archive.job.0,
            token: input.assignment.token.expose().to_owned(),
            name: archive.name.clone(),
            artifacts_file: wire::ArtifactsFile {
                filename: archive.filename.clone(),
                size: i64::try_from(archive.size).unwrap_or(i64::MAX),
            },
        })
        .collect()
}

fn features() -> wire::Features {
    wire::Features {
        trace_sections: true,
        token_mask_prefixes: Vec::new(),
        failure_reasons: FailureReason::ALL.iter().map(|reason| reason.as_str().to_owned()).collect(),
        tracing: None,
    }
}

fn extension(input: &PayloadInput<'_>) -> wire::MusterExtension {
    let path = input.assignment.git.repo_path.as_ref().filter(|_| input.local_repository);
    wire::MusterExtension {
        local_repository: path.map(|path| path.to_string_lossy().into_owned()),
        trace_interval_ms: Some(milliseconds(input.trace_interval)),
        result_tree: true,
        decode_error: None,
        answer: None,
    }
}

fn count(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Returns whole seconds, at least one: 0 would select the runner's default.
fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX).max(1)
}
