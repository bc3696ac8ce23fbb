//! `builtin://job`: runs a whole job, including everything before and after its steps.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_agent_api::plan::JobPlan;
use muster_agent_api::result::{Outcome, ResourceUsage, StepNode};
use muster_job::{FailureReason, TerminationCause};
use muster_steps::builtin::Step;
use muster_steps::engine::{Engine, JobCancellation, StartTime, StepsResult};
use muster_steps::failure::Failure;
use muster_steps::process::Usage;
use muster_steps::stop::{StopToken, wait_until};
use muster_steps::style;

use crate::blocking::blocking;
use crate::context::Context;
use crate::git_mirror;
use crate::job_steps;
use crate::service;
use crate::share::{self, JobResources};

/// Maximum time to remove temporary files.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(300);

/// Result of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOutcome {
    /// Success or failure.
    pub outcome: Outcome,
    /// Message of the failure, or empty.
    pub message: String,
    /// Results of the steps.
    pub tree: StepNode,
    /// Resource usage, if known.
    pub used: Option<ResourceUsage>,
}

/// Executes a job. Afterwards, all its processes have ended and the trace is closed.
pub async fn run(
    context: Arc<Context>,
    plan: &JobPlan,
    steps: &[Step<Context>],
    cancellation: &JobCancellation,
) -> JobOutcome {
    let start = StartTime::now();
    context.bundled_steps.get_or_init(|| job_steps::bundled_steps);
    context.print(&first_lines(plan));
    let engine = Engine::new(Arc::clone(&context), plan, start);
    // The box frees the memory of the preparation before the steps run.
    let preparation = Box::pin(prepare(&context, plan, steps, cancellation, engine.deadline()));
    let (resources, prepared) = preparation.await;
    let StepsResult { failure, nodes } = match prepared {
        Ok(()) => engine.run(steps, cancellation).await,
        Err(failure) => StepsResult { failure: Some(failure), nodes: Vec::new() },
    };
    service::terminate(&context).await;
    context.processes.finish(context.grace).await;
    let mut used = share::usage(&context.processes, context.network.as_ref(), start.elapsed());
    context.delegated_usage.lock().iter().for_each(|usage| used.add_delegated(usage));
    if let Some(resources) = resources {
        resources.end(&context, &mut used).await;
    }
    git_mirror::close(&context).await;
    let cleanup_stop = cancellation.stop.child();
    let cleanup_deadline = Instant::now().checked_add(CLEANUP_TIMEOUT);
    let cleared = cleanup_stop.stop_on(
        wait_until(cleanup_deadline),
        TerminationCause::TimedOut,
        context.clear_files(&cleanup_stop),
    );
    if let Err(failure @ Failure::System(_)) = cleared.await {
        context.print(&style::warning(&failure.to_string()));
    }
    let last = if plan.bare { String::new() } else { last_line(failure.as_ref()) };
    context.trace.close(last.as_bytes());
    let tree = start.node("job", failure.as_ref().into(), Usage::default(), nodes);
    JobOutcome { outcome: outcome(failure.as_ref()), message: tree.message.clone(), tree, used: Some(used) }
}

/// Prepares the job before its first step.
async fn prepare(
    context: &Arc<Context>,
    plan: &JobPlan,
    steps: &[Step<Context>],
    cancellation: &JobCancellation,
    deadline: Option<Instant>,
) -> (Option<JobResources>, Result<(), Failure>) {
    let stop = cancellation.stop.child();
    let work = async {
        let resources = match &plan.share {
            Some(share) => Some(JobResources::begin(context, share, &stop).await),
            None => None,
        };
        let created = if plan.bare {
            create_work_dir(context, &stop).await
        } else if steps.iter().any(Step::is_by_operator) {
            // The operator's steps may run in this directory before the checkout.
            context.create_project_dir(&stop).await
        } else {
            Ok(())
        };
        let prepared = match created {
            Ok(()) => context.write_files(&stop).await,
            failed => failed,
        };
        let limited = match prepared {
            Ok(()) => set_limits(context, plan, steps),
            failed => failed,
        };
        (resources, limited)
    };
    let work = stop.stop_on(wait_until(deadline), TerminationCause::TimedOut, work);
    stop.stop_on(cancellation.cancel.cancelled(), TerminationCause::CanceledByUser, work).await
}

/// Prepares the operator's limits for processes of the job's author.
fn set_limits(context: &Context, plan: &JobPlan, steps: &[Step<Context>]) -> Result<(), Failure> {
    let Some(policy) = plan.step_policy.as_ref().filter(|_| steps.iter().any(Step::has_steps_by_author)) else {
        return Ok(());
    };
    let set = || {
        context.processes.set_limits(&policy.limits)?;
        let rules = policy.rules.iter().enumerate().filter(|(_, rule)| rule.is_allowed && !rule.limits.is_empty());
        rules.into_iter().try_for_each(|(position, rule)| context.processes.check_limits(position, &rule.limits))
    };
    set().map_err(|error| {
        let file = &policy.file;
        Failure::Configuration(format!("the limits of the step policy {file} cannot be enforced here: {error}"))
    })
}

/// Creates the project directory for a bare plan, such as in a container.
async fn create_work_dir(context: &Arc<Context>, stop: &StopToken) -> Result<(), Failure> {
    let dir = context.project_dir.clone();
    blocking(&**context, "creating the job's directory", stop, move || {
        let created = fs::create_dir_all(&dir).and_then(|()| take_ownership(&dir));
        created.map_err(Failure::io("failed to create the job's directory"))
    })
    .await
}

/// Makes root the owner of a directory, if this process is root.
///
/// If the directory kept another owner, a later job whose processes run as that owner would find the directory as
/// expected, and would not change the owner of the files that root has created in it.
fn take_ownership(directory: &Path) -> io::Result<()> {
    let own = rustix::process::geteuid();
    if own.is_root() && fs::metadata(directory)?.uid() != 0 {
        std::os::unix::fs::lchown(directory, Some(own.as_raw()), None)?;
    }
    Ok(())
}

fn first_lines(plan: &JobPlan) -> String {
    let header = plan.header.iter().map(|line| style::plain(line));
    let notices = plan.notices.iter().map(|notice| style::info(notice));
    let warnings = (!plan.warnings.is_empty()).then(|| style::warning(&plan.warnings.join("\n")));
    header.chain(notices).chain(warnings).collect()
}

fn last_line(failure: Option<&Failure>) -> String {
    match failure {
        None => style::info("Job succeeded"),
        Some(failure) if failure.reason() == FailureReason::RunnerSystemFailure => {
            style::error(&format!("Job failed (system failure): {failure}"))
        }
        Some(failure) => style::error(&format!("Job failed: {failure}")),
    }
}

fn outcome(failure: Option<&Failure>) -> Outcome {
    match failure {
        None => Outcome::Success,
        Some(failure) => {
            Outcome::Failed { reason: failure.reason(), exit_code: failure.exit_code(), cause: failure.cause() }
        }
    }
}
