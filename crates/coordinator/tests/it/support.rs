//! A coordinator with pipelines from tests, and managers that call its service directly.

#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use muster_coordinator::clock::{Clock, ManualClock};
use muster_coordinator::views::{ArtifactView, JobView, PipelineView};
use muster_coordinator::{
    Coordinator, GitFacts, Limits, NewPipeline, Options, ProjectFacts, RunnerSpec, SharedSources,
};
use muster_job::{JobId, JobStatus, PipelineId, ProjectId, Variable};
use muster_pipeline::context::Context;
use muster_pipeline::model::{
    AllowFailure, Artifacts, AutoCancel, Job, Pipeline, Retry, ScriptWork, SourceLocation, When, Work,
};
use muster_runner_api::payload::JobPayload;
use muster_runner_api::service::{ArtifactQuery, ByteStream, RunnerService, ServiceError, TraceAnswer, UpdateAnswer};
use muster_runner_api::wire::{JobRequest, UpdateRequest, VersionInfo};
use tempfile::TempDir;
use time::macros::datetime;

pub(crate) use crate::repositories::{BlockingFiles, Files};
pub(crate) use muster_coordinator::NoFiles;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn job(name: &str) -> Job {
    let work = ScriptWork { script: vec!["true".to_owned()], ..ScriptWork::default() };
    Job {
        name: name.to_owned(),
        group_name: name.to_owned(),
        description: None,
        stage: String::new(),
        stage_index: 0,
        work: Work::Script(Box::new(work)),
        when: When::OnSuccess,
        start_in: None,
        allow_failure: AllowFailure::No,
        retry: Retry::default(),
        timeout: None,
        interruptible: false,
        needs: None,
        dependencies: None,
        variables: Vec::new(),
        matrix: Vec::new(),
        node: None,
        tags: Vec::new(),
        environment: None,
        resource_group: None,
        manual_confirmation: None,
        inherits_variables: true,
        defined_at: SourceLocation::default(),
        decisions: Vec::new(),
    }
}

pub(crate) fn job_with(name: &str, change: impl FnOnce(&mut ScriptWork)) -> Job {
    let mut job = job(name);
    if let Work::Script(work) = &mut job.work {
        change(work);
    }
    job
}

pub(crate) fn producer(name: &str) -> Job {
    job_with(name, |work| {
        work.artifacts = Some(Artifacts { paths: vec!["out".to_owned()], ..Artifacts::default() });
    })
}

/// Each list is a stage.
pub(crate) fn pipeline(stages: Vec<Vec<Job>>) -> Pipeline {
    let names: Vec<String> = (0..stages.len()).map(|index| format!("stage{index}")).collect();
    let mut jobs = Vec::new();
    for (index, stage) in stages.into_iter().enumerate() {
        for mut job in stage {
            job.stage.clone_from(&names[index]);
            job.stage_index = index;
            jobs.push(job);
        }
    }
    Pipeline {
        name: None,
        stages: names,
        variables: Vec::new(),
        auto_cancel: AutoCancel::default(),
        jobs,
        excluded: Vec::new(),
    }
}

/// Returns the request to create a pipeline of project `grp/app` for branch `main`.
pub(crate) fn new_pipeline(compiled: Pipeline, sources: SharedSources) -> NewPipeline {
    let context = Context { ref_name: "main".to_owned(), project_path: "grp/app".to_owned(), ..Context::default() };
    let git = GitFacts {
        sha: "1".repeat(40),
        before_sha: "0".repeat(40),
        object_format: "sha1".to_owned(),
        repo_url: "http://127.0.0.1:1/grp/app.git".to_owned(),
        repo_path: None,
        depth: 20,
    };
    NewPipeline::new(ProjectFacts::new(ProjectId(1), "grp/app"), context, compiled, git, sources)
}

pub(crate) struct Harness {
    pub(crate) dir: TempDir,
    pub(crate) clock: ManualClock,
    pub(crate) coordinator: Arc<Coordinator>,
}

