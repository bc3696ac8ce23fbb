//! Handles commands in the actor, and implements those of the library API.

use std::io;
use std::path::Path;
use std::sync::Arc;

use muster_job::{JobId, JobStatus, PipelineId, Variable};
use muster_runner_api::service::ServiceError;
use muster_runner_api::wire::RunnerCredentials;

use crate::actor::{Actor, StagedReply};
use crate::child::{ChildError, ChildPipeline, ChildPlan, ChildResult, failed};
use crate::command::Command;
use crate::error::CoordinatorError;
use crate::facts::{JobKind, NewPipeline, Parent, RunnerSpec, SharedSources};
use crate::schedule::{Engine, Event, Graph, JobRef, PipelineOptions, Target, priority};
use crate::store::{Member, PipelineDetail, PipelineRow, PipelineSpec};
use crate::timers::Timer;
use crate::views::{self, JobView, PipelineView, StuckJob};

impl Actor {
    pub(crate) fn handle(&mut self, command: Command) {
        match command {
            Command::CreatePipeline { new, reply } => match self.create_pipeline(*new) {
                Ok(id) => self.staged.push(StagedReply::Pipeline { id, reply }),
                Err(error) => self.reply(reply, Err(error)),
            },
            Command::CreateRunner { new, reply } => {
                let created = self.create_runner(new);
                self.reply(reply, Ok(created));
            }
            Command::AttachSources { pipeline, sources, reply } => {
                let result = self.check_exists(pipeline).map(|()| self.attach_sources(pipeline, &sources));
                self.reply(reply, result);
            }
            Command::CancelPipeline { pipeline, force, reply } => {
                let result = self.cancel(pipeline, Target::Pipeline(pipeline), force);
                self.reply(reply, result);
            }
            Command::CancelJob { job, force, reply } => {
                let result = self.job_ref(job).and_then(|job| self.cancel(job.pipeline, Target::Job(job), force));
                self.reply(reply, result);
            }
            Command::PlayJob { job, variables, reply } => {
                let result = self.play(job, variables);
                self.reply(reply, result);
            }
            Command::RetryJob { job, reply } => {
                let result = self.retry(job);
                self.reply(reply, result);
            }
            Command::Pipelines { reply } => {
                let problem = self.storage_problem.as_deref();
                let all = self.state.pipelines.values().map(|row| views::summary(row, problem)).collect();
                self.reply_read_only(reply, Ok((all, self.state.all_in_memory)));
            }
            Command::Pipeline { pipeline, reply } => {
                let view = self.pipeline_view(pipeline);
                self.reply_read_only(reply, view);
            }
            Command::Job { job, reply } => {
                let view = self.job_view(job);
                self.reply_read_only(reply, view);
            }
            Command::StuckJobs { reply } => {
                let stuck = self.stuck_jobs();
                self.reply_read_only(reply, Ok(stuck));
            }
            other => self.handle_manager_command(other),
        }
    }

    /// Handles a command that a runner manager causes, or that the coordinator sends to itself.
    fn handle_manager_command(&mut self, command: Command) {
        match command {
            Command::Register { request, reply } => {
                let now = self.now();
                let result = self.state.registry.register(*request, &self.options, now);
                if result.is_ok() {
                    self.queue.change_version();
                }
                self.service_reply(reply, result);
            }
            Command::Verify { request, reply } => {
                let now = self.now();
                let result = self.state.registry.verify(&request, now);
                self.service_reply(reply, result);
            }
            Command::ResetToken { token, reply } => {
                let now = self.now();
                let result = self.state.registry.reset_token(&token, &self.options, now);
                self.service_reply(reply, result);
            }
            Command::ResetTokenWithPat { runner, pat, reply } => {
                let now = self.now();
                let result = self.state.registry.reset_token_with_pat(runner, &pat, &self.options, now);
                self.service_reply(reply, result);
            }
            Command::Unregister { token, reply } => {
                let result = self.unregister(&token);
                self.service_reply(reply, result);
            }
            Command::UnregisterManager { request, reply } => {
                let now = self.now();
                let result = self.state.registry.unregister_manager(request, now);
                self.service_reply(reply, result);
            }
            Command::RequestJob { request, reply } => self.request_job(request, reply),
            Command::Authorize { job, token, token_use, reply } => {
                let result = self.authorize(job, &token, token_use);
                self.service_reply(reply, result);
            }
            Command::Finish { job, token, report, reply } => {
                let result = self.finish(job, &token, *report);
                self.service_reply(reply, result);
            }
            Command::Download { producer, token, reply } => {
                let result = self.download(producer, &token);
                self.service_reply(reply, result);
            }
            Command::DropJob { job, reason, message, reply } => {
                self.drop_job(job, reason, message);
                let status = self.state.jobs.get(&job).map(crate::store::JobRow::status);
                self.service_reply(reply, status.ok_or(ServiceError::Forbidden { status: None }));
            }
            Command::RecordInvalidReport { job, token, reason, reply } => {
                let result = self.record_invalid_report(job, &token, reason);
                self.service_reply(reply, result);
            }
            Command::ArtifactStored { job, token, artifact, reply } => {
                let stored = self.artifact_stored(job, &token, *artifact);
                self.service_reply(reply, Ok(stored));
            }
            Command::UploadEnded => self.residency.upload_ended(&mut self.state),
            // If the database cannot be written, its next successful write reports the recovery.
            Command::TraceRecovered if self.storage_problem.is_none() => {
                let _ = self.events.send(crate::views::Event::StorageProblem(None));
            }
            // `Shutdown` is handled by the event loop, and every other command by `handle`.
            _ => {}
        }
    }

