//! Which image a job gets, and how it is pulled (docs/spec/job-execution.md, section 5.7).

use muster_agent_api::builtin::ImageSpec;
use muster_config::settings::DockerSettings;
use muster_job::FailureReason;
use muster_runner_api::payload::Image;

use super::super::variables::Variables;
use super::super::{LowerError, matches_pattern};

/// Line about images that the runner does not allow.
const DOCS: &str = "Please check runner's configuration: \
                    https://docs.gitlab.com/runner/configuration/advanced-configuration/#restrict-docker-images-and-services";

#[derive(Clone, Copy)]
pub(super) enum AllowList {
    Images,
    Services,
}

/// Returns the name of the build container's image, and whether it is the runner's default image.
pub(super) fn select_build_image(
    image: Option<&Image>,
    docker: &DockerSettings,
    variables: &Variables,
) -> Result<(String, bool), LowerError> {
    let of_job = image.map(|image| variables.expand(&image.name).trim().to_owned()).filter(|name| !name.is_empty());
    let default = variables.expand(&docker.image).trim().to_owned();
    let Some(name) = of_job else {
        if default.is_empty() {
            return Err(LowerError::configuration("no Docker image specified to run the build in"));
        }
        return Ok((default, true));
    };
    if name != default {
        check_allowed(&name, AllowList::Images, &docker.allowed_images)?;
    }
    Ok((name, false))
}

/// An empty list of patterns allows every image.
pub(super) fn check_allowed(image: &str, list: AllowList, patterns: &[String]) -> Result<(), LowerError> {
    if patterns.is_empty() || patterns.iter().any(|pattern| matches_pattern(pattern, image)) {
        return Ok(());
    }
    let kind = match list {
        AllowList::Images => "images",
        AllowList::Services => "services",
    };
    let first = format!("The {image:?} image is not present on list of allowed {kind}:");
    let patterns = patterns.iter().map(|pattern| format!("- {pattern}"));
    let mut error = LowerError::of_reason(FailureReason::RunnerSystemFailure, "disallowed image");
    error.trace_lines = std::iter::once(first).chain(patterns).chain([DOCS.to_owned()]).collect();
    Err(error)
}

/// Fails if the runner allows none of the pull policies.
pub(super) fn image_spec(
    name: String,
    image: Option<&Image>,
    docker: &DockerSettings,
    variables: &Variables,
) -> Result<ImageSpec, LowerError> {
    let of_job = image.map(|image| image.pull_policy.as_slice()).filter(|policies| !policies.is_empty());
    let default = ["always".to_owned()];
    let of_runner = if docker.pull_policy.is_empty() { &default[..] } else { &docker.pull_policy };
    let allowed = if docker.allowed_pull_policies.is_empty() { of_runner } else { &docker.allowed_pull_policies };
    let (wanted, source) = match of_job {
        Some(policies) => (policies, "GitLab pipeline config"),
        None if docker.pull_policy.is_empty() => (of_runner, "Runner config (default)"),
        None => (of_runner, "Runner config"),
    };
    let pull_policies: Vec<String> = wanted.iter().filter(|policy| allowed.contains(policy)).cloned().collect();
    if pull_policies.is_empty() {
        return Err(LowerError::configuration(format!(
            "invalid pull policy for image {name:?}: pull_policy ([{}]) defined in {source} is not one of the \
             allowed_pull_policies ([{}])",
            wanted.join(" "),
            allowed.join(" ")
        )));
    }
    let platform = image.and_then(|image| docker_option(image, "platform", variables)).unwrap_or_default();
    Ok(ImageSpec { name, pull_policies, platform })
}

/// Returns the expanded option. `None` means that it is empty or not set.
pub(super) fn docker_option(image: &Image, name: &str, variables: &Variables) -> Option<String> {
    let value = image.executor_opts.get("docker")?.get(name)?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Some(variables.expand(&text).trim().to_owned()).filter(|text| !text.is_empty())
}

/// An empty list of patterns allows every image.
pub(super) fn may_be_privileged(image: &str, patterns: &[String]) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| matches_pattern(pattern, image))
}

/// Adds a warning if the runner ignores `entrypoint`.
pub(super) fn entrypoint(
    entrypoint: Option<&[String]>,
    docker: &DockerSettings,
    warnings: &mut Vec<String>,
) -> Option<Vec<String>> {
    let wanted = entrypoint.filter(|entrypoint| !entrypoint.is_empty())?;
    if docker.disable_entrypoint_overwrite {
        warnings.push("Entrypoint override disabled".to_owned());
        return None;
    }
    Some(wanted.to_vec())
}
