//! Which jobs of a pipeline run when some are named (C217, C218).

use std::collections::BTreeSet;

use muster_pipeline::model::{Job, Need, Pipeline, When};

use super::error::CiError;

/// Keeps the named jobs, with `needs` also what they need, and starts manual and delayed ones among them at once.
///
/// A name stands for the job of this full name, else for all jobs of the group (`test` for `test 1/3` and `test: [a]`).
/// What a job needs is its `needs`, or all jobs of earlier stages where it has none. Needs on jobs that do not run are
/// taken out: their artifacts are not there, and the job runs without them.
///
/// # Errors
/// [`CiError::Usage`] for a name that no job has, with near ones.
pub(super) fn select(pipeline: &mut Pipeline, names: &[String], needs: bool) -> Result<(), CiError> {
    if names.is_empty() {
        return Ok(());
    }
    let named = named(pipeline, names)?;
    let mut chosen = named.clone();
    if needs {
        let mut open: Vec<String> = named.iter().cloned().collect();
        while let Some(name) = open.pop() {
            let Some(job) = pipeline.jobs.iter().find(|job| job.name == name) else { continue };
            open.extend(needs_of(pipeline, job).into_iter().filter(|needed| chosen.insert(needed.clone())));
        }
    }
    pipeline.jobs.retain(|job| chosen.contains(&job.name));
    for job in &mut pipeline.jobs {
        if let Some(needs) = &mut job.needs {
            needs.retain(|need| !matches!(need, Need::Job { name, .. } if !chosen.contains(name)));
        }
        if let Some(dependencies) = &mut job.dependencies {
            dependencies.retain(|name| chosen.contains(name));
        }
        if matches!(job.when, When::Manual | When::Delayed) {
            job.when = When::OnSuccess;
            job.start_in = None;
        } else if named.contains(&job.name) && !needs && job.when == When::OnFailure {
            // Named alone there is nothing that could fail before it.
            job.when = When::Always;
        }
    }
    Ok(())
}

/// The full names that `names` stand for.
fn named(pipeline: &Pipeline, names: &[String]) -> Result<BTreeSet<String>, CiError> {
    let mut found = BTreeSet::new();
    for name in names {
        let by_name = pipeline.jobs.iter().filter(|job| &job.name == name);
        let mut fitting: Vec<_> = by_name.map(|job| job.name.clone()).collect();
        if fitting.is_empty() {
            let by_group = pipeline.jobs.iter().filter(|job| &job.group_name == name);
            fitting = by_group.map(|job| job.name.clone()).collect();
        }
        if fitting.is_empty() {
            return Err(CiError::Usage(unknown(pipeline, name)));
        }
        found.extend(fitting);
    }
    Ok(found)
}

fn unknown(pipeline: &Pipeline, name: &str) -> String {
    if pipeline.excluded.iter().any(|job| job.name == name) {
        return format!("rules keep the job `{name}` out of this pipeline; `muster ci explain '{name}'` says which");
    }
    let names = pipeline.jobs.iter().map(|job| job.name.as_str());
    match muster_pipeline::nearest::nearest(name, names) {
        Some(near) => format!("there is no job `{name}` in this pipeline; did you mean `{near}`?"),
        None => format!("there is no job `{name}` in this pipeline; `muster ci list --all` shows all"),
    }
}

/// The jobs that one job waits for.
fn needs_of(pipeline: &Pipeline, job: &Job) -> Vec<String> {
    match &job.needs {
        Some(needs) => needs
            .iter()
            .filter_map(|need| match need {
                Need::Job { name, .. } => Some(name.clone()),
                Need::Project { .. } | Need::Pipeline { .. } => None,
            })
            .collect(),
        None => {
            // Manual jobs run only when named, or needed by name.
            let earlier = pipeline.jobs.iter().filter(|other| other.stage_index < job.stage_index);
            let waited = earlier.filter(|other| !matches!(other.when, When::Manual | When::OnFailure));
            waited.map(|other| other.name.clone()).collect()
        }
    }
}
