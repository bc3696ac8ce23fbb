//! Mirror of a job's repository on its machine (`[runners.git_mirror]`).
//!
//! A job reads the mirror through its view: hard links to packs, and a list of allowed refs.

use muster_agent_api::builtin::{Checkout, DockerVolume, GitMirror};
use muster_agent_api::container::MIRROR_DIR;
use muster_agent_api::plan::{Call, Step};
use muster_executor::Directories;
use muster_job::{milliseconds, without_user_info};
use muster_runner_api::payload::JobPayload;
use sha2::{Digest, Sha256};
use url::Url;

use super::settings::{JobSettings, job_timeout};
use super::{JobContext, docker, driver, suspension};

/// Name of the directory of all mirrors, beside the builds directory.
const DEFAULT_DIRECTORY: &str = "git-mirrors";
/// Number of digits of the URL's hash in the name of a mirror.
const URL_DIGITS: usize = 16;
/// Flags of `git fetch` that exclude tags.
const NO_TAGS: [&str; 2] = ["--no-tags", "-n"];

/// `None` means that the job uses no mirror. `machine` has the host's directories, even for a job in a container.
pub(super) fn git_mirror(
    payload: &JobPayload,
    context: &JobContext,
    settings: &JobSettings,
    machine: &Directories,
    checkout: &Checkout,
) -> Option<GitMirror> {
    let mirror = &context.runner.git_mirror;
    let url = url_without_credentials(&checkout.repo_url)?;
    let is_possible = mirror.enabled
        && settings.has_repository()
        && checkout.local_repository.is_none()
        && matches!(checkout.object_format.as_str(), "" | "sha1")
        && !driver::runs_job(context)
        // The view is removed at the end of this job, so a job that resumes its environment could not use it.
        && !suspension::can_suspend(payload, context)
        // Containers must be able to mount a directory of the agent's machine.
        && (!context.runner.uses_containers() || docker::has_local_engine(&context.runner));
    let directory = mirror.dir.clone().unwrap_or_else(|| DEFAULT_DIRECTORY.into());
    let root = machine.builds.parent()?.join(directory);
    if !is_possible || !root.is_absolute() {
        return None;
    }
    let digest = format!("{:x}", Sha256::digest(&url));
    let digits = digest.get(..URL_DIGITS).unwrap_or(&digest);
    Some(GitMirror {
        root: root.display().to_string(),
        // Another project may have had the same URL.
        name: format!("{}-{digits}", payload.job_info.project_id),
        view: payload.id.to_string(),
        repo_url: checkout.repo_url.clone(),
        sha: checkout.sha.clone(),
        refspecs: checkout.refspecs.clone(),
        tags: !checkout.fetch_flags.iter().any(|flag| NO_TAGS.contains(&flag.as_str())),
        credential_helper: checkout.credential_helper,
        tls: checkout.tls.clone(),
        max_age_s: mirror.max_age.as_secs(),
    })
}

fn url_without_credentials(url: &str) -> Option<String> {
    let url = Url::parse(&without_user_info(url)).ok()?;
    matches!(url.scheme(), "http" | "https").then(|| url.to_string())
}

/// Returns the directory in which the checkout finds the view.
pub(super) fn view_dir(mirror: &GitMirror, context: &JobContext) -> String {
    if context.runner.uses_containers() { MIRROR_DIR.to_owned() } else { mirror.view_dir() }
}

/// Returns the step that prepares the mirror on the agent's machine.
pub(super) fn step(mirror: &GitMirror, payload: &JobPayload, settings: &JobSettings) -> Step {
    // Without a title, the step has no section in the log.
    let mut step = Step::new("git_mirror", "", Call::builtin(mirror));
    let sources_timeout = settings.get_sources_timeout;
    let timeout = if sources_timeout.is_zero() { job_timeout(payload) } else { sources_timeout };
    // The checkout needs the rest of its timeout if the mirror is late.
    step.policy.timeout_ms = milliseconds(timeout / 2);
    step.policy.allow_failure = true;
    step
}

pub(super) fn volume(mirror: &GitMirror) -> DockerVolume {
    DockerVolume {
        source: mirror.view_dir(),
        destination: MIRROR_DIR.to_owned(),
        mode: "ro".to_owned(),
        ..DockerVolume::default()
    }
}
