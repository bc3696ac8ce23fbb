//! Reads and compiles the configuration of a child pipeline, outside the actor (docs/spec/pipeline-yaml.md, section 5.9).

use std::fs::File;
use std::sync::Arc;

use muster_job::{FailureReason, JobId, ProjectId, Variable};
use muster_pipeline::context::{ChildSource, Context, Origin, PipelineSource};
use muster_pipeline::diagnostic::Severity;
use muster_pipeline::model::{BridgeTarget, ChildInclude, Pipeline, Work};
use muster_pipeline::{Compiled, compile_child};

use crate::artifacts;
use crate::blobs::{ArtifactName, Blobs};
use crate::facts::SharedSources;
use crate::options::Limits;
use crate::store::JobRow;
use crate::upstream::{Obstacle, UpstreamResolver};
use crate::variables;

const MAX_ERRORS_SHOWN: usize = 10;

#[derive(Debug)]
pub(crate) struct ChildError {
    pub(crate) reason: FailureReason,
    pub(crate) message: String,
}

pub(crate) type ChildResult = Result<Box<ChildPipeline>, ChildError>;

pub(crate) struct ChildPipeline {
    pub(crate) context: Context,
    pub(crate) compiled: Pipeline,
    pub(crate) sources: SharedSources,
}

pub(crate) struct ChildPlan {
    parts: Vec<ConfigPart<ArtifactName>>,
    context: Context,
    sources: SharedSources,
}

/// An entry of `trigger:include`, or a file in the archive of a job.
enum ConfigPart<Archive> {
    Entry(serde_json::Value),
    Artifact { path: String, job: String, archive: Archive, inputs: Vec<(String, serde_json::Value)> },
}

impl ChildPlan {
    pub(crate) fn new(bridge: JobId, upstream: &UpstreamResolver<'_>) -> Result<Self, ChildError> {
        let state = upstream.state;
        let row = state.jobs.get(&bridge).ok_or_else(|| missing("bridge"))?;
        let pipeline = state.pipelines.get(&row.pipeline).ok_or_else(|| missing("pipeline of the bridge"))?;
        let context = state.contexts.get(&row.pipeline).ok_or_else(|| missing("context of the pipeline"))?;
        let job = pipeline.compiled.jobs.get(row.job_index).ok_or_else(|| missing("configuration of the bridge"))?;
        let Work::Bridge(work) = &job.work else { return Err(failed("the job is not a bridge")) };
        let includes = match &work.target {
            BridgeTarget::Child(includes) => includes,
            BridgeTarget::Project { project, .. } | BridgeTarget::Mirror { project } => {
                return Err(ChildError {
                    reason: FailureReason::DownstreamBridgeProjectNotFound,
                    message: format!(
                        "failed to start a pipeline of project `{project}`: only child pipelines (`trigger:include`) are supported"
                    ),
                });
            }
        };
        let sources = state.sources.get(&row.pipeline).ok_or_else(|| missing("repository of the pipeline"))?;
        let parts = includes.iter().map(|include| part(row, include, upstream)).collect::<Result<_, _>>()?;
        let dotenv = upstream.outputs_for(row).map(|outputs| outputs.dotenv).map_err(|obstacle| match obstacle {
            Obstacle::Undispatchable(error) => ChildError { reason: error.reason, message: error.message },
            Obstacle::NotInMemory(pipeline) => failed(format!("failed to read pipeline {pipeline}")),
        })?;
        let forwarded = variables::forwarded(context, job, work, row.pipeline, &dotenv);
        let context = child_context(context, row, forwarded, pipeline.spec.project.id);
        Ok(Self { parts, context, sources: Arc::clone(sources) })
    }

    pub(crate) async fn compile(self, limits: Limits, blobs: &dyn Blobs) -> ChildResult {
        let Self { parts, context, sources } = self;
        let parts = open_archives(parts, blobs).await?;
        let work = move || compile(parts, context, sources, &limits);
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            // The caller handles the panic.
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(failed("the compiler was interrupted")),
        }
    }
}

fn part(
    bridge: &JobRow,
    include: &ChildInclude,
    upstream: &UpstreamResolver<'_>,
) -> Result<ConfigPart<ArtifactName>, ChildError> {
    match include {
        ChildInclude::Entry(entry) => Ok(ConfigPart::Entry(entry.clone())),
        ChildInclude::Artifact { path, job, inputs } => {
            let archive = upstream
                .state
                .newest_named(bridge.pipeline, job)
                .and_then(|row| upstream.state.artifact(row.id, artifacts::ARCHIVE))
                .filter(|archive| upstream.has_archive(archive))
                .map(artifacts::name_of)
                .ok_or_else(|| no_archive(job, path))?;
            Ok(ConfigPart::Artifact { path: path.clone(), job: job.clone(), archive, inputs: inputs.clone() })
        }
    }
}

