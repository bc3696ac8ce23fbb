//! `muster ci run`: the whole way from the working tree to an exit status.
//!
//! ```text
//! snapshot, compile --> coordinator (this process) <--runner API--> manager (child) --> agent --> jobs
//!                            | events
//!                        follower --> reporter
//! ```
//! The order of the end: jobs are done or cancelled; the manager is told to end, then the agent; the coordinator closes;
//! whatever process is left below this one is ended. Only then the exit status is given.

mod descendants;
mod follow;
mod human;
mod json;
mod junit;
mod report;
mod server;
mod signals;
mod summary;
mod supervisor;
mod trace;

use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_coordinator::source::GitServer;
use muster_coordinator::{Coordinator, GitFacts, NewPipeline, NewRunner, Options, ProjectFacts};
use muster_job::{JobId, PipelineId, ProjectId};
use muster_pipeline::layers;
use muster_pipeline::model::{Pipeline, Work};
use tokio_util::sync::CancellationToken;

use super::args::{Executor, LogMode, OutputMode, RunArgs};
use super::error::{CiError, ExitStatus};
use super::prepare::{Prepared, Target, locate, prepare};
use super::record::{PipelineRecord, RunRecord, write_private_bytes};
use super::select::select;
use super::state::{Run, remove_all};
use super::ui;
use follow::Follower;
use report::{Ending, Reporter, RunInfo, reporter};
pub(super) use report::{failure, job_time};
use server::Door;
use signals::Interrupts;
use supervisor::{ManagerOptions, end_descendants, supervise};
pub(super) use trace::TraceLines;

/// Ids of pipelines and jobs of different runs differ: run 7 starts with pipeline 7000 and job 700000.
const PIPELINES_PER_RUN: i64 = 1000;
const JOBS_PER_RUN: i64 = 100_000;
/// Commits that a job fetches, as on GitLab.
const DEPTH: i64 = 20;
/// How often a manager of ours sends pieces of a trace.
const TRACE_INTERVAL: Duration = Duration::from_millis(100);
/// How long the agent may take to end when no job runs.
const AGENT_GRACE: Duration = Duration::from_secs(3);

/// Runs the pipeline.
pub(super) async fn run(args: RunArgs) -> Result<ExitStatus, CiError> {
    if args.executor == Executor::Docker {
        return Err(CiError::Usage(
            "`--executor docker` is not there yet; `--executor host` runs the jobs on this machine, and \
             `--executor external` gives them to a gitlab-runner, which may use containers"
                .to_owned(),
        ));
    }
    let mut interrupts = Interrupts::new()?;
    let project = locate(&args.pipeline.place.directory)?;
    let run = project.start_run()?;
    let started = Instant::now();
    let result = tokio::select! {
        result = ready(&args, project.clone(), &run) => result,
        // Nothing was started yet that has to be ended.
        () = interrupts.next() => return discard(&project, run, Ok(ExitStatus::Cancelled)),
    };
    let ready = match result {
        Ok(Some(ready)) => ready,
        Ok(None) => return discard(&project, run, Ok(ExitStatus::Passed)),
        Err(error) => return discard(&project, run, Err(error)),
    };
    let keep = ready.prepared.config.keep.clone();
    let status = perform(&args, &run, ready, interrupts, started).await;
    let workspaces = (!args.keep).then(|| run.folder.join("builds"));
    let tidied = tokio::task::spawn_blocking(move || {
        if let Some(error) = workspaces.and_then(|folder| remove_all(&folder).err()) {
            tracing::warn!(%error, "the workspaces could not be deleted");
        }
        // The folder of this run is the newest, so it stays.
        project.prune(&keep, std::time::SystemTime::now());
    });
    if let Err(error) = tidied.await {
        tracing::warn!(%error, "past runs could not be pruned");
    }
    status
}

/// Deletes the folder of a run that has no pipeline.
fn discard(
    project: &super::state::ProjectState,
    run: Run,
    result: Result<ExitStatus, CiError>,
) -> Result<ExitStatus, CiError> {
    let number = run.number;
    drop(run);
    if let Err(error) = project.delete_run(number) {
        tracing::debug!(%error, "cannot delete the folder of a run that was not started");
    }
    result
}

/// A pipeline that can be created.
struct Ready {
    prepared: Prepared,
    pipeline: Pipeline,
    /// Manual jobs that were named.
    play: Vec<String>,
    door: Door,
}

