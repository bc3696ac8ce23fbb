//! Which jobs of a pipeline run when some are named (C217, C218).

use std::collections::HashSet;

use muster_coordinator::schedule;
use muster_pipeline::model::{AllowFailure, Job, Need, Pipeline, When};

use super::args::RunArgs;
use super::error::CiError;

/// Keeps the jobs that are asked for. The second value are the manual and delayed ones among the named: they are played.
///
/// # Errors
/// [`CiError::Usage`] for a name that no job has, with near ones; [`CiError::NeedsManual`] if a named job would wait for a
/// manual one that is not named.
pub(super) fn select(pipeline: Pipeline, args: &RunArgs) -> Result<(Pipeline, Vec<String>), CiError> {
    let manual = args.manual.iter().map(|name| played(&pipeline, name)).collect::<Result<Vec<_>, _>>()?.concat();
    let mut names = args.jobs.clone();
    if let Some(stage) = &args.stage {
        names.extend(of_stage(&pipeline, stage)?);
    }
    if names.is_empty() && args.stage.is_none() {
        return match (args.needs, args.only_needs) {
            (false, false) => Ok((pipeline, manual)),
            _ => Err(CiError::Usage("`--needs` and `--only-needs` are for named jobs, or for `--stage`".to_owned())),
        };
    }
    names.extend(args.manual.iter().cloned());
    let needs = args.needs || args.only_needs;
    let (mut part, play) = named(&pipeline, &names, needs)?;
    if args.only_needs {
        let is_named = |job: &Job| names.iter().any(|name| *name == job.name || *name == job.group_name);
        let is_left = |job: &&Job| !is_named(job) || args.manual.contains(&job.name);
        let left: Vec<String> = part.jobs.iter().filter(is_left).map(|job| job.name.clone()).collect();
        part = schedule::select(&part, &left, false)
            .map_err(|schedule::UnknownJob(name)| CiError::Usage(unknown(&part, &name)))?;
    }
    Ok((part, play))
}

/// The jobs of a stage that run without being named.
fn of_stage(pipeline: &Pipeline, stage: &str) -> Result<Vec<String>, CiError> {
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

/// The instances of a manual job.
fn played(pipeline: &Pipeline, name: &str) -> Result<Vec<String>, CiError> {
    let fitting: Vec<&Job> = pipeline.jobs.iter().filter(|job| job.name == name || job.group_name == name).collect();
    match fitting.as_slice() {
        [] => Err(CiError::Usage(unknown(pipeline, name))),
        jobs if jobs.iter().all(|job| matches!(job.when, When::Manual | When::Delayed)) => {
            Ok(jobs.iter().map(|job| job.name.clone()).collect())
        }
        _ => Err(CiError::Usage(format!("`--manual {name}`: the job is not manual; it runs without being named"))),
    }
}

/// Keeps the named jobs, with `needs` also what they need.
fn named(pipeline: &Pipeline, names: &[String], needs: bool) -> Result<(Pipeline, Vec<String>), CiError> {
    let mut part = schedule::select(pipeline, names, needs)
        .map_err(|schedule::UnknownJob(name)| CiError::Usage(unknown(pipeline, &name)))?;
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
    let help = muster_pipeline::suggest::did_you_mean(name, names);
    let help = help.unwrap_or_else(|| "`muster ci list --all` shows all jobs".to_owned());
    format!("there is no job `{name}` in this pipeline; {help}")
}
