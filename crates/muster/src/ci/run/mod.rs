//! `muster ci run`: runs the pipeline of the working tree, and returns its exit status.
//!
//! ```text
//! snapshot, compile --> coordinator (this process) <--runner API--> manager (child) --> agent --> jobs
//!                            | events
//!                        follower --> reporter
//! ```

mod containers;
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

use muster_coordinator::http::{HttpServer, Repository};
use muster_coordinator::{Coordinator, Options};
use muster_job::{JobId, PipelineId};
use muster_pipeline::model::{Need, Pipeline};
use muster_source::Snapshot;
use tokio::sync::mpsc;

use super::args::{Executor, RunArgs};
use super::error::{CiError, ExitStatus};
use super::prepare::{PrepareOptions, Prepared, Purpose, locate, prepare};
use super::record::RunRecord;
use super::select::select;
use super::state::{Run, probe_space};
use super::trash::remove_all;
use super::ui;
use containers::ContainerOptions;
pub(crate) use descendants::adopt_orphans;
use follow::Follower;
use report::{Reporter, RunInfo, RunResult, reporter};
pub(super) use report::{failure_message, job_duration, tree_of, usage_of};
pub(crate) use signals::Interrupts;
use start::{manager_options, new_pipeline, print_registration};
pub(crate) use supervisor::end_descendants;
use supervisor::supervise;
use tasks::Tasks;
pub(super) use trace::TraceLines;

/// Distance between the first pipeline IDs of two runs: run 7 begins with pipeline 7000.
const PIPELINES_PER_RUN: i64 = 1000;
/// Distance between the first job IDs of two runs: run 7 begins with job 700000.
const JOBS_PER_RUN: i64 = 100_000;
const TRACE_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum size of a trace. It is far above the size to which the manager truncates a log, so a job never fails because
/// its log is long.
const MAX_TRACE_BYTES: u64 = 4 << 30;
/// Time between SIGTERM and SIGKILL for the descendants that remain at the end of the run, such as the agent.
const AGENT_EXIT_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) async fn run(args: RunArgs) -> Result<ExitStatus, CiError> {
    if args.image.is_some() && args.executor != Executor::Docker {
        return Err(CiError::Usage(
            "`--image` has no effect without `--executor docker`; add it, or remove `--image`".to_owned(),
        ));
    }
    let mut interrupts = Interrupts::new()?;
    let project = locate(&args.pipeline.repository.directory)?;
    let run = project.start_run()?;
    let started = Instant::now();
    let result = tokio::select! {
        result = prepare_run(&args, project.clone(), &run) => result,
        // No process or task has been started yet, so there is nothing to stop.
        () = interrupts.next() => return discard(&project, run, Ok(ExitStatus::Canceled)),
    };
    let ready = match result {
        Ok(Some(ready)) => ready,
        Ok(None) => return discard(&project, run, Ok(ExitStatus::Passed)),
        Err(error) => {
            let error = or_full_disk(error, &run.directory);
            return discard(&project, run, Err(error));
        }
    };
    let retention = ready.prepared.config.retention.clone();
    let status = run_pipeline(&args, &run, ready, interrupts, started).await;
    let status = status.map_err(|error| or_full_disk(error, &run.directory));
    let workspaces = (!args.keep).then(|| run.directory.join("builds"));
    let cleanup = tokio::task::spawn_blocking(move || {
        if let Some(error) = workspaces.and_then(|directory| remove_all(&directory).err()) {
            tracing::warn!(%error, "failed to delete the workspaces");
        }
        // This run is still active, so pruning does not delete its directory.
        project.prune(&retention, std::time::SystemTime::now(), &mut |path, error| {
            ui::warning(&format!(
                "failed to delete `{}` of a past run: {error}; delete it as the user who owns it (files that jobs created with `sudo` or in \
                 containers belong to other users). Muster tries again after each run, and does not repeat this warning",
                ui::plain(&path.display().to_string())
            ));
        });
    });
    if let Err(error) = cleanup.await {
        tracing::warn!(%error, "failed to prune past runs");
    }
    status
}

