//! Collects the outputs of earlier jobs for a job: archives and dotenv variables.

use muster_job::{FailureReason, PipelineId};
use muster_pipeline::expand::{Unknown, expand_text};
use muster_pipeline::layers;
use muster_pipeline::model::Need;

use crate::artifacts;
use crate::blobs::Blobs;
use crate::clock::Timestamp;
use crate::payload::Archive;
use crate::state::CoordinatorState;
use crate::store::{ArtifactRow, JobRow, PipelineRow};

/// Reason why a job fails instead of being assigned to a runner.
pub(crate) struct Undispatchable {
    pub(crate) reason: FailureReason,
    pub(crate) message: String,
}

impl Undispatchable {
    pub(crate) fn missing(dependency: &str) -> Self {
        Self { reason: FailureReason::SchedulerFailure, message: format!("the {dependency} no longer exists") }
    }
}

/// Reason why [`UpstreamResolver`] cannot return the outputs for a job.
pub(crate) enum Obstacle {
    Undispatchable(Undispatchable),
    /// The job needs artifacts of this pipeline, which must be read into memory first.
    NotInMemory(PipelineId),
}

impl From<Undispatchable> for Obstacle {
    fn from(undispatchable: Undispatchable) -> Self {
        Self::Undispatchable(undispatchable)
    }
}

#[derive(Default)]
pub(crate) struct UpstreamOutputs {
    pub(crate) archives: Vec<Archive>,
    pub(crate) dotenv: Vec<(String, String)>,
    /// Messages about outputs that no longer exist. Empty unless [`UpstreamResolver::skips_missing`] is set.
    pub(crate) missing: Vec<String>,
}

pub(crate) struct UpstreamResolver<'a> {
    pub(crate) state: &'a CoordinatorState,
    pub(crate) blobs: &'a dyn Blobs,
    /// Time when the job is assigned: the current time or, for a job of a stored pipeline, the time of its start.
    /// Archives that have expired by then are not used.
    pub(crate) now: Timestamp,
    /// Whether outputs that existed at `now`, but no longer exist, are skipped with a message. Otherwise, they are an error if the job
    /// requires them.
    pub(crate) skips_missing: bool,
    /// Returns whether a pipeline is in memory, or does not exist.
    pub(crate) is_loaded_or_absent: Box<dyn Fn(PipelineId) -> bool + 'a>,
}