impl Harness {
    pub(crate) async fn open() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Options)) -> Self {
        let dir = tempfile::tempdir().expect("failed to create a directory");
        let clock = ManualClock::at(datetime!(2026-11-21 12:00 UTC));
        let mut options = options(dir.path(), &clock);
        change(&mut options);
        let coordinator = Coordinator::open(options).await.expect("failed to start a coordinator");
        Self { dir, clock, coordinator }
    }

    /// Opens a second coordinator on a copy of the current files, as after a `kill -9`.
    pub(crate) async fn restart_after_kill(&self) -> Self {
        let dir = tempfile::tempdir().expect("failed to create a directory");
        copy(self.dir.path(), dir.path());
        let coordinator = Coordinator::open(options(dir.path(), &self.clock)).await.expect("failed to reopen");
        Self { dir, clock: self.clock.clone(), coordinator }
    }

    pub(crate) async fn create(&self, stages: Vec<Vec<Job>>) -> PipelineId {
        let new = new_pipeline(pipeline(stages), Arc::new(NoFiles));
        self.coordinator.create_pipeline(new).await.expect("failed to create a pipeline")
    }

    /// Creates a pipeline from the text of `.gitlab-ci.yml`. `variables` are its pipeline variables.
    pub(crate) async fn create_from(&self, yaml: &str, files: Files, variables: &[(&str, &str)]) -> PipelineId {
        self.create_with(yaml, Arc::new(files), variables).await
    }

    pub(crate) async fn create_with(
        &self,
        yaml: &str,
        sources: SharedSources,
        variables: &[(&str, &str)],
    ) -> PipelineId {
        let mut new = new_pipeline(pipeline(Vec::new()), Arc::clone(&sources));
        new.context.predefined = vec![Variable::public("CI_PIPELINE_SOURCE", "push")];
        new.context.pipeline_variables = variables.iter().map(|(key, value)| Variable::public(*key, *value)).collect();
        let compiled = muster_pipeline::compile(yaml.as_bytes(), &new.context, &*sources);
        new.compiled = compiled.pipeline.unwrap_or_else(|| panic!("no pipeline: {:?}", compiled.diagnostics));
        self.coordinator.create_pipeline(new).await.expect("failed to create a pipeline")
    }

    pub(crate) async fn manager(&self) -> Manager {
        self.manager_with(RunnerSpec { run_untagged: true, ..RunnerSpec::default() }).await
    }

    pub(crate) async fn manager_with(&self, runner: RunnerSpec) -> Manager {
        let credentials = self.coordinator.create_runner(runner).await.expect("failed to create a runner");
        Manager::new(Arc::clone(&self.coordinator), credentials.token)
    }

    /// Sends a query to the coordinator, which handles all earlier commands and all due timers before it answers.
    pub(crate) async fn handle_commands_and_timers(&self) {
        self.coordinator.stuck_jobs().await.expect("the coordinator is not running");
    }

    pub(crate) async fn view(&self, pipeline: PipelineId) -> PipelineView {
        self.coordinator.pipeline(pipeline).await.expect("no pipeline")
    }

    pub(crate) async fn job(&self, pipeline: PipelineId, name: &str) -> JobView {
        self.view(pipeline).await.job(name).expect("no job").clone()
    }

    pub(crate) async fn status(&self, pipeline: PipelineId, name: &str) -> JobStatus {
        self.job(pipeline, name).await.status
    }

    /// Returns the path at which the content of an artifact is stored, even if it was deleted.
    pub(crate) fn path_of(&self, job: JobId, file: &ArtifactView) -> PathBuf {
        self.dir.path().join("artifacts").join(job.to_string()).join(&file.kind).join(&file.filename)
    }

    /// Returns the kind of each artifact of a job, and whether its file is on disk.
    pub(crate) async fn artifact_presence(&self, job: JobId) -> Vec<(String, bool)> {
        let files = self.coordinator.artifact_files(job).await.expect("the job does not exist");
        files.into_iter().map(|file| (file.kind.clone(), self.path_of(job, &file).exists())).collect()
    }

    /// Waits until `predicate` is true for the pipeline, and returns the pipeline. Checks `predicate` after each event.
    pub(crate) async fn wait_until(
        &self,
        pipeline: PipelineId,
        predicate: impl Fn(&PipelineView) -> bool,
    ) -> PipelineView {
        let mut events = self.coordinator.subscribe();
        tokio::time::timeout(TIMEOUT, async {
            loop {
                let view = self.view(pipeline).await;
                if predicate(&view) {
                    return view;
                }
                let _ = events.recv().await;
            }
        })
        .await
        .expect("the predicate was not true in time")
    }
}

pub(crate) fn options(dir: &Path, clock: &ManualClock) -> Options {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    // Keep no finished pipelines in memory, so that they are always read from the store.
    let limits = Limits { finished_in_memory: 0, ..Limits::default() };
    Options { clock, limits, write_job_events: true, ..Options::new(dir) }
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("failed to read a directory") {
        let entry = entry.expect("no entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("no type").is_dir() {
            std::fs::create_dir_all(&target).expect("failed to create a directory");
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("failed to copy");
        }
    }
}

#[derive(Clone)]
pub(crate) struct Manager {
    pub(crate) coordinator: Arc<Coordinator>,
    pub(crate) token: String,
    pub(crate) info: VersionInfo,
}

