//! The steps of a job, in GitLab's order and with GitLab's names.

mod operator;
mod replace;
mod scripts;
pub(super) mod services;
mod sources;
mod transfers;

use std::time::Duration;

use muster_agent_api::builtin::{Checkout, Cleanup, Inputs};
use muster_agent_api::plan::{Call, Step, When};
use muster_executor::Directories;
use muster_job::milliseconds;
use muster_runner_api::payload::JobPayload;

use super::flags::Flags;
use super::paths::Paths;
use super::settings::JobSettings;
use super::suspension;
use super::variables::Variables;
use super::{JobContext, LowerError, cache, docker, driver, header, mirror, policy, secrets};

pub(super) use replace::reserved;

const CLEANUP_TIMEOUT: Duration = Duration::from_secs(300);

/// A payload and everything that is derived from it.
pub(super) struct JobParts<'a> {
    pub(super) payload: &'a JobPayload,
    pub(super) context: &'a JobContext,
    /// Directories on the machine of the agent that starts the job. Those of `context` may be in a container.
    pub(super) machine: &'a Directories,
    pub(super) paths: &'a Paths,
    pub(super) variables: &'a Variables,
    pub(super) settings: &'a JobSettings,
    pub(super) flags: &'a Flags,
}

/// Returns all steps of the job. Adds warnings about ignored parts of the payload to `warnings`.
pub(super) fn all(parts: &JobParts<'_>, warnings: &mut Vec<String>) -> Result<Vec<Step>, LowerError> {
    let JobParts { payload, context, paths, variables, settings, flags, .. } = *parts;
    if let Some(policy) = &context.runner.steps.policy {
        policy::check_run_list(payload, policy)?;
    }
    let caches = cache::entries(payload, context, paths, variables, flags, warnings)?;
    let environment = Call::builtin(&header::environment(payload, context));
    let mut steps = vec![Step::new("prepare_script", "Preparing environment", environment)];
    if !context.runner.uses_containers() {
        steps.extend(services::steps(parts));
    }
    steps.extend(operator::before(parts));
    let mut mirror_step = None;
    let mut mirror_volume = None;
    // A resumed environment already has the sources of the previous job.
    if !suspension::resumes_environment(payload, &context.runner) {
        let mut checkout = sources::checkout(payload, context, variables, settings, flags)?;
        // Only the built-in checkout uses the mirror.
        let mirror = if replace::is_replaced(&context.runner.steps, Checkout::BUILTIN) {
            None
        } else {
            mirror::git_mirror(payload, context, settings, parts.machine, &checkout)
        };
        if let Some(mirror) = mirror {
            checkout.mirror = Some(mirror::view_dir(&mirror, context));
            mirror_step = Some(mirror::step(&mirror, payload, settings));
            mirror_volume = Some(mirror::volume(&mirror));
        }
        if !context.runner.uses_containers() {
            steps.extend(mirror_step.take());
        }
        steps.push(sources::step(&checkout, settings));
    }
    steps.extend(transfers::restore_caches(&caches, settings));
    steps.extend(transfers::download_artifacts(payload, settings));
    steps.extend(scripts::scripts(payload, context, variables, settings, flags)?);
    steps.extend(transfers::save_caches(&caches));
    steps.extend(transfers::upload_artifacts(parts));
    steps.extend(operator::after(parts));
    let checkout = if flags.is_on("FF_ENABLE_JOB_CLEANUP") { settings.strategy.clone() } else { String::new() };
    let cleanup = Cleanup {
        checkout,
        clean_flags: settings.clean_flags.clone(),
        submodules: settings.submodules.clone(),
        // A job that resumes this environment needs the configuration.
        clean_config: settings.clean_config && !suspension::can_suspend(payload, context),
    };
    let title = "Cleaning up project directory and file based variables";
    let mut step = Step::new("cleanup_file_variables", title, Call::builtin(&cleanup));
    step.policy.when = When::Finally;
    step.policy.timeout_ms = milliseconds(CLEANUP_TIMEOUT);
    step.policy.allow_failure = true;
    steps.push(step);
    replace::apply(&mut steps, &context.runner.steps);
    let title = format!("Preparing the \"{}\" executor", context.runner.executor);
    let steps = if context.runner.uses_containers() {
        let containers = docker::step(parts, &title, steps, mirror_volume, warnings)?;
        mirror_step.into_iter().chain([containers]).collect()
    } else if driver::runs_job(context) {
        driver::steps(parts, &title, steps)?
    } else {
        let prepare = Call::builtin(&header::executor(payload, context, variables, flags));
        steps.insert(0, Step::new("prepare_executor", &title, prepare));
        steps
    };
    Ok(secrets::step(payload).into_iter().chain(steps).collect())
}
