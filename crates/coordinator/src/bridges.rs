//! Bridges: start the child pipelines of `trigger` jobs (docs/spec/pipeline-yaml.md, section 5.9).
//!
//! The child configuration is read and compiled on a separate thread. The result returns to the actor, which creates the pipeline or
//! fails the bridge. After a crash in between, the engine requests the child pipeline again.

use std::sync::Arc;

use muster_job::{FailureReason, JobId, PipelineId};
use muster_pipeline::context::Context;
use muster_pipeline::model::{BridgeTarget, ChildInclude, Work};
use tokio::task::JoinError;

use crate::actor::Actor;
use crate::artifacts;
use crate::blobs::ArtifactName;
use crate::child::{ChildError, ChildPipeline, ChildResult, Text, caught, child_context, compile, failed, opened};
use crate::facts::{NewPipeline, Parent, SharedSources};
use crate::schedule::Event;
use crate::store::{JobRow, Member};
use crate::timers::Timer;
use crate::upstream::Obstacle;
use crate::variables;

impl Actor {
    /// Starts compiling the child configurations that the last batch requested.
    pub(crate) async fn start_bridges(&mut self) {
        for bridge in std::mem::take(&mut self.bridges) {
            while let Some(pipeline) = self.missing_upstream(bridge) {
                if let Err(error) = self.admit(Member::Pipeline(pipeline)).await {
                    tracing::error!(%error, %pipeline, "failed to read a pipeline whose artifacts a bridge needs");
                    break;
                }
            }
            if !self.has_sources(bridge) {
                self.sourceless.insert(bridge);
                self.timers.add(self.now() + self.options.limits.sources_timeout, Timer::Sources(bridge));
                continue;
            }
            match self.plan(bridge) {
                Ok((texts, context, sources)) => {
                    let (limits, blobs) = (self.options.limits.clone(), Arc::clone(&self.blobs));
                    self.children.spawn(async move {
                        let texts = match opened(texts, &*blobs).await {
                            Ok(texts) => texts,
                            Err(error) => return (bridge, Err(error)),
                        };
                        let work = move || caught(move || compile(texts, context, sources, &limits));
                        let compiled = tokio::task::spawn_blocking(work).await;
                        (bridge, compiled.unwrap_or_else(|_| Err(failed("the compiler was interrupted"))))
                    })
                }
                Err(error) => self.children.spawn(async move { (bridge, Err(error)) }),
            };
        }
    }

    fn has_sources(&self, bridge: JobId) -> bool {
        self.state.jobs.get(&bridge).is_none_or(|row| self.state.sources.contains_key(&row.pipeline))
    }

    /// Attaches the files of a pipeline from an earlier process. Bridges that waited for them continue.
    pub(crate) fn attach_sources(&mut self, pipeline: PipelineId, sources: &SharedSources) {
        self.state.attach(pipeline, sources);
        self.bridges.extend(std::mem::take(&mut self.sourceless));
    }

    /// Fails a bridge that has waited too long for the files of its pipeline.
    pub(crate) fn on_sources_timeout(&mut self, bridge: JobId) {
        if self.sourceless.remove(&bridge) {
            let error =
                failed("the pipeline is from an earlier process, and its repository was not attached again in time");
            self.child_compiled(Ok((bridge, Err(error))));
        }
    }

    /// Returns the input for compiling the child configuration of a bridge.
    fn plan(&self, bridge: JobId) -> Result<(Vec<Text<ArtifactName>>, Context, SharedSources), ChildError> {
        let row = self.state.jobs.get(&bridge).ok_or_else(|| failed("the bridge is gone"))?;
        let pipeline = self.state.pipelines.get(&row.pipeline).ok_or_else(|| failed("the pipeline is gone"))?;
        let context = self.state.contexts.get(&row.pipeline).ok_or_else(|| failed("the pipeline's context is gone"))?;
        let job =
            pipeline.compiled.jobs.get(row.job_index).ok_or_else(|| failed("the bridge's configuration is gone"))?;
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
            self.state.sources.get(&row.pipeline).ok_or_else(|| failed("the pipeline's repository is gone"))?;
        let texts = includes.iter().map(|include| self.text(row, include)).collect::<Result<_, _>>()?;
        let dotenv = self.upstream(row).map(|upstream| upstream.dotenv).map_err(|obstacle| match obstacle {
            Obstacle::Undispatchable(undispatchable) => {
                ChildError { reason: undispatchable.reason, message: undispatchable.message }
            }
            Obstacle::NotRead(pipeline) => failed(format!("pipeline {pipeline} cannot be read")),
        })?;
        let forwarded = variables::forwarded(context, job, work, row.pipeline, &dotenv);
        Ok((texts, child_context(context, row, forwarded, pipeline.spec.project.id), Arc::clone(sources)))
    }

    fn text(&self, bridge: &JobRow, include: &ChildInclude) -> Result<Text<ArtifactName>, ChildError> {
        match include {
            ChildInclude::Entry(entry) => Ok(Text::Entry(entry.clone())),
            ChildInclude::Artifact { path, job, inputs } => {
                let archive = self
                    .state
                    .newest_named(bridge.pipeline, job)
                    .and_then(|row| self.state.artifact(row.id, artifacts::ARCHIVE))
                    .filter(|archive| self.has_archive(archive))
                    .map(artifacts::name_of)
                    .ok_or_else(|| failed(format!("job `{job}` has no archive to read `{path}` from")))?;
                Ok(Text::Artifact { path: path.clone(), job: job.clone(), archive, inputs: inputs.clone() })
            }
        }
    }

    /// Creates the pipeline of a compiled child configuration, or fails its bridge.
    pub(crate) fn child_compiled(&mut self, result: Result<(JobId, ChildResult), JoinError>) {
        let (bridge, result) = match result {
            Ok(result) => result,
            // The actor aborts these tasks only when it stops.
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
                if let Some(row) = self.state.job_mut(bridge) {
                    row.detail.message = Some(error.message);
                }
            }
            Err(rejection) => tracing::debug!(%bridge, %rejection, "the bridge was canceled meanwhile"),
        }
    }

    fn create_child(&mut self, bridge: JobId, child: ChildPipeline) -> Result<(), ChildError> {
        let row = self.state.jobs.get(&bridge).ok_or_else(|| failed("the bridge is gone"))?;
        let parent = self.state.pipelines.get(&row.pipeline).ok_or_else(|| failed("the pipeline is gone"))?;
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