    pub(crate) fn create_pipeline(&mut self, new: NewPipeline) -> Result<PipelineId, CoordinatorError> {
        let graph = Graph::new(&new.compiled)?;
        let parent = new.parent.map(|parent| self.job_ref(parent.bridge)).transpose()?;
        let (project, id, now) = (new.project.id, self.state.new_pipeline_id(), self.now());
        let priorities = priority(&graph, &[]);
        let options = PipelineOptions { play: new.play.iter().cloned().collect(), parent };
        let event = Event::PipelineCreated { pipeline: id, graph: Box::new(graph), options };
        let actions = self.apply_to_engine(project, event)?;
        if let Some(repository) = &new.git.repo_path
            && let Err(error) = write_pipeline_ref(repository, id, &new.git.sha)
        {
            tracing::warn!(pipeline = %id, %error, "failed to write the ref of a pipeline; managers may not find its commit");
        }
        let row = PipelineRow {
            id,
            root: new.parent.and_then(|parent| self.state.root(parent.pipeline)).unwrap_or(id),
            parent: new.parent,
            open: true,
            status: JobStatus::Created,
            created_at: now,
            finished_at: None,
            detail: PipelineDetail::default(),
            spec: Arc::new(PipelineSpec::new(&new)),
            compiled: Arc::new(new.compiled),
        };
        let compiled = Arc::clone(&row.compiled);
        self.state.priorities.insert(id, priorities);
        self.state.contexts.insert(id, Arc::new(new.context));
        self.state.sources.insert(id, new.sources);
        self.state.add_pipeline(row);
        self.state.dirty.new_pipelines.insert(id);
        self.add_job_rows(id, &compiled);
        self.carry_out(project, &actions);
        if parent.is_none() {
            for older in self.older_on_same_ref(id) {
                if let Err(rejection) = self.apply_event(older, Event::NewerPipeline { older }) {
                    tracing::debug!(%older, %rejection, "older pipeline has already ended");
                }
            }
        }
        Ok(id)
    }

    fn create_runner(&mut self, settings: RunnerSpec) -> RunnerCredentials {
        let now = self.now();
        self.queue.change_version();
        self.state.registry.create(settings, false, &self.options, now)
    }

    fn unregister(&mut self, token: &str) -> Result<(), ServiceError> {
        let now = self.now();
        let runner = self.state.registry.unregister(token, now)?;
        for held in self.long_polls.release(|held| held.runner == runner) {
            self.service_reply(held.reply, Err(ServiceError::Forbidden { status: None }));
        }
        Ok(())
    }

    /// Returns the pending jobs that no runner can run, with the reasons (docs/spec/pipeline-yaml.md, case C198).
    fn stuck_jobs(&self) -> Vec<StuckJob> {
        let stuck = self.queue.jobs().into_iter().filter_map(|job| {
            let name = self.state.jobs.get(&job)?.name.clone();
            let reason = self.state.registry.mismatch_reason(self.queue.requirement(job)?)?;
            Some(StuckJob { job, name, reason })
        });
        stuck.collect()
    }

    pub(crate) async fn start_child_pipelines(&mut self) {
        for bridge in self.children.take_requested() {
            while let Some(pipeline) = self.missing_upstream(bridge) {
                if let Err(error) = self.admit(Member::Pipeline(pipeline)).await {
                    tracing::error!(%error, %pipeline, "failed to read a pipeline whose artifacts a bridge needs");
                    break;
                }
            }
            let has_sources =
                self.state.jobs.get(&bridge).is_none_or(|row| self.state.sources.contains_key(&row.pipeline));
            if has_sources {
                let plan = ChildPlan::new(bridge, &self.upstream());
                self.children.start(bridge, plan, self.options.limits.clone());
            } else {
                self.children.wait_for_sources(bridge);
                self.timers.add(self.now() + self.options.limits.sources_timeout, Timer::Sources(bridge));
            }
        }
    }