/// If the disk is full, returns an error that says so. Otherwise, returns `error`.
///
/// Databases and git often report only "input/output error" when the disk is full.
fn or_full_disk(error: CiError, directory: &Path) -> CiError {
    let may_hide_full_disk = matches!(
        error,
        CiError::Snapshot(_)
            | CiError::Open(_)
            | CiError::Coordinator(_)
            | CiError::State { .. }
            | CiError::System { .. }
    );
    match probe_space(directory) {
        Err(full) if may_hide_full_disk && full.kind() == std::io::ErrorKind::StorageFull => {
            CiError::no_storage(directory, muster_job::error_chain(&error))
        }
        _ => error,
    }
}

fn discard(
    project: &super::state::ProjectState,
    run: Run,
    result: Result<ExitStatus, CiError>,
) -> Result<ExitStatus, CiError> {
    if let Err(error) = project.discard(run) {
        tracing::debug!(%error, "failed to delete the directory of a run that was not started");
    }
    result
}

struct ReadyPipeline {
    prepared: Prepared,
    pipeline: Pipeline,
    /// Names of the manual and delayed jobs to start immediately.
    play: Vec<String>,
    server: HttpServer,
    /// Engine for jobs in containers. `None` means that all jobs run directly on this machine, or on external runners.
    containers: Option<ContainerOptions>,
}

/// Takes the snapshot, compiles the pipeline and selects its jobs. `None` if there is no pipeline and no job was named.
async fn prepare_run(
    args: &RunArgs,
    project: super::state::ProjectState,
    run: &Run,
) -> Result<Option<ReadyPipeline>, CiError> {
    let server = HttpServer::open(args.listen).await;
    let server = server.map_err(CiError::system(format!("listen on `{}`", args.listen)))?;
    let url = server.url();
    let options = PrepareOptions {
        store: &run.directory.join("store.git"),
        server_url: Some(&url),
        iid: run.number,
        purpose: Purpose::Run,
        stubs_includes: false,
    };
    let mut prepared = prepare(&args.pipeline, project, &options).await?;
    prepared.show_diagnostics()?;
    let Some(pipeline) = prepared.compiled.pipeline.take() else {
        let reason = prepared.compiled.not_created.as_ref().map(|cause| cause.reason.to_string()).unwrap_or_default();
        if args.jobs.is_empty() {
            ui::note(&format!("no pipeline for this event: {reason}"));
            return Ok(None);
        }
        return Err(CiError::Failed(format!("failed to run the jobs: no pipeline for this event: {reason}")));
    };
    if args.keep {
        separate_workspaces(&mut prepared);
    }
    let (mut pipeline, play) = select(pipeline, args)?;
    skip_artifacts_of_other_projects(&mut pipeline);
    let containers = containers::choose_engine(args, &pipeline).await?;
    Ok(Some(ReadyPipeline { prepared, pipeline, play, server, containers }))
}

/// Removes artifacts of other projects' jobs from the needs, because their pipelines did not run here.
fn skip_artifacts_of_other_projects(pipeline: &mut Pipeline) {
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
            "artifacts of other projects are not available locally; these jobs run without them: {skipped}"
        ));
    }
}

/// Gives each job a separate workspace, unless the configuration sets its path.
fn separate_workspaces(prepared: &mut Prepared) {
    let path = "$CI_BUILDS_DIR/$CI_JOB_ID/$CI_PROJECT_PATH";
    prepared.context.predefined.push(muster_job::Variable::public("GIT_CLONE_PATH", path));
}

/// Runs the pipeline. Always stops the processes that it started.
async fn run_pipeline(
    args: &RunArgs,
    run: &Run,
    ready: ReadyPipeline,
    interrupts: Interrupts,
    started: Instant,
) -> Result<ExitStatus, CiError> {
    adopt_orphans();
    let mut tasks = Tasks::default();
    let result = run_with_coordinator(args, run, ready, interrupts, started, &mut tasks).await;
    tasks.stop().await;
    end_descendants(AGENT_EXIT_TIMEOUT).await;
    result
}

