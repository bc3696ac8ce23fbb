//! Bridges: from `trigger` to a child pipeline (pipeline-yaml 5.9).
//!
//! The child's configuration is read and compiled on a thread of its own; the result comes back to the actor, which
//! creates the pipeline or fails the bridge. After a crash in between, the engine asks for the child again.

use std::path::PathBuf;
use std::sync::Arc;

use muster_job::{FailureReason, JobId, PipelineId, ProjectId, Variable};
use muster_pipeline::context::{ChildSource, Context, Origin, PipelineSource};
use muster_pipeline::diagnostic::Severity;
use muster_pipeline::model::{BridgeTarget, ChildInclude, Pipeline, Work};
use muster_pipeline::{Compiled, compile_child};
use tokio::task::JoinError;

use crate::actor::Actor;
use crate::artifacts;
use crate::facts::{NewPipeline, Parent, SharedSources};
use crate::options::Limits;
use crate::schedule::Event;
use crate::store::JobRow;
use crate::timers::Timer;
use crate::variables;

/// How many errors of a child's configuration are shown at its bridge.
const ERRORS_SHOWN: usize = 10;

/// Why a bridge has no pipeline.
#[derive(Debug)]
pub(crate) struct ChildError {
    reason: FailureReason,
    message: String,
}

/// What became of a child's configuration.
pub(crate) type ChildResult = Result<Box<ChildPipeline>, ChildError>;

/// A child that can be created.
pub(crate) struct ChildPipeline {
    context: Context,
    compiled: Pipeline,
    sources: SharedSources,
}

/// One text of a child, as far as the actor knows it.
enum Text {
    Entry(serde_json::Value),
    Artifact { path: String, job: String, archive: PathBuf, inputs: Vec<(String, serde_json::Value)> },
}

fn failed(message: impl Into<String>) -> ChildError {
    ChildError { reason: FailureReason::DownstreamPipelineCreationFailed, message: message.into() }
}

impl Actor {
    /// Starts what the bridges of the last batch ask for.
    pub(crate) fn start_bridges(&mut self) {
        for bridge in std::mem::take(&mut self.bridges) {
            if !self.has_sources(bridge) {
                self.sourceless.insert(bridge);
                self.timers.add(self.now() + self.options.limits.sources_wait, Timer::Sources(bridge));
                continue;
            }
            match self.plan(bridge) {
                Ok((texts, context, sources)) => {
                    let limits = self.options.limits.clone();
                    let work = move || compile(texts, context, sources, &limits);
                    self.children.spawn_blocking(move || (bridge, caught(work)))
                }
                Err(error) => self.children.spawn(async move { (bridge, Err(error)) }),
            };
        }
    }

    fn has_sources(&self, bridge: JobId) -> bool {
        self.world.jobs.get(&bridge).is_none_or(|row| self.world.sources.contains_key(&row.pipeline))
    }

    /// Gives a pipeline of an earlier process its files back; bridges that waited for them go on.
    pub(crate) fn attach_sources(&mut self, pipeline: PipelineId, sources: &SharedSources) {
        self.world.attach(pipeline, sources);
        self.bridges.extend(std::mem::take(&mut self.sourceless));
    }

    /// The files of a bridge's pipeline should be there by now.
    pub(crate) fn sources_over(&mut self, bridge: JobId) {
        if self.sourceless.remove(&bridge) {
            let error =
                failed("the pipeline is from an earlier process, and its repository was not attached again in time");
            self.child_compiled(Ok((bridge, Err(error))));
        }
    }

    /// What a bridge's child is made from.
    fn plan(&self, bridge: JobId) -> Result<(Vec<Text>, Context, SharedSources), ChildError> {
        let row = self.world.jobs.get(&bridge).ok_or_else(|| failed("the bridge is gone"))?;
        let pipeline = self.world.pipelines.get(&row.pipeline).ok_or_else(|| failed("the pipeline is gone"))?;
        let context = self.world.contexts.get(&row.pipeline).ok_or_else(|| failed("the pipeline's context is gone"))?;
        let job = pipeline.compiled.jobs.get(row.place).ok_or_else(|| failed("the bridge's configuration is gone"))?;
        let Work::Bridge(work) = &job.work else { return Err(failed("the job is not a bridge")) };
        let includes = match &work.target {
            BridgeTarget::Child(includes) => includes,
            BridgeTarget::Project { project, .. } | BridgeTarget::Mirror { project } => {
                return Err(ChildError {
                    reason: FailureReason::DownstreamBridgeProjectNotFound,
                    message: format!(
                        "project `{project}` has no pipelines here: only child pipelines (`trigger:include`) are run"
                    ),
                });
            }
        };
        let sources =
            self.world.sources.get(&row.pipeline).ok_or_else(|| failed("the pipeline's repository is gone"))?;
        let texts = includes.iter().map(|include| self.text(row, include)).collect::<Result<_, _>>()?;
        let dotenv = self
            .inherited(row)
            .map(|inherited| inherited.dotenv)
            .map_err(|unfit| ChildError { reason: unfit.reason, message: unfit.message })?;
        let forwarded = variables::forwarded(context, job, work, row.pipeline, &dotenv);
        Ok((texts, child_context(context, row, forwarded, pipeline.spec.project.id), Arc::clone(sources)))
    }

