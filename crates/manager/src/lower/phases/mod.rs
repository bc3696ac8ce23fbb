//! The phases of a job, in GitLab's order and with its names (job-execution 1.1-1.3).

mod scripts;
mod sources;
mod transfers;

use std::time::Duration;

use muster_agent_api::builtin::{Builtin, Cleanup, Phase, PhaseWhen};
use muster_runner_api::payload::JobPayload;

use super::flags::Flags;
use super::paths::Paths;
use super::settings::Settings;
use super::suspension;
use super::variables::Variables;
use super::{LowerError, Placement, cache, header};

/// For cleaning up behind a job, which has no limit of its own.
const CLEANUP_LIMIT: Duration = Duration::from_secs(300);

/// What a payload was read to.
pub(super) struct Read<'a> {
    pub(super) payload: &'a JobPayload,
    pub(super) placement: &'a Placement,
    pub(super) paths: &'a Paths,
    pub(super) variables: &'a Variables,
    pub(super) settings: &'a Settings,
    pub(super) flags: &'a Flags,
}

/// All phases. What is to be said about what is left out goes to the warnings.
pub(super) fn all(read: &Read<'_>, warnings: &mut Vec<String>) -> Result<Vec<Phase>, LowerError> {
    let Read { payload, placement, paths, variables, settings, flags } = *read;
    let caches = cache::entries(payload, paths, variables, flags, warnings)?;
    let prepare = Builtin::Prepare(header::executor(payload, placement, variables, flags));
    let title = format!("Preparing the \"{}\" executor", placement.runner.executor);
    let mut phases = vec![
        phase("prepare_executor", &title, prepare),
        phase("prepare_script", "Preparing environment", Builtin::Prepare(header::environment(placement))),
    ];
    // What is resumed has them, as the job before left them.
    if !suspension::is_resumed(payload, &placement.runner) {
        phases.push(sources::get_sources(payload, placement, variables, settings, flags)?);
    }
    phases.extend(transfers::restore_caches(&caches, settings));
    phases.extend(transfers::download(payload, settings));
    phases.extend(scripts::scripts(payload, placement, variables, settings, flags)?);
    phases.extend(transfers::save_caches(&caches));
    phases.extend(transfers::uploads(read));
    let checkout = if flags.is_on("FF_ENABLE_JOB_CLEANUP") { settings.strategy.clone() } else { String::new() };
    let cleanup = Cleanup {
        checkout,
        clean_flags: settings.clean_flags.clone(),
        submodules: settings.submodules.clone(),
        // A job that goes on here needs it.
        clean_config: settings.clean_config && !suspension::may_leave(payload, placement),
    };
    phases.push(Phase {
        when: PhaseWhen::Finally,
        timeout_ms: milliseconds(CLEANUP_LIMIT),
        allow_failure: true,
        ..phase(
            "cleanup_file_variables",
            "Cleaning up project directory and file based variables",
            Builtin::Cleanup(cleanup),
        )
    });
    Ok(phases)
}

/// A phase with the defaults: once, on success, no limit of its own.
fn phase(name: &str, title: &str, run: Builtin) -> Phase {
    Phase {
        name: name.to_owned(),
        title: title.to_owned(),
        when: PhaseWhen::OnSuccess,
        attempts: 1,
        timeout_ms: 0,
        allow_failure: false,
        run,
    }
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}