    /// Attaches the files of a pipeline, so that bridges that waited for them continue.
    fn attach_sources(&mut self, pipeline: PipelineId, sources: &SharedSources) {
        self.state.attach(pipeline, sources);
        self.children.sources_attached();
    }

    pub(crate) fn on_sources_timeout(&mut self, bridge: JobId) {
        if self.children.stop_waiting(bridge) {
            let error = failed(
                "the repository of the pipeline is not available, because the pipeline had finished or is from an earlier \
                 process, and the repository was not attached in time; run a new pipeline",
            );
            self.on_child_compiled(bridge, Err(error));
        }
    }

    pub(crate) fn on_child_compiled(&mut self, bridge: JobId, result: ChildResult) {
        let Err(error) = result.and_then(|child| self.create_child(bridge, *child)) else { return };
        match self.apply_job_event(bridge, |bridge| Event::ChildFailed { bridge, reason: error.reason }) {
            Ok(()) => {
                if let Some(row) = self.state.job_mut(bridge) {
                    row.detail.message = Some(error.message);
                }
            }
            Err(rejection) => tracing::debug!(%bridge, %rejection, "bridge was canceled in the meantime"),
        }
    }

    fn create_child(&mut self, bridge: JobId, child: ChildPipeline) -> Result<(), ChildError> {
        let row = self.state.jobs.get(&bridge).ok_or_else(|| failed("the bridge no longer exists"))?;
        let parent = self.state.pipelines.get(&row.pipeline).ok_or_else(|| failed("the pipeline no longer exists"))?;
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

    fn check_exists(&self, pipeline: PipelineId) -> Result<(), CoordinatorError> {
        let exists = self.state.pipelines.contains_key(&pipeline);
        if exists { Ok(()) } else { Err(CoordinatorError::NotFound(format!("pipeline {pipeline}"))) }
    }

    fn job_ref(&self, job: JobId) -> Result<JobRef, CoordinatorError> {
        let row = self.state.jobs.get(&job);
        row.map(crate::store::JobRow::job_ref).ok_or_else(|| CoordinatorError::NotFound(format!("job {job}")))
    }

    fn cancel(&mut self, pipeline: PipelineId, target: Target, force: bool) -> Result<(), CoordinatorError> {
        self.check_exists(pipeline)?;
        let event = if force { Event::ForceCancel { target } } else { Event::Cancel { target } };
        Ok(self.apply_event(pipeline, event)?)
    }

    fn play(&mut self, job: JobId, variables: Vec<Variable>) -> Result<JobId, CoordinatorError> {
        self.job_ref(job)?;
        let is_bridge = self.state.jobs.get(&job).is_some_and(|row| row.kind == JobKind::Bridge);
        if is_bridge && !variables.is_empty() {
            return Err(CoordinatorError::BridgeVariables);
        }
        self.apply_job_event(job, |job| Event::Play { job })?;
        if let Some(row) = self.state.job_mut(job) {
            row.detail.variables = variables;
        }
        Ok(job)
    }

    fn retry(&mut self, job: JobId) -> Result<JobId, CoordinatorError> {
        let job_ref = self.job_ref(job)?;
        self.apply_job_event(job, |job| Event::RetryJob { job })?;
        let newest = self
            .project_of(job_ref.pipeline)
            .and_then(|project| self.state.engines.get(&project))
            .and_then(|engine: &Engine| engine.newest(job_ref.pipeline, job_ref.job_index))
            .and_then(|newest| self.state.ids.get(&newest).copied());
        newest.ok_or_else(|| CoordinatorError::NotFound(format!("the retry of job {job}")))
    }

    fn pipeline_view(&self, pipeline: PipelineId) -> Result<PipelineView, CoordinatorError> {
        self.state.pipeline_view(pipeline, self.storage_problem.as_deref())
    }

    fn job_view(&self, job: JobId) -> Result<JobView, CoordinatorError> {
        let view = self.state.job_view(job);
        view.ok_or_else(|| CoordinatorError::NotFound(format!("job {job}")))
    }
}

/// Writes the ref of a pipeline to the bare repository, so that managers can fetch its commit.
///
/// See docs/spec/runner-api.md, section 2.5.2.
fn write_pipeline_ref(repository: &Path, pipeline: PipelineId, sha: &str) -> io::Result<()> {
    let directory = repository.join("refs").join("pipelines");
    std::fs::create_dir_all(&directory)?;
    let file = tempfile::NamedTempFile::new_in(&directory)?;
    std::fs::write(file.path(), format!("{sha}\n"))?;
    file.persist(directory.join(pipeline.to_string())).map(drop).map_err(|error| error.error)
}
