//! Selects the jobs of a pipeline that the command line names.

use std::collections::HashSet;

use muster_coordinator::schedule;
use muster_pipeline::model::{AllowFailure, Job, Need, Pipeline, When};

use super::args::RunArgs;
use super::error::CiError;

/// Returns the pipeline with only the selected jobs, and the names of its manual and delayed jobs to start immediately.
///
/// # Errors
/// [`CiError::NeedsManual`] or [`CiError::Usage`] if the arguments do not fit this pipeline.
pub(super) fn select(pipeline: Pipeline, args: &RunArgs) -> Result<(Pipeline, Vec<String>), CiError> {
    let manual = args.manual.iter().map(|name| manual_jobs(&pipeline, name)).collect::<Result<Vec<_>, _>>()?.concat();
    let mut names = args.jobs.clone();
    if let Some(stage) = &args.stage {
        names.extend(jobs_of_stage(&pipeline, stage)?);
    }
    if names.is_empty() && args.stage.is_none() {
        return match (args.needs, args.only_needs) {
            (false, false) => Ok((pipeline, manual)),
            _ => Err(CiError::Usage("`--needs` and `--only-needs` require a job or `--stage`".to_owned())),
        };
    }
    names.extend(args.manual.iter().cloned());
    let with_needs = args.needs || args.only_needs;
    let (mut selected, started_by_user) = select_named(&pipeline, &names, with_needs)?;
    if args.only_needs {
        let is_named = |job: &Job| names.iter().any(|name| *name == job.name || *name == job.group_name);
        let is_needed = |job: &&Job| !is_named(job) || manual.contains(&job.name);
        let needed: Vec<String> = selected.jobs.iter().filter(is_needed).map(|job| job.name.clone()).collect();
        selected = schedule::select(&selected, &needed, false)
            .map_err(|schedule::UnknownJob(name)| CiError::Usage(unknown_job(&selected, &name)))?;
    }
    Ok((selected, started_by_user))
}

/// Returns the jobs of a stage except manual jobs, which run only if named.
fn jobs_of_stage(pipeline: &Pipeline, stage: &str) -> Result<Vec<String>, CiError> {
    let jobs: Vec<&Job> = pipeline.jobs.iter().filter(|job| job.stage == stage).collect();
    if jobs.is_empty() {
        let mut stages: Vec<&str> = pipeline.jobs.iter().map(|job| job.stage.as_str()).collect();
        stages.dedup();
        let help = muster_pipeline::suggest::did_you_mean(stage, stages.iter().copied());
        let help = help.unwrap_or_else(|| format!("the stages with jobs are {}", stages.join(", ")));
        return Err(CiError::Usage(format!("no job of this pipeline is in the stage `{stage}`; {help}")));
    }
    Ok(jobs.into_iter().filter(|job| job.when != When::Manual).map(|job| job.name.clone()).collect())
}

/// Returns the manual or delayed job of this name, or the jobs of the matrix of this name.
fn manual_jobs(pipeline: &Pipeline, name: &str) -> Result<Vec<String>, CiError> {
    let matching: Vec<&Job> = pipeline.jobs.iter().filter(|job| job.name == name || job.group_name == name).collect();
    match matching.as_slice() {
        [] => Err(CiError::Usage(unknown_job(pipeline, name))),
        jobs if jobs.iter().all(|job| matches!(job.when, When::Manual | When::Delayed)) => {
            Ok(jobs.iter().map(|job| job.name.clone()).collect())
        }
        _ => Err(CiError::Usage(format!("`--manual {name}`: the job is not manual; omit the flag"))),
    }
}

/// Like [`select`] for these names. `with_needs` also selects the jobs that they need.
fn select_named(pipeline: &Pipeline, names: &[String], with_needs: bool) -> Result<(Pipeline, Vec<String>), CiError> {
    let mut selected = schedule::select(pipeline, names, with_needs)
        .map_err(|schedule::UnknownJob(name)| CiError::Usage(unknown_job(pipeline, &name)))?;
    let is_named = |job: &Job| names.iter().any(|name| *name == job.name || *name == job.group_name);
    for job in selected.jobs.iter_mut().filter(|job| is_named(job)) {
        // Earlier jobs do not run, so no failure can trigger this job.
        if !with_needs && job.when == When::OnFailure {
            job.when = When::Always;
        }
    }
    if with_needs {
        check_manual_needs(&selected, names)?;
    }
    let is_started_by_user = |job: &&Job| matches!(job.when, When::Manual | When::Delayed);
    let started_by_user = selected
        .jobs
        .iter()
        .filter(|job| is_named(job))
        .filter(is_started_by_user)
        .map(|job| job.name.clone())
        .collect();
    Ok((selected, started_by_user))
}

/// Rejects a selection in which a named job would wait forever for a manual job that is not named.
fn check_manual_needs(selected: &Pipeline, names: &[String]) -> Result<(), CiError> {
    let is_named = |job: &Job| names.iter().any(|name| *name == job.name || *name == job.group_name);
    let mut pending: Vec<&Job> = selected.jobs.iter().filter(|job| is_named(job)).collect();
    let mut seen: HashSet<&str> = pending.iter().map(|job| job.name.as_str()).collect();
    let mut manual: Vec<String> = Vec::new();
    while let Some(job) = pending.pop() {
        for needed in selected.jobs.iter().filter(|other| waits_for(job, other)) {
            if !seen.insert(&needed.name) {
                continue;
            }
            if needed.when == When::Manual {
                manual.push(needed.name.clone());
            } else {
                pending.push(needed);
            }
        }
    }
    if manual.is_empty() {
        return Ok(());
    }
    manual.sort_unstable();
    Err(CiError::NeedsManual { named: names.to_vec(), manual })
}

/// Returns whether `job` waits for `other`. Without `needs`, a job waits for every job of an earlier stage, except
/// manual jobs that may fail.
fn waits_for(job: &Job, other: &Job) -> bool {
    match &job.needs {
        Some(needs) => needs.iter().any(|need| matches!(need, Need::Job { name, .. } if *name == other.name)),
        None => {
            let is_optional = other.when == When::Manual && other.allow_failure == AllowFailure::Yes;
            other.stage_index < job.stage_index && !is_optional
        }
    }
}

fn unknown_job(pipeline: &Pipeline, name: &str) -> String {
    if pipeline.excluded.iter().any(|job| job.name == name) {
        return format!(
            "rules exclude the job `{name}` from this pipeline; run `muster ci explain '{name}'` for details"
        );
    }
    let names = pipeline.jobs.iter().map(|job| job.name.as_str());
    let help = muster_pipeline::suggest::did_you_mean(name, names);
    let help = help.unwrap_or_else(|| "`muster ci list --all` lists all jobs".to_owned());
    format!("this pipeline has no job `{name}`; {help}")
}
