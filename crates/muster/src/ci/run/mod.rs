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
mod logs;
mod report;
mod signals;
mod start;
mod summary;
mod supervisor;
mod tasks;
mod trace;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_coordinator::http::{HttpFront, Repository};
use muster_coordinator::{Coordinator, Options};
use muster_job::{JobId, PipelineId};
use muster_pipeline::model::{Need, Pipeline};
use muster_source::Snapshot;
use tokio::sync::mpsc;

use super::args::{Executor, RunArgs};
use super::error::{CiError, ExitStatus};
use super::prepare::{Prepared, Purpose, Target, locate, prepare};
use super::record::RunRecord;
use super::select::select;
use super::state::{Run, probe_space, remove_all};
use super::ui;
pub(crate) use descendants::adopt_orphans;
use follow::Follower;
use report::{Ending, Reporter, RunInfo, reporter};
pub(super) use report::{failure, job_time, tree_of, used_by};
pub(crate) use signals::Interrupts;
use start::{announce, manager_options, new_pipeline, notices};
pub(crate) use supervisor::end_descendants;
use supervisor::supervise;
use tasks::Tasks;
pub(super) use trace::TraceLines;

/// Ids of pipelines and jobs of different runs differ: run 7 starts with pipeline 7000 and job 700000.
const PIPELINES_PER_RUN: i64 = 1000;
const JOBS_PER_RUN: i64 = 100_000;
/// How often a manager of ours sends pieces of a trace.
const TRACE_INTERVAL: Duration = Duration::from_millis(100);
/// Far above what the manager lets a job write, with the stamps of its lines: a long log fails no job here.
const TRACE_BYTES_MAX: u64 = 4 << 30;
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
        Err(error) => {
            let error = for_lack_of_space(error, &run.folder);
            return discard(&project, run, Err(error));
        }
    };
    let keep = ready.prepared.config.keep.clone();
    let status = perform(&args, &run, ready, interrupts, started).await;
    let status = status.map_err(|error| for_lack_of_space(error, &run.folder));
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

/// What failed because the disk is full is told as that: who reports it (a database, git) often knows no more than
/// "input/output error".
fn for_lack_of_space(error: CiError, folder: &Path) -> CiError {
    let may_be = matches!(
        error,
        CiError::Snapshot(_)
            | CiError::Open(_)
            | CiError::Coordinator(_)
            | CiError::State { .. }
            | CiError::System { .. }
    );
    match probe_space(folder) {
        Err(full) if may_be && full.kind() == std::io::ErrorKind::StorageFull => {
            CiError::no_storage(folder, muster_job::error_chain(&error))
        }
        _ => error,
    }
}