/// Takes the snapshot, compiles and selects; none if the event makes no pipeline.
async fn ready(args: &RunArgs, project: super::state::ProjectState, run: &Run) -> Result<Option<Ready>, CiError> {
    let door = Door::open(args.listen).await?;
    let target = Target { store: &run.folder.join("store.git"), server_url: &door.url(), iid: run.number };
    let mut prepared = prepare(&args.pipeline, project, &target).await?;
    prepared.show_diagnostics()?;
    let Some(pipeline) = prepared.compiled.pipeline.take() else {
        let why = prepared.compiled.not_created.as_ref().map(|why| why.reason.to_string()).unwrap_or_default();
        if args.jobs.is_empty() {
            ui::note(&format!("nothing to run for this event: {why}"));
            return Ok(None);
        }
        return Err(CiError::Usage(format!("the jobs cannot run: no pipeline for this event: {why}")));
    };
    if args.keep {
        keep_workspaces(&mut prepared);
    }
    let (pipeline, play) = select(pipeline, &args.jobs, args.needs)?;
    if args.executor == Executor::Host {
        notices(&pipeline);
    }
    Ok(Some(Ready { prepared, pipeline, play, door }))
}

/// Says what the host executor does not do.
fn notices(pipeline: &Pipeline) {
    let scripts = pipeline.jobs.iter().filter_map(|job| match &job.work {
        Work::Script(work) => Some((&job.name, work)),
        Work::Bridge(_) => None,
    });
    let (mut with_image, mut with_services) = (Vec::new(), Vec::new());
    for (name, work) in scripts {
        if work.image.is_some() {
            with_image.push(ui::plain(name));
        }
        if !work.services.is_empty() {
            with_services.push(ui::plain(name));
        }
    }
    if let [one, others @ ..] = with_image.as_slice() {
        let and = if others.is_empty() { String::new() } else { format!(" (and {} more)", others.len()) };
        ui::note(&format!("`image:` of job `{one}`{and} is not used: jobs run on this machine itself"));
    }
    if let [one, others @ ..] = with_services.as_slice() {
        let and = if others.is_empty() { String::new() } else { format!(" (and {} more)", others.len()) };
        ui::note(&format!("services of job `{one}`{and} are not started on this machine"));
    }
}

/// Lets each job work in a folder of its own, unless the configuration says where.
fn keep_workspaces(prepared: &mut Prepared) {
    let path = "$CI_BUILDS_DIR/$CI_JOB_ID/$CI_PROJECT_PATH";
    prepared.context.predefined.push(muster_job::Variable::public("GIT_CLONE_PATH", path));
}

/// Runs the pipeline to its end, and leaves no process behind, whatever happens.
async fn perform(
    args: &RunArgs,
    run: &Run,
    ready: Ready,
    interrupts: Interrupts,
    started: Instant,
) -> Result<ExitStatus, CiError> {
    descendants::adopt_orphans();
    let mut tasks = Tasks { stop_manager: CancellationToken::new(), serve: None, manager: None };
    let result = with_coordinator(args, run, ready, interrupts, started, &mut tasks).await;
    tasks.end().await;
    end_descendants(AGENT_GRACE).await;
    result
}

/// What has to be ended.
struct Tasks {
    stop_manager: CancellationToken,
    serve: Option<tokio::task::JoinHandle<()>>,
    manager: Option<tokio::task::JoinHandle<Result<(), CiError>>>,
}

impl Tasks {
    /// Waits until the manager is given up; never where there is none.
    async fn manager_given_up(&mut self) -> CiError {
        let Some(manager) = &mut self.manager else { return std::future::pending().await };
        let result = manager.await;
        self.manager = None;
        match result {
            Ok(Ok(())) => CiError::Usage("the manager ended although it was not told to".to_owned()),
            Ok(Err(error)) => error,
            Err(error) => CiError::Usage(format!("the manager cannot be watched any more: {error}")),
        }
    }

    /// Kills the manager, the agent and all jobs.
    async fn kill(&mut self) {
        // First this, else the manager would be started again.
        self.stop_manager.cancel();
        descendants::all().into_iter().for_each(descendants::kill);
        self.end().await;
        end_descendants(Duration::ZERO).await;
    }

    /// Ends the manager while its calls are still answered, then the server.
    async fn end(&mut self) {
        self.stop_manager.cancel();
        if let Some(manager) = self.manager.take() {
            match manager.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => ui::report(&error),
                Err(error) => tracing::warn!(%error, "the manager's task failed"),
            }
        }
        if let Some(serve) = self.serve.take() {
            serve.abort();
            let _ = serve.await;
        }
    }
}