impl UpstreamResolver<'_> {
    /// Returns the archives and variables that the job of `row` gets from earlier jobs.
    ///
    /// docs/spec/pipeline-yaml.md, section 6, "Dependency set", describes which jobs these are.
    pub(crate) fn outputs_for(&self, row: &JobRow) -> Result<UpstreamOutputs, Obstacle> {
        let pipeline = self.state.pipelines.get(&row.pipeline).ok_or_else(|| Undispatchable::missing("pipeline"))?;
        let job = pipeline
            .compiled
            .jobs
            .get(row.job_index)
            .ok_or_else(|| Undispatchable::missing("configuration of the job"))?;
        let is_dependency =
            |name: &str| job.dependencies.as_ref().is_none_or(|names| names.iter().any(|listed| listed == name));
        let mut upstream = UpstreamOutputs::default();
        match (&job.needs, &job.dependencies) {
            (Some(needs), _) => {
                for need in needs {
                    let added = match self.producer_of_need(need, row, pipeline) {
                        Ok(Some(producer)) if is_dependency(&producer.name) => {
                            self.add_producer(&mut upstream, producer, true)
                        }
                        Ok(_) => Ok(()),
                        Err(obstacle) => Err(obstacle),
                    };
                    self.skip_missing(&mut upstream, added)?;
                }
            }
            (None, dependencies) => {
                for producer in self.state.producers(row.pipeline) {
                    let earlier = pipeline
                        .compiled
                        .jobs
                        .get(producer.job_index)
                        .is_some_and(|other| other.stage_index < job.stage_index);
                    if earlier && is_dependency(&producer.name) {
                        let added = self.add_producer(&mut upstream, producer, dependencies.is_some());
                        self.skip_missing(&mut upstream, added)?;
                    }
                }
            }
        }
        Ok(upstream)
    }

    /// Converts the error of a missing output to a message, if such outputs are skipped.
    fn skip_missing(&self, upstream: &mut UpstreamOutputs, added: Result<(), Obstacle>) -> Result<(), Obstacle> {
        match added {
            Err(Obstacle::Undispatchable(failure)) if self.skips_missing => upstream.missing.push(failure.message),
            other => return other,
        }
        Ok(())
    }

    /// Returns the job that a need refers to. `None` if the need does not request artifacts, or is optional and its job does not exist.
    fn producer_of_need(&self, need: &Need, row: &JobRow, pipeline: &PipelineRow) -> Result<Option<&JobRow>, Obstacle> {
        let missing = |message: String| Undispatchable { reason: FailureReason::MissingDependencyFailure, message };
        match need {
            Need::Job { artifacts: false, .. }
            | Need::Project { artifacts: false, .. }
            | Need::Pipeline { artifacts: false, .. } => Ok(None),
            Need::Job { name, .. } => Ok(self.state.newest_named(row.pipeline, name)),
            Need::Pipeline { pipeline: id, job, .. } => {
                let context = self.state.contexts.get(&row.pipeline);
                let variables = context.map_or(&[][..], |context| &context.pipeline_variables);
                let lookup = |name: &str| {
                    let compiled = pipeline.compiled.jobs.get(row.job_index)?;
                    let value = layers::value(variables, name).or_else(|| layers::value(&compiled.variables, name));
                    value.map(ToOwned::to_owned)
                };
                let id = expand_text(id, &lookup, Unknown::Keep);
                let parsed_id = id.parse::<PipelineId>().ok();
                if let Some(pipeline) = parsed_id.filter(|pipeline| !(self.is_loaded_or_absent)(*pipeline)) {
                    return Err(Obstacle::NotInMemory(pipeline));
                }
                let producer = parsed_id.and_then(|id| self.state.newest_named(id, job));
                let message =
                    || format!("the job needs artifacts of job `{job}` in pipeline `{id}`, which does not exist");
                producer.map(Some).ok_or_else(|| missing(message()).into())
            }
            Need::Project { project, job, .. } => Err(missing(format!(
                "the job needs artifacts of job `{job}` in project `{project}`, whose pipelines are not on this coordinator"
            ))
            .into()),
        }
    }

    /// Adds the archive and the variables of `producer`.
    ///
    /// An archive that has expired or was deleted is an error if the job lists the producer in `needs` or
    /// `dependencies` (docs/spec/pipeline-yaml.md, case C187). With [`Self::skips_missing`], a deleted archive that had
    /// not expired at [`Self::now`] is always an error, so that the archive is reported as missing.
    fn add_producer(&self, upstream: &mut UpstreamOutputs, producer: &JobRow, is_listed: bool) -> Result<(), Obstacle> {
        for (key, value) in &producer.detail.dotenv {
            upstream.dotenv.retain(|(known, _)| known != key);
            upstream.dotenv.push((key.clone(), value.clone()));
        }
        let Some(archive) = self.state.artifact(producer.id, artifacts::ARCHIVE) else { return Ok(()) };
        if self.has_archive(archive) {
            upstream.archives.push(Archive {
                job: producer.id,
                name: producer.name.clone(),
                filename: archive.filename.clone(),
                size: archive.size,
            });
        } else if is_listed || self.skips_missing && !self.has_expired(archive) {
            let message = missing_archive(&producer.name);
            return Err(Undispatchable { reason: FailureReason::MissingDependencyFailure, message }.into());
        }
        Ok(())
    }

    /// Returns whether an archive is neither expired, nor deleted, nor known to be missing.
    pub(crate) fn has_archive(&self, archive: &ArtifactRow) -> bool {
        !archive.deleted && !self.has_expired(archive) && !self.blobs.is_lost(&artifacts::name_of(archive))
    }

    fn has_expired(&self, archive: &ArtifactRow) -> bool {
        archive.expires_at.is_some_and(|at| at <= self.now)
    }
}

pub(crate) fn missing_archive(producer: &str) -> String {
    format!("the artifacts of job `{producer}` have expired or were deleted; retry that job")
}
