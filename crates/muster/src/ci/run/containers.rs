//! Chooses whether jobs run in containers, and reports the choice.

use muster_builtins::find_engine;
use muster_pipeline::model::{Pipeline, ScriptWork, Work};

use super::super::args::{Executor, RunArgs};
use super::super::error::CiError;
use super::super::ui;

#[derive(Debug, Clone)]
pub(super) struct ContainerOptions {
    engine: String,
    jobs_without_image: JobsWithoutImage,
}

#[derive(Debug, Clone)]
enum JobsWithoutImage {
    RunOnHost,
    /// They run in a container of this image. `None` means that a job without an image fails.
    RunInImage(Option<String>),
}

impl ContainerOptions {
    pub(super) fn flags(&self) -> Vec<String> {
        let mut flags = vec!["--docker-host".to_owned(), self.engine.clone()];
        match &self.jobs_without_image {
            JobsWithoutImage::RunOnHost => flags.push("--host-without-image".to_owned()),
            JobsWithoutImage::RunInImage(Some(image)) => flags.extend(["--docker-image".to_owned(), image.clone()]),
            JobsWithoutImage::RunInImage(None) => {}
        }
        flags
    }
}

/// Chooses the engine, and prints notes about the choice.
///
/// `None` means that all jobs run directly on this machine, or on external runners.
pub(super) async fn choose_engine(args: &RunArgs, pipeline: &Pipeline) -> Result<Option<ContainerOptions>, CiError> {
    let jobs = Jobs::of(pipeline);
    match args.executor {
        Executor::External => Ok(None),
        Executor::Host => {
            jobs.report_ignored(None);
            Ok(None)
        }
        Executor::Docker => {
            if let (Some(first), None) = (jobs.without_image.first(), &args.image) {
                return Err(CiError::Failed(format!(
                    "job `{first}` has no `image:`; add one to the job, or set the image of such jobs with `--image`"
                )));
            }
            let found = find_engine().await;
            let engine = found.map_err(|error| {
                CiError::Failed(format!(
                    "{error}; start an engine, set DOCKER_HOST, or use `--executor host` to run jobs directly on this machine"
                ))
            })?;
            ui::note(&format!("jobs run in containers of {engine}"));
            Ok(Some(ContainerOptions { engine, jobs_without_image: JobsWithoutImage::RunInImage(args.image.clone()) }))
        }
        // A child pipeline may need an engine: its images are not known yet.
        Executor::Auto if jobs.with_image.is_empty() && !jobs.has_child_pipelines => {
            jobs.report_ignored(None);
            Ok(None)
        }
        Executor::Auto => match find_engine().await {
            Ok(engine) => {
                ui::note(&format!(
                    "jobs with `image:` run in containers of {engine}, all others directly on this machine; \
                     `--executor host` runs all jobs directly"
                ));
                jobs.report_services_without_image();
                Ok(Some(ContainerOptions { engine, jobs_without_image: JobsWithoutImage::RunOnHost }))
            }
            Err(error) => {
                jobs.report_ignored(Some(&error.to_string()));
                Ok(None)
            }
        },
    }
}

#[derive(Debug, Default)]
struct Jobs {
    with_image: Vec<String>,
    without_image: Vec<String>,
    with_services: Vec<String>,
    services_without_image: Vec<String>,
    has_child_pipelines: bool,
}

impl Jobs {
    fn of(pipeline: &Pipeline) -> Self {
        let mut jobs = Self::default();
        for job in &pipeline.jobs {
            match &job.work {
                Work::Script(work) => jobs.add(ui::plain(&job.name), work),
                Work::Bridge(_) => jobs.has_child_pipelines = true,
            }
        }
        jobs
    }

    fn add(&mut self, name: String, work: &ScriptWork) {
        let has_image = work.image.is_some();
        if !work.services.is_empty() {
            self.with_services.push(name.clone());
            if !has_image {
                self.services_without_image.push(name.clone());
            }
        }
        if has_image { &mut self.with_image } else { &mut self.without_image }.push(name);
    }

    /// Prints which settings are ignored because no job runs in a container. `reason` says why no engine could be used,
    /// if one was needed.
    fn report_ignored(&self, reason: Option<&str>) {
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        if let Some(jobs) = first_and_count(&self.with_image) {
            ui::note(&format!("`image:` of job {jobs} is ignored: jobs run directly on this machine{reason}"));
        }
        if let Some(jobs) = first_and_count(&self.with_services) {
            ui::note(&format!("`services:` of job {jobs} are ignored: jobs run directly on this machine"));
        }
    }

    fn report_services_without_image(&self) {
        if let Some(jobs) = first_and_count(&self.services_without_image) {
            ui::note(&format!(
                "`services:` of job {jobs} are ignored: jobs without `image:` run directly on this machine"
            ));
        }
    }
}

/// Returns the first name, and the number of the others. `None` if there are no names.
fn first_and_count(names: &[String]) -> Option<String> {
    let (first, others) = names.split_first()?;
    let more = if others.is_empty() { String::new() } else { format!(" (and {} more)", others.len()) };
    Some(format!("`{first}`{more}"))
}