impl Manager {
    pub(crate) fn new(coordinator: Arc<Coordinator>, token: String) -> Self {
        let features = [
            "upload_multiple_artifacts",
            "artifacts_exclude",
            "refspecs",
            "return_exit_code",
            "cancel_gracefully",
            "two_phase_job_commit",
        ];
        let features = features.into_iter().map(|feature| (feature.to_owned(), true)).collect();
        Self { coordinator, token, info: VersionInfo { name: "fake".to_owned(), features, ..VersionInfo::default() } }
    }

    pub(crate) fn connected_to(&self, harness: &Harness) -> Self {
        Self { coordinator: Arc::clone(&harness.coordinator), ..self.clone() }
    }

    pub(crate) fn request(&self, key: Option<&str>) -> JobRequest {
        JobRequest {
            info: self.info.clone(),
            token: self.token.clone(),
            system_id: "s_000000000001".to_owned(),
            // If there is no job, a request with any version is held, and a request without a version is answered
            // immediately.
            last_update: "an earlier version".to_owned(),
            idempotency_key: key.map(ToOwned::to_owned),
        }
    }

    pub(crate) async fn next_job(&self) -> JobPayload {
        self.next_job_with_key(None).await
    }

    pub(crate) async fn next_job_with_key(&self, key: Option<&str>) -> JobPayload {
        let answer = tokio::time::timeout(TIMEOUT, self.coordinator.request_job(self.request(key))).await;
        *answer.expect("no answer in time").expect("the request was rejected").job.expect("no job")
    }

    pub(crate) async fn update(
        &self,
        job: &JobPayload,
        state: &str,
        change: impl FnOnce(&mut UpdateRequest),
    ) -> Result<UpdateAnswer, ServiceError> {
        let mut request =
            UpdateRequest { token: job.token.clone(), state: state.to_owned(), ..UpdateRequest::default() };
        change(&mut request);
        self.coordinator.update_job(job.id, request).await
    }

    pub(crate) async fn report_running(&self, job: &JobPayload) {
        self.update(job, "running", |_| {}).await.expect("the report was rejected");
    }

    pub(crate) async fn succeed(&self, job: &JobPayload) -> JobStatus {
        self.update(job, "success", |_| {}).await.expect("success was not accepted").status
    }

    pub(crate) async fn fail(&self, job: &JobPayload, reason: &str, exit_code: Option<i64>) -> JobStatus {
        let change = |request: &mut UpdateRequest| {
            request.failure_reason = Some(reason.to_owned());
            request.exit_code = exit_code;
        };
        self.update(job, "failed", change).await.expect("failure was not accepted").status
    }

    pub(crate) async fn log(&self, job: &JobPayload, start: u64, text: &str) -> Result<TraceAnswer, ServiceError> {
        self.coordinator.append_trace(job.id, &job.token, start, Bytes::copy_from_slice(text.as_bytes())).await
    }

    pub(crate) async fn upload(
        &self,
        job: &JobPayload,
        (kind, format, expire_in): (&str, &str, Option<&str>),
        content: Vec<u8>,
    ) -> Result<(), ServiceError> {
        let query = ArtifactQuery {
            artifact_format: Some(format.to_owned()),
            artifact_type: Some(kind.to_owned()),
            expire_in: expire_in.map(ToOwned::to_owned),
        };
        let name = format!("{kind}.{format}");
        self.coordinator.upload_artifact(job.id, &job.token, query, name, stream(content)).await
    }

    pub(crate) async fn download(&self, producer: JobId, token: &str) -> Result<Vec<u8>, ServiceError> {
        let mut download = self.coordinator.download_artifacts(producer, token).await?;
        let mut content = Vec::new();
        while let Some(chunk) = download.body.next().await {
            content.extend_from_slice(&chunk.expect("failed to read"));
        }
        Ok(content)
    }
}

pub(crate) fn stream(content: Vec<u8>) -> ByteStream {
    let chunks: Vec<_> = content.chunks(1000).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
    futures::stream::iter(chunks).boxed()
}

pub(crate) fn zip_of(name: &str, content: &str) -> Vec<u8> {
    use std::io::Write;
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    writer.start_file(name, zip::write::SimpleFileOptions::default()).expect("failed to start an entry");
    writer.write_all(content.as_bytes()).expect("failed to write the content");
    writer.finish().expect("failed to finish the archive").into_inner()
}

#[track_caller]
pub(crate) fn forbidden(result: Result<impl std::fmt::Debug, ServiceError>) -> Option<JobStatus> {
    match result {
        Err(ServiceError::Forbidden { status }) => status,
        other => panic!("not forbidden: {other:?}"),
    }
}
