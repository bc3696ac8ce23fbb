//! Selects from a pipeline the jobs that a user named.

use std::collections::{BTreeSet, HashMap};

use muster_pipeline::model::{Need, Pipeline};

/// Error for a name that no job of the pipeline has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this pipeline has no job `{0}`")]
pub struct UnknownJob(pub String);

/// Returns the pipeline with only the named jobs (docs/spec/pipeline-yaml.md, case C217).
///
/// A name is the full name of a job, or the name that all instances of a parallel job share. `with_needs` also keeps all jobs that
/// the named ones need, directly or indirectly; for a job without `needs`, these are all jobs of earlier stages. Needs for jobs that
/// are not kept are dropped.
///
/// To run the manual jobs among the named ones, put the full names into [`super::PipelineOptions::play`] (case C218).
///
/// # Errors
/// [`UnknownJob`] for the first name that no job has.
pub fn select(pipeline: &Pipeline, names: &[String], with_needs: bool) -> Result<Pipeline, UnknownJob> {
    let mut selected: BTreeSet<usize> = BTreeSet::new();
    for name in names {
        let named = pipeline.jobs.iter().enumerate().filter(|(_, job)| job.name == *name || job.group_name == *name);
        let mut found = named.map(|(job_index, _)| job_index).peekable();
        if found.peek().is_none() {
            return Err(UnknownJob(name.clone()));
        }
        selected.extend(found);
    }
    if with_needs {
        add_needs(pipeline, &mut selected);
    }
    let mut subset = pipeline.clone();
    let is_selected = |job_index: &usize| selected.contains(job_index);
    let jobs = pipeline.jobs.iter().enumerate().filter(|(job_index, _)| is_selected(job_index)).map(|(_, job)| job);
    let selected_names: BTreeSet<&str> = jobs.clone().map(|job| job.name.as_str()).collect();
    subset.jobs = jobs.clone().cloned().collect();
    for job in &mut subset.jobs {
        if let Some(needs) = &mut job.needs {
            needs.retain(|need| !matches!(need, Need::Job { name, .. } if !selected_names.contains(name.as_str())));
        }
        if let Some(dependencies) = &mut job.dependencies {
            dependencies.retain(|name| selected_names.contains(name.as_str()));
        }
    }
    Ok(subset)
}

/// Adds the jobs that the selected jobs need, directly or indirectly. Takes time linear in jobs and needs.
fn add_needs(pipeline: &Pipeline, selected: &mut BTreeSet<usize>) {
    let indexes: HashMap<&str, usize> =
        pipeline.jobs.iter().enumerate().map(|(job_index, job)| (job.name.as_str(), job_index)).collect();
    let mut unprocessed: Vec<usize> = selected.iter().copied().collect();
    // All jobs of the stages before this one are already in `selected`.
    let mut selected_before = 0;
    while let Some(job_index) = unprocessed.pop() {
        let Some(job) = pipeline.jobs.get(job_index) else { continue };
        let mut add = |job_index: usize| {
            if selected.insert(job_index) {
                unprocessed.push(job_index);
            }
        };
        match &job.needs {
            Some(needs) => needs.iter().for_each(|need| {
                if let Need::Job { name, .. } = need
                    && let Some(&needed) = indexes.get(name.as_str())
                {
                    add(needed);
                }
            }),
            None if job.stage_index > selected_before => {
                let earlier = pipeline.jobs.iter().enumerate().filter(|(_, other)| other.stage_index < job.stage_index);
                earlier.for_each(|(job_index, _)| add(job_index));
                selected_before = job.stage_index;
            }
            None => {}
        }
    }
}