fn no_archive(job: &str, path: &str) -> ChildError {
    failed(format!("failed to read `{path}`: job `{job}` has no archive"))
}

fn missing(dependency: &str) -> ChildError {
    failed(format!("the {dependency} no longer exists"))
}

pub(crate) fn failed(message: impl Into<String>) -> ChildError {
    ChildError { reason: FailureReason::DownstreamPipelineCreationFailed, message: message.into() }
}

/// Returns the context of a child pipeline: the parent's context with source `parent_pipeline` and the forwarded variables.
fn child_context(parent: &Context, row: &JobRow, pipeline_variables: Vec<Variable>, project: ProjectId) -> Context {
    let mut predefined = parent.predefined.clone();
    predefined.retain(|variable| !variable.key.starts_with("CI_UPSTREAM_"));
    for variable in &mut predefined {
        if variable.key == "CI_PIPELINE_SOURCE" {
            PipelineSource::ParentPipeline.as_str().clone_into(&mut variable.value);
        }
    }
    predefined.extend([
        Variable::public("CI_UPSTREAM_PIPELINE_ID", row.pipeline.to_string()),
        Variable::public("CI_UPSTREAM_PROJECT_ID", project.to_string()),
        Variable::public("CI_UPSTREAM_JOB_ID", row.id.to_string()),
    ]);
    Context {
        source: PipelineSource::ParentPipeline,
        predefined,
        pipeline_variables,
        inputs: Vec::new(),
        ..parent.clone()
    }
}

async fn open_archives(
    parts: Vec<ConfigPart<ArtifactName>>,
    blobs: &dyn Blobs,
) -> Result<Vec<ConfigPart<File>>, ChildError> {
    let mut opened = Vec::new();
    for part in parts {
        opened.push(match part {
            ConfigPart::Entry(entry) => ConfigPart::Entry(entry),
            ConfigPart::Artifact { path, job, archive, inputs } => {
                let archive = blobs.open(&archive).await.map_err(|error| failed(error.to_string()))?;
                ConfigPart::Artifact { archive: archive.ok_or_else(|| no_archive(&job, &path))?, path, job, inputs }
            }
        });
    }
    Ok(opened)
}

/// Reads and compiles a child configuration. Blocks the thread.
fn compile(parts: Vec<ConfigPart<File>>, mut context: Context, sources: SharedSources, limits: &Limits) -> ChildResult {
    if context.tracked_paths.is_empty() {
        // The context of a restored pipeline has no list of paths, so the list is read again.
        context.tracked_paths = sources.paths(&Origin::Root).map_err(|error| failed(error.to_string()))?;
    }
    let entries = parts.into_iter().map(|part| read(part, limits)).collect::<Result<Vec<_>, _>>()?;
    let result = compile_child(&entries, &context, &*sources);
    match result {
        Compiled { pipeline: Some(compiled), .. } => Ok(Box::new(ChildPipeline { context, compiled, sources })),
        Compiled { not_created: Some(not_created), .. } => Err(failed(not_created.reason.to_string())),
        compiled => Err(failed(error_lines(&compiled))),
    }
}

fn read(part: ConfigPart<File>, limits: &Limits) -> Result<ChildSource, ChildError> {
    match part {
        ConfigPart::Entry(entry) => Ok(ChildSource::Entry(entry)),
        ConfigPart::Artifact { path, job, archive, inputs } => {
            let bytes = artifacts::read_entry(archive, &path, limits.child_config_bytes, &limits.unpack)
                .map_err(|error| failed(format!("failed to read the configuration from job `{job}`: {error}")))?;
            Ok(ChildSource::Artifact { name: format!("{path} from job {job}"), bytes, inputs })
        }
    }
}

fn error_lines(compiled: &Compiled) -> String {
    let errors = compiled.diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
    let mut lines: Vec<String> = errors
        .map(|error| match error.span.and_then(|span| Some((span, compiled.sources.get(span.source)?))) {
            Some((span, source)) => format!("{}:{}:{}: {error}", source.name, span.line, span.column),
            None => error.to_string(),
        })
        .collect();
    let hidden = lines.len().saturating_sub(MAX_ERRORS_SHOWN);
    lines.truncate(MAX_ERRORS_SHOWN);
    if hidden > 0 {
        lines.push(format!("and {hidden} more"));
    }
    if lines.is_empty() { "the child configuration has no jobs".to_owned() } else { lines.join("\n") }
}
