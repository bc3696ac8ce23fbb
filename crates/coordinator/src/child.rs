//! Reads and compiles the configuration of a child pipeline, outside the actor (docs/spec/pipeline-yaml.md, section 5.9).

use std::fs::File;

use muster_job::{FailureReason, ProjectId, Variable};
use muster_pipeline::context::{ChildSource, Context, Origin, PipelineSource};
use muster_pipeline::diagnostic::Severity;
use muster_pipeline::model::Pipeline;
use muster_pipeline::{Compiled, compile_child};

use crate::artifacts;
use crate::blobs::{ArtifactName, Blobs};
use crate::facts::SharedSources;
use crate::options::Limits;
use crate::store::JobRow;

/// Maximum number of configuration errors that are shown on the bridge.
const MAX_ERRORS_SHOWN: usize = 10;

/// Reason why a bridge has no pipeline.
#[derive(Debug)]
pub(crate) struct ChildError {
    pub(crate) reason: FailureReason,
    pub(crate) message: String,
}

/// Result of compiling a child configuration.
pub(crate) type ChildResult = Result<Box<ChildPipeline>, ChildError>;

/// A compiled child pipeline that can be created.
pub(crate) struct ChildPipeline {
    pub(crate) context: Context,
    pub(crate) compiled: Pipeline,
    pub(crate) sources: SharedSources,
}

/// One part of a child configuration: an entry of `trigger:include`, or a file in the archive of a job.
pub(crate) enum Text<Archive> {
    Entry(serde_json::Value),
    Artifact { path: String, job: String, archive: Archive, inputs: Vec<(String, serde_json::Value)> },
}

/// Returns the error for a child pipeline that could not be created.
pub(crate) fn failed(message: impl Into<String>) -> ChildError {
    ChildError { reason: FailureReason::DownstreamPipelineCreationFailed, message: message.into() }
}

/// Returns the context of a child pipeline: that of the parent with source `parent_pipeline` and the forwarded variables.
pub(crate) fn child_context(
    parent: &Context,
    row: &JobRow,
    pipeline_variables: Vec<Variable>,
    project: ProjectId,
) -> Context {
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

/// Runs `work` and turns a panic into an error. Without it, the bridge would wait indefinitely.
pub(crate) fn caught(work: impl FnOnce() -> ChildResult) -> ChildResult {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(failed("the compiler stopped at this configuration; this is a defect of the program, please report it"))
    })
}

/// Opens the archives that parts of the configuration are read from.
pub(crate) async fn opened(texts: Vec<Text<ArtifactName>>, blobs: &dyn Blobs) -> Result<Vec<Text<File>>, ChildError> {
    let mut opened = Vec::new();
    for text in texts {
        opened.push(match text {
            Text::Entry(entry) => Text::Entry(entry),
            Text::Artifact { path, job, archive, inputs } => {
                let archive = blobs.open(&archive).await.map_err(|error| failed(error.to_string()))?;
                let missing = || failed(format!("job `{job}` has no archive to read `{path}` from"));
                Text::Artifact { archive: archive.ok_or_else(missing)?, path, job, inputs }
            }
        });
    }
    Ok(opened)
}

/// Reads and compiles a child configuration. Blocks the thread.
pub(crate) fn compile(
    texts: Vec<Text<File>>,
    mut context: Context,
    sources: SharedSources,
    limits: &Limits,
) -> ChildResult {
    if context.tracked_paths.is_empty() {
        // A restored pipeline has no list of paths: read it again.
        context.tracked_paths = sources.paths(&Origin::Root).map_err(|error| failed(error.to_string()))?;
    }
    let entries = texts.into_iter().map(|text| read(text, limits)).collect::<Result<Vec<_>, _>>()?;
    let result = compile_child(&entries, &context, &*sources);
    match result {
        Compiled { pipeline: Some(compiled), .. } => Ok(Box::new(ChildPipeline { context, compiled, sources })),
        Compiled { not_created: Some(why), .. } => Err(failed(why.reason.to_string())),
        wrong => Err(failed(errors(&wrong))),
    }
}

fn read(text: Text<File>, limits: &Limits) -> Result<ChildSource, ChildError> {
    match text {
        Text::Entry(entry) => Ok(ChildSource::Entry(entry)),
        Text::Artifact { path, job, archive, inputs } => {
            let bytes = artifacts::read_entry(archive, &path, limits.child_config_bytes, &limits.unpack)
                .map_err(|why| failed(format!("cannot read the configuration from job `{job}`: {why}")))?;
            Ok(ChildSource::Artifact { name: format!("{path} from job {job}"), bytes, inputs })
        }
    }
}

/// Returns the errors of a configuration, one per line.
fn errors(compiled: &Compiled) -> String {
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
    if lines.is_empty() { "the child's configuration makes no pipeline".to_owned() } else { lines.join("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_of_its_bridge() {
        let error = caught(|| panic!("a defect")).err().expect("an error");
        assert_eq!(error.reason, FailureReason::DownstreamPipelineCreationFailed);
    }
}
