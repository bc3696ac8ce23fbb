//! The artifacts of a payload: what the runner uploads after a job.

use muster_job::report_format;
use muster_pipeline::model::{Artifacts, ScriptWork};
use muster_runner_api::payload::Artifact;

/// Returns the archive, if the job configures one, and then the reports in the order of the configuration.
pub(super) fn artifacts(work: &ScriptWork) -> Vec<Artifact> {
    let Some(artifacts) = &work.artifacts else { return Vec::new() };
    let archive = (artifacts.untracked || !artifacts.paths.is_empty()).then(|| archive(artifacts));
    let reports = artifacts.reports.iter().map(|(kind, paths)| report(kind, paths, artifacts));
    archive.into_iter().chain(reports).collect()
}

fn archive(artifacts: &Artifacts) -> Artifact {
    let when = if artifacts.when.is_empty() { "on_success" } else { &artifacts.when };
    Artifact {
        name: artifacts.name.clone().unwrap_or_else(|| "artifacts".to_owned()),
        untracked: artifacts.untracked,
        paths: artifacts.paths.clone(),
        exclude: artifacts.exclude.clone(),
        when: when.to_owned(),
        artifact_type: "archive".to_owned(),
        artifact_format: "zip".to_owned(),
        expire_in: artifacts.expire_in.clone().unwrap_or_default(),
    }
}

fn report(kind: &str, paths: &[String], artifacts: &Artifacts) -> Artifact {
    let (format, name) = report_format(kind);
    Artifact {
        name,
        paths: paths.to_vec(),
        when: "always".to_owned(),
        artifact_type: kind.to_owned(),
        artifact_format: format.to_owned(),
        expire_in: artifacts.expire_in.clone().unwrap_or_default(),
        ..Artifact::default()
    }
}
