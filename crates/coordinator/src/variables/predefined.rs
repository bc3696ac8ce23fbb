//! The predefined variables that the coordinator sets when it assigns a job: IDs, URLs, the token and the runner.
//!
//! These are the variables of phase J in docs/spec/pipeline-yaml.md, section 4.5.

use muster_job::Variable;
use muster_pipeline::model::{Job, When};
use time::format_description::well_known::Rfc3339;

use super::RunnerFacts;
use crate::assignment::JobAssignment;

/// Variables that the runner sets itself.
///
/// They are only sent if a user defined them (docs/spec/pipeline-yaml.md, case C215), because a value in the payload replaces the value
/// of the runner.
pub const RUNNER_OWNED: &[&str] = &[
    "CI_SERVER",
    "CI_SERVER_TLS_CA_FILE",
    "CI_SERVER_TLS_CERT_FILE",
    "CI_SERVER_TLS_KEY_FILE",
    "CI_PROJECT_DIR",
    "CI_BUILDS_DIR",
    "CI_JOB_IMAGE",
    "CI_JOB_STATUS",
    "CI_JOB_TIMEOUT",
    "CI_CONCURRENT_ID",
    "CI_CONCURRENT_PROJECT_ID",
    "CI_RUNNER_SHORT_TOKEN",
    "CI_RUNNER_VERSION",
    "CI_RUNNER_REVISION",
    "CI_RUNNER_EXECUTABLE_ARCH",
    "CI_SHARED_ENVIRONMENT",
    "CI_DISPOSABLE_ENVIRONMENT",
];

pub(super) fn without_runner_owned(variables: Vec<Variable>) -> Vec<Variable> {
    variables.into_iter().filter(|variable| !RUNNER_OWNED.contains(&variable.key.as_str())).collect()
}

/// Returns the variables for IDs, URLs and the token. They are the layer of variables with the lowest precedence.
pub(super) fn persisted(assignment: &JobAssignment<'_>) -> Vec<Variable> {
    let url = assignment.server_url.trim_end_matches('/');
    let project_url = format!("{url}/{}", assignment.project.path);
    let hidden = |key: &str, value: String| Variable { public: false, ..Variable::public(key, value) };
    let mut variables = vec![
        Variable::public("CI", "true"),
        Variable::public("GITLAB_CI", "true"),
        Variable::public("CI_API_V4_URL", format!("{url}/api/v4")),
        Variable::public("CI_PROJECT_ID", assignment.project.id.to_string()),
        Variable::public("CI_PROJECT_NAME", &assignment.project.name),
        Variable::public("CI_PROJECT_PATH", &assignment.project.path),
        Variable::public("CI_COMMIT_SHA", &assignment.git.sha),
        Variable::public("CI_PIPELINE_ID", assignment.pipeline_id.to_string()),
        Variable::public("CI_PIPELINE_IID", assignment.pipeline_iid.to_string()),
        Variable::public("CI_PIPELINE_URL", format!("{project_url}/-/pipelines/{}", assignment.pipeline_id)),
        Variable::public("CI_JOB_ID", assignment.job_id.to_string()),
        Variable::public("CI_JOB_URL", format!("{project_url}/-/jobs/{}", assignment.job_id)),
        Variable::secret("CI_JOB_TOKEN", assignment.token.expose()),
        hidden("CI_REPOSITORY_URL", assignment.repository_url()),
    ];
    variables.extend(server(url));
    if let Ok(started) = assignment.now.format(&Rfc3339) {
        variables.push(Variable::public("CI_JOB_STARTED_AT", started));
    }
    variables
}

fn server(url: &str) -> Vec<Variable> {
    let mut variables = vec![Variable::public("CI_SERVER_URL", url)];
    let Ok(parsed) = url::Url::parse(url) else { return variables };
    let host = parsed.host_str().unwrap_or_default();
    let port = parsed.port_or_known_default().unwrap_or_default();
    let fqdn = parsed.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    variables.extend([
        Variable::public("CI_SERVER_HOST", host),
        Variable::public("CI_SERVER_PORT", port.to_string()),
        Variable::public("CI_SERVER_PROTOCOL", parsed.scheme()),
        Variable::public("CI_SERVER_FQDN", fqdn),
    ]);
    variables
}

pub(super) fn ci_job_manual(job: &Job) -> Vec<Variable> {
    if job.when == When::Manual { vec![Variable::public("CI_JOB_MANUAL", "true")] } else { Vec::new() }
}

/// Returns the `CI_RUNNER_*` variables. The value for the tags is written as a list, as on current GitLab servers.
pub(super) fn runner(runner: &RunnerFacts<'_>) -> Vec<Variable> {
    let tags: Vec<String> = runner.tags.iter().map(|tag| format!("{tag:?}")).collect();
    vec![
        Variable::public("CI_RUNNER_ID", runner.id.to_string()),
        Variable::public("CI_RUNNER_DESCRIPTION", runner.description),
        Variable::public("CI_RUNNER_TAGS", format!("[{}]", tags.join(", "))),
    ]
}