/// Deletes the folder of a run that has no pipeline.
fn discard(
    project: &super::state::ProjectState,
    run: Run,
    result: Result<ExitStatus, CiError>,
) -> Result<ExitStatus, CiError> {
    if let Err(error) = project.discard(run) {
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
    front: HttpFront,
}

/// Takes the snapshot, compiles and selects; none if the event makes no pipeline.
async fn ready(args: &RunArgs, project: super::state::ProjectState, run: &Run) -> Result<Option<Ready>, CiError> {
    let front = HttpFront::open(args.listen).await;
    let front = front.map_err(CiError::system(format!("cannot listen on `{}`", args.listen)))?;
    let url = front.url();
    let target = Target {
        store: &run.folder.join("store.git"),
        server_url: Some(&url),
        iid: run.number,
        purpose: Purpose::Run,
        stubs_includes: false,
    };
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
    let (mut pipeline, play) = select(pipeline, args)?;
    skip_other_projects(&mut pipeline);
    if args.executor == Executor::Host {
        notices(&pipeline);
    }
    Ok(Some(Ready { prepared, pipeline, play, front }))
}

/// Takes the artifacts of other projects' jobs off the needs: their pipelines ran elsewhere. Says so, once.
fn skip_other_projects(pipeline: &mut Pipeline) {
    let mut skipped = Vec::new();
    for job in &mut pipeline.jobs {
        for need in job.needs.iter_mut().flatten() {
            if let Need::Project { project, job: producer, artifacts: artifacts @ true, .. } = need {
                *artifacts = false;
                skipped.push(format!("{} (job {producer} of {project})", ui::plain(&job.name)));
            }
        }
    }
    if !skipped.is_empty() {
        let skipped = skipped.join(", ");
        ui::note(&format!(
            "artifacts of other projects are not on this machine; these jobs run without them: {skipped}"
        ));
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
    adopt_orphans();
    let mut tasks = Tasks::default();
    let result = with_coordinator(args, run, ready, interrupts, started, &mut tasks).await;
    tasks.end().await;
    end_descendants(AGENT_GRACE).await;
    result
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
    let url = ready.front.url();
    let external = args.executor == Executor::External;
    let mut options = Options::new(run.folder.join("coordinator"));
    options.first_pipeline_id = PipelineId(number * PIPELINES_PER_RUN);
    options.first_job_id = JobId(number * JOBS_PER_RUN);
    options.local_repository = !external;
    options.server_url.clone_from(&url);
    options.registration_token = external.then(|| uuid::Uuid::new_v4().simple().to_string());
    options.limits.trace_bytes = TRACE_BYTES_MAX;
    options.limits.unpack = ready.prepared.config.unpack.limits();
    if !external {
        options.limits.trace_interval = TRACE_INTERVAL;
    }
    // Somebody follows the whole run.
    options.limits.unwatched_trace_interval = options.limits.trace_interval;
    let registration = options.registration_token.clone();
    let root = options.first_pipeline_id;
    let coordinator = Coordinator::open(options).await?;

    let log = args.log_mode(ready.pipeline.jobs.len());
    let mut follower = Follower::new(Arc::clone(&coordinator), run, log, args.timestamps, external);
    let mut reporter = reporter(args.output);
    let new = new_pipeline(args, &ready, root, &url)?;
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
        url: &url,
    });

    let repository =
        Repository { path: prepared.snapshot.repository.clone(), project_path: prepared.context.project_path.clone() };
    tasks.serve = Some(tokio::spawn(ready.front.serve(Arc::clone(&coordinator), Some(repository))));
    match registration {
        Some(token) => announce(args.output, &url, &token, pipeline),
        None => {
            let (restarted, restarts) = mpsc::channel(1);
            tasks.restarts = Some(restarts);
            let stop = tasks.stop_manager.child_token();
            let options =
                manager_options(args, run, &coordinator, &prepared.project, &url, prepared.config.unpack).await?;
            tasks.manager = Some(tokio::spawn(supervise(options, coordinator.subscribe(), stop, restarted)));
        }
    }
    let created = coordinator.create_pipeline(new).await?;
    debug_assert_eq!(created, root, "an empty database starts with the id it was told");
    let cancelled =
        follow(&coordinator, created, &prepared.snapshot, &mut follower, &mut *reporter, &mut interrupts, tasks).await;
    let cancelled = match cancelled {
        Ok(cancelled) => cancelled,
        Err(error) => {
            record.outcome = Some(outcome(ExitStatus::BadConfiguration).to_owned());
            // Where the disk is full the file cannot be replaced; what matters is the first error.
            let _ = record.write(&run.folder);
            return Err(error);
        }
    };

    let status = match (cancelled, follower.picture.has_failed()) {
        (true, _) => ExitStatus::Cancelled,
        (false, true) => ExitStatus::Failed,
        (false, false) => ExitStatus::Passed,
    };
    let elapsed = started.elapsed();
    let critical_path = summary::critical_jobs(pipeline, created, &follower.picture);
    reporter.finished(&Ending { status, elapsed, picture: &follower.picture, critical_path });
    let blocked = status == ExitStatus::Passed && follower.picture.is_blocked();
    record.outcome = Some(if blocked { "blocked" } else { outcome(status) }.to_owned());
    record.duration_ms = Some(muster_job::milliseconds(elapsed));
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

/// Follows until nothing more happens; says whether the user cancelled. The first interrupt cancels, the second kills.
async fn follow(
    coordinator: &Coordinator,
    pipeline: PipelineId,
    snapshot: &Snapshot,
    follower: &mut Follower,
    reporter: &mut dyn Reporter,
    interrupts: &mut Interrupts,
    tasks: &mut Tasks,
) -> Result<bool, CiError> {
    let mut interrupted = 0;
    let mut pinned = BTreeSet::from([pipeline]);
    loop {
        follower.has_space()?;
        if follower.picture.has_ended() || follower.picture.is_still() {
            // What was told so far may be the half of a batch.
            follower.read_anew(reporter).await?;
            follower.has_space()?;
            if follower.picture.has_ended() || follower.picture.is_still() {
                return Ok(interrupted > 0);
            }
        }
        let out_of_storage = follower.out_of_storage();
        tokio::select! {
            step = follower.next() => {
                follower.take(step, reporter).await?;
                // Jobs of child pipelines fetch the same commit by the ref of their own pipeline.
                for child in follower.picture.pipelines.keys().copied().filter(|child| pinned.insert(*child)) {
                    snapshot.pin(child.0, None)?;
                }
            }
            restarted = tasks.manager_restarted() => {
                reporter.warning(&format!("the manager ended ({}) and was started again; the jobs go on", restarted?));
            }
            problem = out_of_storage => return Err(follower.no_storage(&problem)),
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
}
