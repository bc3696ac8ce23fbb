//! The phases of a job, in GitLab's order and with its names (job-execution 1.1-1.3).

use std::time::Duration;

use muster_agent_api::builtin::{
    ArtifactSource, ArtifactsDownload, ArtifactsUpload, ArtifactsUploads, Builtin, CacheEntry, Caches, Checkout, Phase,
    PhaseWhen, Script,
};
use muster_runner_api::payload::{Artifact, JobPayload, Step};

use super::paths::Paths;
use super::settings::Settings;
use super::variables::Variables;
use super::{LowerError, Placement, cache};

/// All phases. Notices about what is left out go to the header.
pub(super) fn all(
    payload: &JobPayload,
    placement: &Placement,
    paths: &Paths,
    variables: &Variables,
    settings: &Settings,
    header: &mut Vec<String>,
) -> Result<Vec<Phase>, LowerError> {
    let caches = cache::entries(payload, paths, variables, header)?;
    let mut phases = vec![get_sources(payload, settings)];
    if !caches.is_empty() {
        let caches = caches.iter().map(|(entry, _)| entry.clone()).collect();
        phases.push(Phase {
            attempts: settings.restore_cache_attempts,
            allow_failure: true,
            ..phase("restore_cache", "Restoring cache", Builtin::CacheRestore(Caches { caches }))
        });
    }
    phases.extend(download(payload, settings));
    phases.extend(scripts(payload, placement, variables, settings)?);
    phases.extend(save_caches(&caches));
    phases.extend(uploads(&payload.artifacts));
    phases.push(Phase {
        when: PhaseWhen::Finally,
        allow_failure: true,
        ..phase("cleanup_file_variables", "Cleaning up project directory and file based variables", Builtin::Cleanup)
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

fn get_sources(payload: &JobPayload, settings: &Settings) -> Phase {
    let git = &payload.git_info;
    let hook = |name: &str| {
        payload.hooks.iter().filter(|hook| hook.name == name).flat_map(|hook| hook.script.clone()).collect()
    };
    let checkout = Checkout {
        strategy: settings.strategy.clone(),
        repo_url: git.repo_url.clone(),
        local_repository: payload.muster.as_ref().and_then(|extension| extension.local_repository.clone()),
        object_format: git.repo_object_format.clone(),
        ref_name: git.ref_name.clone(),
        sha: git.sha.clone(),
        refspecs: git.refspecs.clone(),
        depth: git.depth,
        checkout: settings.checkout,
        clean_flags: settings.clean_flags.clone(),
        fetch_flags: settings.fetch_flags.clone(),
        submodules: settings.submodules.clone(),
        pre_script: hook("pre_get_sources_script"),
        post_script: hook("post_get_sources_script"),
    };
    Phase {
        attempts: settings.get_sources_attempts,
        ..phase("get_sources", "Getting source from Git repository", Builtin::Checkout(checkout))
    }
}

fn download(payload: &JobPayload, settings: &Settings) -> Option<Phase> {
    let from: Vec<_> = payload
        .dependencies
        .iter()
        .filter(|dependency| !dependency.artifacts_file.filename.is_empty())
        .map(|dependency| ArtifactSource {
            job_id: dependency.id,
            name: dependency.name.clone(),
            token: dependency.token.clone(),
        })
        .collect();
    (!from.is_empty()).then(|| Phase {
        attempts: settings.artifact_download_attempts,
        ..phase("download_artifacts", "Downloading artifacts", Builtin::ArtifactsDownload(ArtifactsDownload { from }))
    })
}

/// The user's scripts or steps, then `after_script`.
fn scripts(
    payload: &JobPayload,
    placement: &Placement,
    variables: &Variables,
    settings: &Settings,
) -> Result<Vec<Phase>, LowerError> {
    let is_after = |step: &&Step| step.name == "after_script";
    let used: Vec<&Step> = payload.steps.iter().filter(|step| !step.script.is_empty()).collect();
    let script = |step: &Step, after_script: bool| {
        let expand = |line: &String| if step.name == "release" { variables.expand(line) } else { line.clone() };
        Builtin::Script(Script {
            shell: placement.runner.shell.clone(),
            login: placement.runner.login,
            commands: step.script.iter().map(expand).collect(),
            after_script,
        })
    };
    let user_phase = |name: &str, run: Builtin| {
        let name = format!("step_{}", name.to_lowercase());
        let title = format!("Executing \"{name}\" stage of the job script");
        Phase { timeout_ms: milliseconds(settings.script_timeout), ..phase(&name, &title, run) }
    };
    let mut phases = Vec::new();
    match &payload.run {
        Some(run) => {
            if !used.is_empty() {
                return Err(LowerError::unsupported("the `run` and `script` keywords cannot be used together"));
            }
            if payload.variables.iter().any(|variable| variable.key == "STEPS") {
                return Err(LowerError::unsupported(
                    "the `run` keyword requires the exclusive use of the variable STEPS",
                ));
            }
            let steps = serde_json::from_str(run)
                .map_err(|error| LowerError::configuration(format!("`run` is not a list of steps: {error}")))?;
            phases.push(user_phase("run", Builtin::Steps { steps }));
        }
        None => {
            phases.extend(
                used.iter().filter(|step| !is_after(step)).map(|step| user_phase(&step.name, script(step, false))),
            );
        }
    }
    for step in used.iter().filter(|step| is_after(step)) {
        phases.push(Phase {
            when: PhaseWhen::Always,
            timeout_ms: milliseconds(settings.after_script_timeout),
            allow_failure: settings.after_script_ignore_errors,
            ..phase("after_script", "Running after_script", script(step, true))
        });
    }
    Ok(phases)
}

/// The failure variant, then the success variant: in the other order, a failure of the success variant would let the
/// failure variant run as well. One phase for all caches of a variant.
fn save_caches(caches: &[(CacheEntry, String)]) -> Vec<Phase> {
    let save = |when: PhaseWhen, name: &str, title: &str| {
        let fitting = caches.iter().filter(|(_, wanted)| fits(wanted, when));
        let caches: Vec<_> = fitting.map(|(entry, _)| entry.clone()).collect();
        let run = |caches| Builtin::CacheSave(Caches { caches });
        (!caches.is_empty()).then(|| Phase { when, allow_failure: true, ..phase(name, title, run(caches)) })
    };
    let failure = save(PhaseWhen::OnFailure, "archive_cache_on_failure", "Saving cache for failed job");
    let success = save(PhaseWhen::OnSuccess, "archive_cache", "Saving cache for successful job");
    failure.into_iter().chain(success).collect()
}

/// The failure variant, then the success variant; the order as for caches.
fn uploads(artifacts: &[Artifact]) -> Vec<Phase> {
    let upload = |when: PhaseWhen, name: &str, title: &str| {
        let fitting = artifacts
            .iter()
            .filter(|artifact| fits(&artifact.when, when) && (artifact.untracked || !artifact.paths.is_empty()));
        let artifacts: Vec<_> = fitting
            .map(|artifact| ArtifactsUpload {
                name: artifact.name.clone(),
                paths: artifact.paths.clone(),
                exclude: artifact.exclude.clone(),
                untracked: artifact.untracked,
                artifact_type: artifact.artifact_type.clone(),
                artifact_format: artifact.artifact_format.clone(),
                expire_in: artifact.expire_in.clone(),
            })
            .collect();
        let run = |artifacts| Builtin::ArtifactsUpload(ArtifactsUploads { artifacts });
        (!artifacts.is_empty()).then(|| Phase { when, ..phase(name, title, run(artifacts)) })
    };
    let success = ("upload_artifacts_on_success", "Uploading artifacts for successful job");
    let failure = ("upload_artifacts_on_failure", "Uploading artifacts for failed job");
    let failed = upload(PhaseWhen::OnFailure, failure.0, failure.1);
    failed.into_iter().chain(upload(PhaseWhen::OnSuccess, success.0, success.1)).collect()
}

/// Whether something with this `when` of the payload belongs to the variant.
fn fits(wanted: &str, variant: PhaseWhen) -> bool {
    match wanted {
        "always" => true,
        "on_failure" => variant == PhaseWhen::OnFailure,
        _ => variant == PhaseWhen::OnSuccess,
    }
}

fn milliseconds(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}
