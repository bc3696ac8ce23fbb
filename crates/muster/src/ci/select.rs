//! Which jobs of a pipeline run when some are named (C217, C218).

use muster_coordinator::schedule;
use muster_pipeline::model::{Pipeline, When};

use super::error::CiError;

/// Keeps the named jobs, with `needs` also what they need. The second value are the manual and delayed ones among the
/// named: they are played.
///
/// # Errors
/// [`CiError::Usage`] for a name that no job has, with near ones.
pub(super) fn select(pipeline: Pipeline, names: &[String], needs: bool) -> Result<(Pipeline, Vec<String>), CiError> {
    if names.is_empty() {
        return Ok((pipeline, Vec::new()));
    }
    let mut part = schedule::select(&pipeline, names, needs)
        .map_err(|schedule::UnknownJob(name)| CiError::Usage(unknown(&pipeline, &name)))?;
    let named =
        |job: &muster_pipeline::model::Job| names.iter().any(|name| *name == job.name || *name == job.group_name);
    for job in part.jobs.iter_mut().filter(|job| named(job)) {
        // Named alone there is nothing that could fail before it.
        if !needs && job.when == When::OnFailure {
            job.when = When::Always;
        }
    }
    let waits = |job: &&muster_pipeline::model::Job| matches!(job.when, When::Manual | When::Delayed);
    let play = part.jobs.iter().filter(|job| named(job)).filter(waits).map(|job| job.name.clone()).collect();
    Ok((part, play))
}

fn unknown(pipeline: &Pipeline, name: &str) -> String {
    if pipeline.excluded.iter().any(|job| job.name == name) {
        return format!("rules keep the job `{name}` out of this pipeline; `muster ci explain '{name}'` says which");
    }
    let names = pipeline.jobs.iter().map(|job| job.name.as_str());
    let help = muster_pipeline::nearest::did_you_mean(name, names);
    let help = help.unwrap_or_else(|| "`muster ci list --all` shows all jobs".to_owned());
    format!("there is no job `{name}` in this pipeline; {help}")
}