async fn with_coordinator(
    args: &RunArgs,
    run: &Run,
    ready: Ready,
    mut interrupts: Interrupts,
    started: Instant,
    tasks: &mut Tasks,
) -> Result<ExitStatus, CiError> {
    let number = i64::try_from(run.number).unwrap_or(i64::MAX / JOBS_PER_RUN);
    let url = ready.door.url();
    let external = args.executor == Executor::External;
    let mut options = Options::new(run.folder.join("coordinator"));
    options.first_pipeline_id = PipelineId(number * PIPELINES_PER_RUN);
    options.first_job_id = JobId(number * JOBS_PER_RUN);
    options.local_repository = !external;
    options.server_url.clone_from(&url);
    options.registration_token = external.then(|| uuid::Uuid::new_v4().simple().to_string());
    if !external {
        options.limits.trace_interval = TRACE_INTERVAL;
    }
    let registration = options.registration_token.clone();
    let root = options.first_pipeline_id;
    let coordinator = Coordinator::open(options).await?;

    let log = args.log.unwrap_or(if ready.pipeline.jobs.len() == 1 { LogMode::Live } else { LogMode::Failed });
    let mut follower = Follower::new(Arc::clone(&coordinator), log);
    let mut reporter = reporter(args.output);
    let new = new_pipeline(args, run, &ready, root, &url)?;
    let (prepared, pipeline) = (&ready.prepared, &ready.pipeline);
    let mut record = RunRecord::new(root, &prepared.context, &prepared.snapshot.head.sha, prepared.snapshot.dirty);
    record.write(&run.folder)?;
    reporter.started(&RunInfo {
        number: run.number,
        pipeline,
        ref_name: &prepared.context.ref_name,
        sha: &prepared.snapshot.head.sha,
        dirty: prepared.snapshot.dirty,
        source: prepared.context.source.as_str(),
        log,
        url: &url,
    });

    tasks.serve = Some(serve(ready.door, &coordinator, &prepared.snapshot.repository, &prepared.context.project_path));
    match registration {
        Some(token) => announce(args.output, &url, &token, pipeline),
        None => {
            tasks.manager =
                Some(start_manager(args, run, &coordinator, &prepared.project, &url, &tasks.stop_manager).await?)
        }
    }
    let created = coordinator.create_pipeline(new).await?;
    debug_assert_eq!(created, root, "an empty database starts with the id it was told");
    let cancelled = follow(&coordinator, created, &mut follower, &mut *reporter, &mut interrupts, tasks).await?;

    let status = match (cancelled, follower.picture.has_failed()) {
        (true, _) => ExitStatus::Cancelled,
        (false, true) => ExitStatus::Failed,
        (false, false) => ExitStatus::Passed,
    };
    let elapsed = started.elapsed();
    let critical_path = summary::critical_jobs(pipeline, created, &follower.picture);
    reporter.finished(&Ending { status, elapsed, picture: &follower.picture, critical_path });
    record.outcome = Some(outcome(status).to_owned());
    record.duration_ms = u64::try_from(elapsed.as_millis()).ok();
    record.write(&run.folder)?;
    tasks.end().await;
    coordinator.shutdown().await;
    Ok(status)
}

/// The word for an exit status, in files.
fn outcome(status: ExitStatus) -> &'static str {
    match status {
        ExitStatus::Passed => "passed",
        ExitStatus::Failed => "failed",
        ExitStatus::BadConfiguration => "error",
        ExitStatus::Cancelled => "cancelled",
    }
}

/// The pipeline, with its commit where jobs can fetch it and its record on disk.
fn new_pipeline(args: &RunArgs, run: &Run, ready: &Ready, id: PipelineId, url: &str) -> Result<NewPipeline, CiError> {
    let Prepared { snapshot, context, identity, config, .. } = &ready.prepared;
    let mut project = ProjectFacts::new(ProjectId(ready.prepared.project.project_id), &identity.path);
    if let Some(timeout) = args.timeout {
        project.job_timeout = timeout;
    }
    let full_ref = match (context.ref_kind, context.source) {
        (_, muster_pipeline::context::PipelineSource::MergeRequestEvent) => None,
        (muster_pipeline::context::RefKind::Tag, _) => Some(format!("refs/tags/{}", context.ref_name)),
        (muster_pipeline::context::RefKind::Branch, _) => Some(format!("refs/heads/{}", context.ref_name)),
    };
    snapshot.pin(id.0, full_ref.as_deref())?;
    let git = GitFacts {
        sha: snapshot.sha.clone(),
        before_sha: layers::value(&context.predefined, "CI_COMMIT_BEFORE_SHA").unwrap_or_default().to_owned(),
        object_format: snapshot.object_format.clone(),
        repo_url: format!("{url}/{}.git", identity.path),
        repo_path: Some(snapshot.repository.clone()),
        depth: DEPTH,
    };
    PipelineRecord::new(&ready.pipeline, &project, &git, url, context).write(&run.folder)?;
    let sources = Arc::clone(&ready.prepared.sources);
    let mut new = NewPipeline::new(project, context.clone(), ready.pipeline.clone(), git, sources);
    new.play.clone_from(&ready.play);
    new.secrets = config.secrets(&identity.path);
    Ok(new)
}

