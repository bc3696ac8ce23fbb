//! Lowers a job of the custom executor to stages that a driver runs (docs/spec/job-execution.md, section 6).
//!
//! ```text
//! plan: [ driver/prepare, driver/stage prepare_script, [ driver/stage get_sources, ..., cleanup_file_variables ], driver/cleanup ]
//! ```
//!
//! A driver with a configuration stage chooses the directories of the job. Until that stage has run, the plan contains placeholders
//! ([`DRIVER_BUILDS_DIR`], [`DRIVER_CACHE_DIR`] and [`DRIVER_LAYOUT`]).

use std::path::PathBuf;

use muster_agent_api::builtin::{
    DRIVER_BUILDS_DIR, DRIVER_CACHE_DIR, DRIVER_LAYOUT, Driver, DriverCleanup, DriverDirectories, DriverPrepare,
    DriverProgram, DriverStage,
};
use muster_agent_api::plan::{Call, Step, When};
use muster_config::settings::{CustomProgram, CustomSettings};
use muster_executor::Directories;
use muster_job::milliseconds;
use muster_runner_api::payload::{Image, JobPayload};
use serde_json::json;

use super::steps::JobParts;
use super::variables::Variables;
use super::{JobContext, LowerError, header};

pub(super) fn runs_job(context: &JobContext) -> bool {
    context.runner.uses_driver()
}

/// Returns the context with placeholders for directories that the driver chooses.
pub(super) fn driver_context(context: &JobContext) -> JobContext {
    let runner = &context.runner;
    let driver_chooses = runner.custom.as_ref().is_some_and(|custom| custom.config.is_some());
    let directory = |configured: &Option<PathBuf>, placeholder: &str| match configured {
        Some(path) if !driver_chooses => path.clone(),
        _ => PathBuf::from(placeholder),
    };
    let directories = Directories {
        builds: directory(&runner.builds_dir, DRIVER_BUILDS_DIR),
        cache: directory(&runner.cache_dir, DRIVER_CACHE_DIR),
        shared: false,
    };
    JobContext { directories, ..context.clone() }
}

/// Returns the directory for the agent that runs the driver. The checkout is elsewhere.
pub(super) fn outer_dir(context: &JobContext) -> PathBuf {
    let token = muster_job::short_token(context.runner.token.expose());
    context.directories.builds.join(token).join(format!("custom-{}", context.slot.id))
}

/// Returns the placeholder for the part of the project directory's path that differs between runners and slots. Returns
/// an empty string if the job does not run with the custom executor.
///
/// The part of the path is empty unless several runners share the builds directory.
pub(super) fn layout(context: &JobContext) -> &'static str {
    if runs_job(context) { DRIVER_LAYOUT } else { "" }
}

/// Returns the steps of a driver. `inside` are the steps that the job would have without a driver, beginning
/// with `prepare_script`.
pub(super) fn steps(parts: &JobParts<'_>, title: &str, inside: Vec<Step>) -> Result<Vec<Step>, LowerError> {
    let JobParts { payload, context, paths, variables, .. } = *parts;
    let missing = || LowerError::configuration("custom executor not configured; add [runners.custom] with run_exec");
    let settings = context.runner.custom.as_deref().ok_or_else(missing)?;
    let runner = &context.runner;
    let configured = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let prepare = DriverPrepare {
        driver: driver(settings)?,
        payload: payload_text(payload),
        services: services(payload, variables),
        directories: DriverDirectories {
            builds: configured(&runner.builds_dir),
            cache: configured(&runner.cache_dir),
            shared_layout: shared_layout(context),
            shell: runner.shell.clone(),
            host_name: context.host_name.clone(),
        },
        project_dir: paths.project_dir.clone(),
        lines: header::flag_notes(parts.flags).collect(),
    };
    let mut stages = inside.into_iter().map(stage).collect::<Result<Vec<Step>, LowerError>>()?.into_iter();
    let mut steps = vec![Step::new("prepare_executor", title, Call::builtin(&prepare))];
    steps.extend(stages.next());
    steps.push(Step::new("stages", "", Call::Steps(stages.collect())));
    let mut cleanup = Step::new("cleanup", "", Call::builtin(&DriverCleanup {}));
    cleanup.policy.when = When::Finally;
    cleanup.policy.allow_failure = true;
    steps.push(cleanup);
    Ok(steps)
}

fn stage(step: Step) -> Result<Step, LowerError> {
    let Call::Builtin { name: builtin, inputs } = step.call else {
        return Err(LowerError::unsupported(
            "the custom executor does not support the `run` keyword, because its driver runs shell scripts; use `script`",
        ));
    };
    let call = Call::builtin(&DriverStage { stage: step.name.clone(), builtin, inputs });
    Ok(Step { call, ..step })
}

fn driver(settings: &CustomSettings) -> Result<Driver, LowerError> {
    let missing = || LowerError::configuration("custom executor is missing RunExec; set run_exec in [runners.custom]");
    let run = settings.run.as_ref().ok_or_else(missing)?;
    Ok(Driver {
        config: settings.config.as_ref().map(program),
        prepare: settings.prepare.as_ref().map(program),
        run: program(run),
        cleanup: settings.cleanup.as_ref().map(program),
        graceful_kill_ms: milliseconds(settings.graceful_kill_timeout),
    })
}

fn program(settings: &CustomProgram) -> DriverProgram {
    let CustomProgram { program, args, timeout } = settings;
    DriverProgram { program: program.clone(), args: args.clone(), timeout_ms: timeout.map_or(0, milliseconds) }
}

/// Returns the value of [`DRIVER_LAYOUT`] in a builds directory that several runners share.
fn shared_layout(context: &JobContext) -> String {
    format!("/{}/{}", muster_job::short_token(context.runner.token.expose()), context.slot.project_slot)
}

/// Returns the payload as the server sent it, or in Muster's own form if the server's text was not kept.
fn payload_text(payload: &JobPayload) -> String {
    let original = payload.muster.as_ref().and_then(|muster| muster.answer.clone());
    original.unwrap_or_else(|| json!(payload).to_string())
}

/// Returns JSON for the driver. Empty if the job has no services.
fn services(payload: &JobPayload, variables: &Variables) -> String {
    if payload.services.is_empty() {
        return String::new();
    }
    let service = |service: &Image| {
        let mut aliases = service.alias.as_deref().unwrap_or_default().split([',', ' ', '\t', '\n', '\r']);
        json!({
            "name": variables.expand(&service.name),
            // gitlab-runner's drivers get only the first alias.
            "alias": variables.expand(aliases.find(|alias| !alias.is_empty()).unwrap_or_default()),
            "entrypoint": service.entrypoint,
            "command": service.command,
            "variables": service.variables,
        })
    };
    json!(payload.services.iter().map(service).collect::<Vec<_>>()).to_string()
}