async fn run_with_coordinator(
    args: &RunArgs,
    run: &Run,
    ready: ReadyPipeline,
    mut interrupts: Interrupts,
    started: Instant,
    tasks: &mut Tasks,
) -> Result<ExitStatus, CiError> {
    let number = i64::try_from(run.number).unwrap_or(i64::MAX / JOBS_PER_RUN);
    let url = ready.server.url();
    let external = args.executor == Executor::External;
    let mut options = Options::new(run.directory.join("coordinator"));
    options.first_pipeline_id = PipelineId(number * PIPELINES_PER_RUN);
    options.first_job_id = JobId(number * JOBS_PER_RUN);
    options.local_repository = !external;
    options.server_url.clone_from(&url);
    options.registration_token = external.then(|| uuid::Uuid::new_v4().simple().to_string());
    options.limits.trace_bytes = MAX_TRACE_BYTES;
    options.limits.unpack = ready.prepared.config.unpack.limits();
    if !external {
        options.limits.trace_interval = TRACE_INTERVAL;
    }
    // The follower shows the traces of all jobs, so a trace that no user reads must arrive as often as one that a user
    // reads.
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
    record.write(&run.directory)?;
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
    let ready_containers = ready.containers.clone();
    tasks.server = Some(tokio::spawn(ready.server.serve(Arc::clone(&coordinator), Some(repository))));
    match registration {
        Some(token) => print_registration(args.output, &url, &token, pipeline),
        None => {
            let (restarted, restarts) = mpsc::channel(1);
            tasks.restarts = Some(restarts);
            let stop = tasks.stop_manager.child_token();
            let mut options =
                manager_options(args, run, &coordinator, &prepared.project, &url, prepared.config.unpack).await?;
            options.containers.clone_from(&ready_containers);
            tasks.manager = Some(tokio::spawn(supervise(options, coordinator.subscribe(), stop, restarted)));
        }
    }
    let created = coordinator.create_pipeline(new).await?;
    debug_assert_eq!(created, root, "an empty database starts with the given ID");
    let canceled =
        follow(&coordinator, created, &prepared.snapshot, &mut follower, &mut *reporter, &mut interrupts, tasks).await;
    let canceled = match canceled {
        Ok(canceled) => canceled,
        Err(error) => {
            record.outcome = Some(outcome(ExitStatus::BadConfiguration).to_owned());
            // Ignore a second error, which a full disk may cause.
            let _ = record.write(&run.directory);
            return Err(error);
        }
    };

    let status = match (canceled, follower.view.has_failed()) {
        (true, _) => ExitStatus::Canceled,
        (false, true) => ExitStatus::Failed,
        (false, false) => ExitStatus::Passed,
    };
    let elapsed = started.elapsed();
    let critical_path = summary::critical_jobs(pipeline, created, &follower.view);
    reporter.finished(&RunResult { status, elapsed, view: &follower.view, critical_path });
    let blocked = status == ExitStatus::Passed && follower.view.is_blocked();
    record.outcome = Some(if blocked { "blocked" } else { outcome(status) }.to_owned());
    record.duration_ms = Some(muster_job::milliseconds(elapsed));
    record.write(&run.directory)?;
    tasks.stop().await;
    coordinator.shutdown().await;
    Ok(status)
}

fn outcome(status: ExitStatus) -> &'static str {
    match status {
        ExitStatus::Passed => "passed",
        ExitStatus::Failed => "failed",
        ExitStatus::BadConfiguration => "error",
        ExitStatus::Canceled => "canceled",
    }
}

/// Follows the run until nothing more happens, and returns whether the user canceled the run.
///
/// The first interrupt cancels the jobs. Each further interrupt kills them.
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
        follower.check_disk_problem()?;
        if follower.view.is_finished() || follower.view.is_idle() {
            // The events so far may be the first half of a batch, so check the complete state.
            follower.resync(reporter).await?;
            follower.check_disk_problem()?;
            if follower.view.is_finished() || follower.view.is_idle() {
                return Ok(interrupted > 0);
            }
        }
        let out_of_storage = follower.out_of_storage();
        tokio::select! {
            event = follower.next() => {
                follower.handle(event, reporter).await?;
                // Jobs of child pipelines fetch the same commit by the ref of their own pipeline.
                for child in follower.view.pipelines.keys().copied().filter(|child| pinned.insert(*child)) {
                    snapshot.pin(child.0, None)?;
                }
            }
            restarted = tasks.manager_restarted() => {
                reporter.warning(&format!("the manager exited ({}) and was restarted; jobs continue", restarted?));
            }
            problem = out_of_storage => return Err(follower.no_storage(&problem)),
            () = interrupts.next() => {
                interrupted += 1;
                if interrupted == 1 {
                    reporter.warning("canceling the jobs; interrupt again to kill them");
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
