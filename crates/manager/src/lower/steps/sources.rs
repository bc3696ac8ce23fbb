//! The step that gets the sources.

use muster_agent_api::builtin::{Checkout, Rewrite};
use muster_agent_api::plan::{Call, Step};
use muster_job::milliseconds;
use muster_runner_api::payload::JobPayload;
use url::Url;

use super::super::flags::Flags;
use super::super::settings::JobSettings;
use super::super::variables::Variables;
use super::super::{JobContext, LowerError};
use super::scripts;

const TOKEN_USER: &str = "gitlab-ci-token";

pub(super) fn checkout(
    payload: &JobPayload,
    context: &JobContext,
    variables: &Variables,
    settings: &JobSettings,
    flags: &Flags,
) -> Result<Checkout, LowerError> {
    let (git, runner) = (&payload.git_info, &context.runner);
    let hook = |name: &str| -> Vec<String> {
        payload.hooks.iter().filter(|hook| hook.name == name).flat_map(|hook| hook.script.clone()).collect()
    };
    let (mut before, mut after) = (Vec::new(), Vec::new());
    // The hooks run only if there is a repository.
    if settings.has_repository() {
        before = [scripts::commands(runner.scripts.pre_get_sources.as_ref()), hook("pre_get_sources_script")].concat();
        after = [hook("post_get_sources_script"), scripts::commands(runner.scripts.post_get_sources.as_ref())].concat();
    }
    Ok(Checkout {
        strategy: settings.strategy.clone(),
        repo_url: remote_url(payload, context, variables)?,
        // A container cannot see a repository of the host.
        local_repository: payload
            .muster
            .as_ref()
            .filter(|_| !runner.uses_containers())
            .and_then(|extension| extension.local_repository.clone()),
        mirror: None,
        object_format: git.repo_object_format.clone(),
        ref_name: git.ref_name.clone(),
        sha: git.sha.clone(),
        refspecs: git.refspecs.clone(),
        depth: git.depth,
        checkout: settings.checkout,
        clean_flags: settings.clean_flags.clone(),
        fetch_flags: settings.fetch_flags.clone(),
        submodules: settings.submodules.clone(),
        submodule_paths: settings.submodule_paths.clone(),
        submodule_depth: settings.submodule_depth,
        submodule_flags: settings.submodule_flags.clone(),
        skip_lfs: settings.skip_lfs,
        safe_directory: runner.safe_directory_checkout.unwrap_or(runner.uses_containers()),
        clean_config: settings.clean_config,
        rewrites: rewrites(payload, context, variables, settings),
        credential_helper: flags.is_on("FF_GIT_URLS_WITHOUT_TOKENS"),
        proactive_auth: flags.is_on("FF_USE_GIT_PROACTIVE_AUTH"),
        bundle_uris: flags.is_on("FF_USE_GIT_BUNDLE_URIS"),
        tls: variables.tls(),
        shell: scripts::base_script(payload, context, settings, flags),
        pre_script: before,
        post_script: after,
    })
}

pub(super) fn step(checkout: &Checkout, settings: &JobSettings) -> Step {
    let mut step = Step::new("get_sources", "Getting source from Git repository", Call::builtin(checkout));
    step.policy.attempts = settings.get_sources_attempts;
    step.policy.timeout_ms = milliseconds(settings.get_sources_timeout);
    step
}

/// Returns the payload's URL, or the project at `clone_url`, with credentials.
fn remote_url(payload: &JobPayload, context: &JobContext, variables: &Variables) -> Result<String, LowerError> {
    let Some(base) = clone_url(context)? else { return Ok(payload.git_info.repo_url.clone()) };
    let project = variables.get("CI_PROJECT_PATH").unwrap_or_else(|| payload.job_info.project_full_path.clone());
    Ok(format!("{}/{project}.git", with_token(&base, payload).as_str().trim_end_matches('/')))
}

/// `None` means that `clone_url` is not set, or contains no `://`.
fn clone_url(context: &JobContext) -> Result<Option<Url>, LowerError> {
    let Some(text) = context.runner.clone_url.as_deref().map(str::trim).filter(|text| text.contains("://")) else {
        return Ok(None);
    };
    let url = Url::parse(text).map_err(|error| {
        LowerError::configuration(format!("the runner's clone_url `{text}` is not a valid URL: {error}"))
    })?;
    Ok(Some(url))
}

/// Returns the URL with the job's token. An SSH URL gets only a user, because SSH uses a key instead of the token.
fn with_token(url: &Url, payload: &JobPayload) -> Url {
    let mut url = url.clone();
    // Some URLs cannot have a user.
    let _ = match url.scheme() {
        "ssh" => url.set_username(if url.username().is_empty() { "git" } else { url.username() }.to_owned().as_str()),
        "http" | "https" => url.set_username(TOKEN_USER).and_then(|()| url.set_password(Some(&payload.token))),
        _ => Ok(()),
    };
    url
}

/// With these rewrites, git uses the job's token for other projects of the coordinator.
fn rewrites(payload: &JobPayload, context: &JobContext, variables: &Variables, settings: &JobSettings) -> Vec<Rewrite> {
    let base = match clone_url(context) {
        Ok(Some(url)) => url,
        _ => context.runner.url.clone(),
    };
    if !matches!(base.scheme(), "http" | "https") || !settings.has_repository() {
        return Vec::new();
    }
    let text = |url: &Url| url.as_str().trim_end_matches('/').to_owned();
    let to = text(&with_token(&base, payload));
    let mut all = vec![Rewrite { from: text(&base), to: to.clone() }];
    let value = |name: &str| variables.get(name).filter(|value| !value.is_empty());
    if settings.submodule_https
        && let Some(host) = value("CI_SERVER_SHELL_SSH_HOST").or_else(|| value("CI_SERVER_HOST"))
    {
        match value("CI_SERVER_SHELL_SSH_PORT").filter(|port| port != "22") {
            None => {
                all.push(Rewrite { from: format!("git@{host}:"), to: format!("{to}/") });
                all.push(Rewrite { from: format!("ssh://git@{host}"), to });
            }
            Some(port) => all.push(Rewrite { from: format!("ssh://git@{host}:{port}"), to }),
        }
    }
    all
}
