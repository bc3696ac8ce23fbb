//! Generates scripts for built-in steps in the environment of a driver: a body for each step, and [`frame`] around it.
//!
//! Scripts need a POSIX shell, `git` for the sources, and `gitlab-runner` for caches and artifacts.

mod artifacts;
mod caches;
mod cleanup;
mod frame;
mod sources;
mod submodules;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use muster_agent_api::builtin::{
    ArtifactsDownload, ArtifactsUploadList, CacheRestore, CacheSave, Checkout, Cleanup, Inputs, Prepare, Script,
};
use muster_steps::failure::Failure;
use serde_json::Value;

pub(super) use crate::checkout::CLEAR_WORKTREE;
use crate::context::Context;
use crate::driver_state::DriverState;
use crate::shell_text::{push_commands, push_print};
use frame::{Body, JobFiles};
use muster_steps::style;

/// Directories of the job in the environment.
struct Target<'a> {
    project_dir: &'a Path,
    temp_dir: &'a Path,
}

/// Generates the script for a built-in step.
///
/// # Errors
/// [`Failure::System`] if the step or its inputs are not supported, or [`Failure::Step`] if a submodule strategy is
/// invalid.
pub(super) fn generate(
    session: &DriverState,
    context: &Context,
    builtin: &str,
    inputs: &Value,
) -> Result<String, Failure> {
    let mut inputs = inputs.clone();
    let (project_dir, temp_dir) = directories(session);
    if let Some(binding) = &session.binding {
        binding.expand_value(&mut inputs);
    }
    let target = Target { project_dir: &project_dir, temp_dir: &temp_dir };
    let mut body = Body::default();
    let mut files = JobFiles::Write;
    match builtin {
        Prepare::BUILTIN => prepare(&mut body, session, &target),
        Checkout::BUILTIN => sources::push(&mut body, &target, &parse::<Checkout>(inputs)?)?,
        Script::BUILTIN => commands(&mut body, &target, &parse::<Script>(inputs)?),
        CacheRestore::BUILTIN => caches::restore(&mut body, &target, &parse::<CacheRestore>(inputs)?),
        CacheSave::BUILTIN => caches::save(&mut body, &target, &parse::<CacheSave>(inputs)?),
        ArtifactsDownload::BUILTIN => {
            artifacts::download(&mut body, &target, &context.coordinator, &parse::<ArtifactsDownload>(inputs)?);
        }
        ArtifactsUploadList::BUILTIN => {
            artifacts::upload(&mut body, &target, &context.coordinator, &parse::<ArtifactsUploadList>(inputs)?);
        }
        Cleanup::BUILTIN => {
            files = JobFiles::PathsOnly;
            cleanup::push(&mut body, &target, &parse::<Cleanup>(inputs)?, &context.variables.current());
        }
        other => return Err(Failure::System(format!("the custom executor has no script for the step `{other}`"))),
    }
    Ok(frame::text(session, context, &target, body, files))
}

/// Generates the script that empties the work tree before another attempt.
pub(super) fn clear_worktree(session: &DriverState, context: &Context) -> String {
    let (project_dir, temp_dir) = directories(session);
    let target = Target { project_dir: &project_dir, temp_dir: &temp_dir };
    let mut body = Body::default();
    sources::clear(&mut body, &target);
    frame::text(session, context, &target, body, JobFiles::Write)
}

pub(super) fn has_repository(checkout: &Value) -> bool {
    let strategy = checkout.get("strategy").and_then(Value::as_str).unwrap_or_default();
    !matches!(strategy, "none" | "empty")
}

fn directories(session: &DriverState) -> (PathBuf, PathBuf) {
    let project = match &session.binding {
        Some(binding) => binding.expand(&session.project_dir),
        None => session.project_dir.clone(),
    };
    let temp = format!("{project}.tmp");
    (project.into(), temp.into())
}

fn parse<I: Inputs>(inputs: Value) -> Result<I, Failure> {
    serde_json::from_value(inputs).map_err(|error| {
        Failure::System(format!("inputs of builtin://{} for the custom executor: {error}", I::BUILTIN))
    })
}

/// Adds commands that remove temporary files and print the host.
fn prepare(body: &mut Body, session: &DriverState, target: &Target<'_>) {
    let name = session.output.hostname.as_ref().filter(|name| !name.is_empty());
    body.run(&["rm", "-f", &path(target.temp_dir, "gitlab_runner_env"), &path(target.temp_dir, "masking.db")]);
    match name {
        Some(name) => push_print(&mut body.text, &format!("Running on {name} via {}...", session.host_name)),
        None => body.text.push_str("printf 'Running on %s...\\n' \"$(uname -n)\"\n"),
    }
}

fn commands(body: &mut Body, target: &Target<'_>, script: &Script) {
    body.is_traced = script.debug;
    if script.after_script {
        body.notice("Running after script...");
    }
    body.run(&["cd", &target.project_dir.to_string_lossy()]);
    let block = if script.after_script { "after_script_step" } else { "script_step" };
    let blocks =
        [("pre_build_script", &*script.before), (block, &*script.commands), ("post_build_script", &*script.after)];
    push_commands(&mut body.text, script, &blocks);
}

/// Begins commands that require `gitlab-runner`.
fn begin_transfer(body: &mut Body, target: &Target<'_>) {
    body.run(&["cd", &target.project_dir.to_string_lossy()]);
    body.line("if gitlab-runner --version >/dev/null 2>&1; then\n:");
}

/// Ends commands that require `gitlab-runner`. Without it, the stage succeeds with a warning.
fn end_transfer(body: &mut Body, action: &str) {
    body.line("else");
    body.warning(&format!("Missing gitlab-runner. {action} is disabled."));
    body.line("fi");
}

fn path(directory: &Path, name: &str) -> String {
    directory.join(name).to_string_lossy().into_owned()
}

/// Returns a warning without a line break.
fn warning(text: &str) -> String {
    style::warning(text).trim_end_matches('\n').to_owned()
}