/// Serves the runner API and the repository.
fn serve(
    door: Door,
    coordinator: &Arc<Coordinator>,
    repository: &std::path::Path,
    project_path: &str,
) -> tokio::task::JoinHandle<()> {
    let checker = Arc::clone(coordinator);
    let git = GitServer {
        repository: repository.to_owned(),
        project_path: project_path.to_owned(),
        token_is_valid: Arc::new(move |token| checker.is_job_token(token)),
    };
    let service = Arc::clone(coordinator);
    tokio::spawn(door.serve(service, git))
}

/// Tells the user how a stock runner gets the jobs.
fn announce(output: OutputMode, url: &str, token: &str, pipeline: &Pipeline) {
    let mut tags: Vec<&str> = pipeline.jobs.iter().flat_map(|job| job.tags.iter().map(String::as_str)).collect();
    tags.sort_unstable();
    tags.dedup();
    let tags = if tags.is_empty() { String::new() } else { format!(" --tag-list '{}'", tags.join(",")) };
    let command = format!(
        "gitlab-runner register --non-interactive --url {url} --registration-token {token} --executor shell \
         --run-untagged{tags}"
    );
    let text =
        format!("jobs wait for a runner at {url}; register one, and start it:\n  {command}\n  gitlab-runner run");
    match output {
        OutputMode::Human | OutputMode::Junit => ui::note(&text),
        OutputMode::Json => ui::outln(
            &serde_json::json!({ "event": "waiting_for_runner", "url": url, "registration_token": token }).to_string(),
        ),
    }
}

/// Creates the runner and starts its manager.
async fn start_manager(
    args: &RunArgs,
    run: &Run,
    coordinator: &Coordinator,
    project: &super::state::ProjectState,
    url: &str,
    stop: &CancellationToken,
) -> Result<tokio::task::JoinHandle<Result<(), CiError>>, CiError> {
    // Tags say which machine a job is for; here there is only this one.
    let new =
        NewRunner { description: "muster ci".to_owned(), any_tags: true, run_untagged: true, ..NewRunner::default() };
    let credentials = coordinator.create_runner(new).await?;
    let state_dir = run.folder.join("manager");
    let token_file = state_dir.join("token");
    let write = || {
        std::fs::create_dir_all(&state_dir)?;
        write_private_bytes(&token_file, credentials.token.as_bytes())
    };
    write().map_err(|source| CiError::State { path: token_file.clone(), source })?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let options = ManagerOptions {
        url: url.to_owned(),
        token_file,
        state_dir,
        builds_dir: run.folder.join("builds"),
        cache_dir: project.cache(),
        concurrent: args.concurrent.map_or(processors, usize::from),
        log: run.folder.join("manager.log"),
    };
    Ok(tokio::spawn(supervise(options, stop.child_token())))
}

/// Follows until nothing more happens; says whether the user cancelled. The first interrupt cancels, the second kills.
async fn follow(
    coordinator: &Coordinator,
    pipeline: PipelineId,
    follower: &mut Follower,
    reporter: &mut dyn Reporter,
    interrupts: &mut Interrupts,
    tasks: &mut Tasks,
) -> Result<bool, CiError> {
    let mut interrupted = 0;
    while !follower.picture.is_done() {
        tokio::select! {
            step = follower.next() => follower.take(step, reporter).await?,
            error = tasks.manager_given_up() => return Err(error),
            () = interrupts.next() => {
                interrupted += 1;
                if interrupted == 1 {
                    reporter.warning("cancelling; interrupt again to kill the jobs");
                    coordinator.cancel_pipeline(pipeline).await?;
                } else {
                    reporter.warning("killing the jobs");
                    tasks.kill().await;
                    coordinator.force_cancel(pipeline).await?;
                }
            }
        }
    }
    Ok(interrupted > 0)
}
