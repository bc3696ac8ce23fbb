//! Which jobs of a pipeline run when some are named (C217, C218).

use std::collections::HashSet;

use muster_coordinator::schedule;
use muster_pipeline::model::{AllowFailure, Job, Need, Pipeline, When};

use super::error::CiError;

/// Keeps the named jobs, with `needs` also what they need. The second value are the manual and delayed ones among the
/// named: they are played.
///
/// # Errors
/// [`CiError::Usage`] for a name that no job has, with near ones; [`CiError::NeedsManual`] if a named job would wait for a
/// manual one that is not named.
pub(super) fn select(pipeline: Pipeline, names: &[String], needs: bool) -> Result<(Pipeline, Vec<String>), CiError> {
    if names.is_empty() {
        return Ok((pipeline, Vec::new()));
    }
    let mut part = schedule::select(&pipeline, names, needs)
        .map_err(|schedule::UnknownJob(name)| CiError::Usage(unknown(&pipeline, &name)))?;
    let named = |job: &Job| names.iter().any(|name| *name == job.name || *name == job.group_name);
    for job in part.jobs.iter_mut().filter(|job| named(job)) {
        // Named alone there is nothing that could fail before it.
        if !needs && job.when == When::OnFailure {
            job.when = When::Always;
        }
    }
    if needs {
        check_manual_needs(&part, names)?;
    }
    let waits = |job: &&Job| matches!(job.when, When::Manual | When::Delayed);
    let play = part.jobs.iter().filter(|job| named(job)).filter(waits).map(|job| job.name.clone()).collect();
    Ok((part, play))
}

/// Refuses a selection in which a named job waits for ever: for a manual job that nobody starts (C234).
fn check_manual_needs(part: &Pipeline, names: &[String]) -> Result<(), CiError> {
    let is_named = |job: &Job| names.iter().any(|name| *name == job.name || *name == job.group_name);
    let mut open: Vec<&Job> = part.jobs.iter().filter(|job| is_named(job)).collect();
    let mut seen: HashSet<&str> = open.iter().map(|job| job.name.as_str()).collect();
    let mut manual: Vec<String> = Vec::new();
    while let Some(job) = open.pop() {
        for needed in part.jobs.iter().filter(|other| waits_for(job, other)) {
            if !seen.insert(&needed.name) {
                continue;
            }
            if needed.when == When::Manual {
                manual.push(needed.name.clone());
            } else {
                open.push(needed);
            }
        }
    }
    if manual.is_empty() {
        return Ok(());
    }
    manual.sort_unstable();
    Err(CiError::NeedsManual { named: names.to_vec(), manual })
}

/// Whether a job starts only after another one has run: one that it needs, or, if it goes by stages, one of an earlier
/// stage that is not allowed to be left out.
fn waits_for(job: &Job, other: &Job) -> bool {
    match &job.needs {
        Some(needs) => needs.iter().any(|need| matches!(need, Need::Job { name, .. } if *name == other.name)),
        None => {
            let may_be_left_out = other.when == When::Manual && other.allow_failure == AllowFailure::Yes;
            other.stage_index < job.stage_index && !may_be_left_out
        }
    }
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
