//! The directories of a job.

use muster_agent_api::builtin::DRIVER_LAYOUT;
use muster_job::{Variable, expand_within, is_below, short_token};
use muster_runner_api::payload::JobPayload;
use url::Url;

use super::{JobContext, LowerError};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Paths {
    pub(super) builds_dir: String,
    /// Directory of the checkout.
    pub(super) project_dir: String,
    /// Directory for temporary files, beside the checkout.
    pub(super) temp_dir: String,
    pub(super) cache_dir: String,
}

impl Paths {
    pub(super) fn new(payload: &JobPayload, context: &JobContext) -> Result<Self, LowerError> {
        let directories = &context.directories;
        let runner = &context.runner;
        let builds_dir = directories.builds.display().to_string();
        let cache_dir = directories.cache.display();
        let slug = slug(payload);
        let uses_common_dir = runner.on_instances.use_common_build_dir && context.is_exclusive();
        let mut project_dir = match clone_path(payload, context, &builds_dir)? {
            Some(path) => path,
            None if directories.shared && !uses_common_dir => {
                // On an instance, the directory has the number of the instance's slot, so that the instance has at most
                // one directory of the project per slot.
                let slot = context.share.as_ref().map_or(context.slot.project_slot, |share| share.slot);
                let token = short_token(runner.token.expose());
                format!("{builds_dir}/{token}/{slot}/{slug}")
            }
            None => format!("{builds_dir}{}/{slug}", super::driver::layout(context)),
        };
        if last_value(payload, "GIT_STRATEGY") == Some("empty") {
            project_dir.push_str("-empty");
        }
        Ok(Self {
            temp_dir: format!("{project_dir}.tmp"),
            cache_dir: format!("{cache_dir}/{slug}"),
            builds_dir,
            project_dir,
        })
    }
}

const MAX_PATH_BYTES: usize = 4096;

/// `None` means that `GIT_CLONE_PATH` is not set. The path must be below the builds directory.
fn clone_path(payload: &JobPayload, context: &JobContext, builds_dir: &str) -> Result<Option<String>, LowerError> {
    let value = |name: &str| last_value(payload, name).or_else(|| last_of(&context.runner.environment, name));
    let Some(path) = value("GIT_CLONE_PATH").filter(|path| !path.is_empty()) else { return Ok(None) };
    if !context.runner.custom_build_dir.unwrap_or(context.runner.uses_containers()) {
        return Err(LowerError::configuration(
            "setting GIT_CLONE_PATH is not allowed, enable `custom_build_dir` feature",
        ));
    }
    let too_long = || LowerError::configuration(format!("GIT_CLONE_PATH is longer than {MAX_PATH_BYTES} bytes"));
    if path.len() > MAX_PATH_BYTES {
        return Err(too_long());
    }
    let path = expand_within(path, MAX_PATH_BYTES, |name| match name {
        "CI_BUILDS_DIR" => builds_dir.to_owned(),
        "CI_CONCURRENT_ID" => context.slot.id.to_string(),
        "CI_CONCURRENT_PROJECT_ID" => context.slot.project_slot.to_string(),
        "CI_RUNNER_SHORT_TOKEN" => short_token(context.runner.token.expose()),
        name => value(name).unwrap_or_default().to_owned(),
    });
    let path = path.ok_or_else(too_long)?;
    let builds = builds_dir.trim_end_matches('/');
    let within = clean(&path).filter(|path| path != builds && is_below(path, builds));
    match within {
        // A path with the placeholder of the driver's layout is refused: if the placeholder is replaced with
        // nothing, the path may be the builds directory itself.
        Some(path) if !path.contains(DRIVER_LAYOUT) => Ok(Some(path)),
        _ => Err(LowerError::configuration(format!("the GIT_CLONE_PATH=\"{path}\" has to be within \"{builds_dir}\""))),
    }
}

/// Returns the path without `.`, `..` and repeated slashes. `None` if the path is not absolute.
pub(super) fn clean(path: &str) -> Option<String> {
    let mut segments = Vec::new();
    for segment in path.strip_prefix('/')?.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    Some(format!("/{}", segments.join("/")))
}

/// Returns the unexpanded value of the last variable with this name.
fn last_value<'a>(payload: &'a JobPayload, name: &str) -> Option<&'a str> {
    last_of(&payload.variables, name)
}

fn last_of<'a>(variables: &'a [Variable], name: &str) -> Option<&'a str> {
    variables.iter().rev().find(|variable| variable.key == name).map(|variable| variable.value.as_str())
}

/// Returns the project's path from the remote's URL, or `project-<ID>` if the URL has no usable path.
fn slug(payload: &JobPayload) -> String {
    let path = Url::parse(&payload.git_info.repo_url).ok().filter(Url::has_host).and_then(|url| {
        let path = url.path().trim_matches('/');
        let path = path.strip_suffix(".git").unwrap_or(path).trim_end_matches('/');
        let is_plain = !path.is_empty() && !path.contains("..") && !path.contains('%');
        is_plain.then(|| path.split('/').filter(|segment| !matches!(*segment, "" | ".")).collect::<Vec<_>>().join("/"))
    });
    path.unwrap_or_else(|| format!("project-{}", payload.job_info.project_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slug_comes_from_remote_or_project_id() {
        let slug_of = |url: &str| {
            let mut payload: JobPayload = serde_json::from_str(r#"{"id":1,"token":"t"}"#).unwrap();
            payload.git_info.repo_url = url.to_owned();
            payload.job_info.project_id = 5;
            slug(&payload)
        };
        assert_eq!(slug_of("https://gitlab-ci-token:x@gitlab.example/group/sub//project.git"), "group/sub/project");
        assert_eq!(slug_of("https://gitlab.example/%2e%2e/evil.git"), "evil", "the URL parser resolves `%2e%2e`");
        assert_eq!(slug_of("https://gitlab.example/"), "project-5");
        assert_eq!(slug_of("file:///srv/repo.git"), "project-5");
        assert_eq!(slug_of(""), "project-5");
    }
}