    fn text(&self, bridge: &JobRow, include: &ChildInclude) -> Result<Text, ChildError> {
        match include {
            ChildInclude::Entry(entry) => Ok(Text::Entry(entry.clone())),
            ChildInclude::Artifact { path, job, inputs } => {
                let archive = self
                    .world
                    .newest_named(bridge.pipeline, job)
                    .and_then(|row| self.world.artifact(row.id, artifacts::ARCHIVE))
                    .and_then(|archive| self.archive_path(archive))
                    .ok_or_else(|| failed(format!("job `{job}` has no archive to read `{path}` from")))?;
                Ok(Text::Artifact { path: path.clone(), job: job.clone(), archive, inputs: inputs.clone() })
            }
        }
    }

    /// A child's configuration is compiled, or not.
    pub(crate) fn child_compiled(&mut self, result: Result<(JobId, ChildResult), JoinError>) {
        let (bridge, result) = match result {
            Ok(result) => result,
            // The actor aborts them only when it stops.
            Err(error) => {
                tracing::error!(%error, "the compiler of a child pipeline ended early");
                return;
            }
        };
        let error = match result {
            Ok(child) => match self.create_child(bridge, *child) {
                Ok(()) => return,
                Err(error) => error,
            },
            Err(error) => error,
        };
        match self.job_event(bridge, |bridge| Event::ChildFailed { bridge, reason: error.reason }) {
            Ok(()) => {
                if let Some(row) = self.world.job_mut(bridge) {
                    row.detail.message = Some(error.message);
                }
            }
            Err(refusal) => tracing::debug!(%bridge, %refusal, "the bridge was canceled meanwhile"),
        }
    }

    fn create_child(&mut self, bridge: JobId, child: ChildPipeline) -> Result<(), ChildError> {
        let row = self.world.jobs.get(&bridge).ok_or_else(|| failed("the bridge is gone"))?;
        let parent = self.world.pipelines.get(&row.pipeline).ok_or_else(|| failed("the pipeline is gone"))?;
        let new = NewPipeline {
            project: parent.spec.project.clone(),
            context: child.context,
            compiled: child.compiled,
            git: parent.spec.git.clone(),
            sources: child.sources,
            play: parent.spec.play.clone(),
            secrets: parent.spec.secrets.clone(),
            parent: Some(Parent { pipeline: row.pipeline, bridge }),
        };
        self.create_pipeline(new).map(drop).map_err(|error| failed(error.to_string()))
    }
}

/// What the child is compiled for: the parent's event as `parent_pipeline`, with the variables that the bridge forwards.
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

/// The result of `work`; a panic in it is an error of this bridge, which would wait for ever otherwise.
fn caught(work: impl FnOnce() -> ChildResult) -> ChildResult {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(failed("the compiler stopped at this configuration; this is a defect of the program, please report it"))
    })
}

/// Reads and compiles a child's texts; this takes milliseconds of a core, and reads files.
fn compile(texts: Vec<Text>, mut context: Context, sources: SharedSources, limits: &Limits) -> ChildResult {
    if context.tracked_paths.is_empty() {
        // The pipeline was restored: its tree is read again.
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

fn read(text: Text, limits: &Limits) -> Result<ChildSource, ChildError> {
    match text {
        Text::Entry(entry) => Ok(ChildSource::Entry(entry)),
        Text::Artifact { path, job, archive, inputs } => {
            let bytes = artifacts::read_entry(&archive, &path, limits.child_config_bytes, &limits.unpack)
                .map_err(|why| failed(format!("cannot read the configuration from job `{job}`: {why}")))?;
            Ok(ChildSource::Artifact { name: format!("{path} from job {job}"), bytes, inputs })
        }
    }
}

/// The errors of a configuration, one per line.
fn errors(compiled: &Compiled) -> String {
    let errors = compiled.diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error);
    let mut lines: Vec<String> = errors
        .map(|error| match error.span.and_then(|span| Some((span, compiled.sources.get(span.source)?))) {
            Some((span, source)) => format!("{}:{}:{}: {error}", source.name, span.line, span.column),
            None => error.to_string(),
        })
        .collect();
    let hidden = lines.len().saturating_sub(ERRORS_SHOWN);
    lines.truncate(ERRORS_SHOWN);
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
