//! `builtin://job`: the phases of a job in their order, each under its condition (job-execution 1.3 to 1.9).
//!
//! ```text
//! header -> phases -> last line -> result
//!              |
//!              +-- failed:     later `on_success` phases are left out
//!              +-- canceled:   in a script: after_script and uploads still run; elsewhere: only cleaning up
//!              +-- timed out:  only cleaning up
//! ```

mod phase;
mod standing;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muster_agent_api::builtin::{Builtin, JobPlan, Phase, PhaseWhen};
use muster_agent_api::result::{Outcome, StepNode, StepStatus, Used};
use muster_job::{EndCause, FailureReason};
use muster_steps::stop::Stop;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::failure::Failure;
use crate::share::{self, Sharing};
use crate::trace::style;
use phase::reached;
use standing::Standing;

/// Time that the removal of the job's temporary files may take. Only a file system that does not answer takes longer.
const END_LIMIT: Duration = Duration::from_secs(300);

/// How a job ended; the trace's end is written, its length is not known yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEnd {
    /// The outcome.
    pub outcome: Outcome,
    /// As in the last line of the trace; empty for success.
    pub message: String,
    /// Every phase.
    pub tree: StepNode,
    /// What it used; none: nothing of it ran.
    pub used: Option<Used>,
}

/// The two ways to end a job before its time.
#[derive(Debug, Clone, Default)]
pub struct Brakes {
    /// Graceful: ends the script, then after_script and uploads run.
    pub cancel: CancellationToken,
    /// Ends everything; only cleaning up runs.
    pub stop: Stop,
}

/// Executes a job. Everything it started has ended when this returns, and its trace is closed.
pub async fn run(context: Arc<Context>, plan: &JobPlan, brakes: &Brakes) -> JobEnd {
    let started = Instant::now();
    let started_ms = unix_ms();
    context.say(&opening(plan));
    let mut standing = Standing::default();
    let mut steps = Vec::new();
    let deadline = (plan.timeout_ms > 0).then(|| started + Duration::from_millis(plan.timeout_ms));
    let (sharing, prepared) = prepare(&context, plan, brakes, deadline).await;
    match prepared {
        Ok(()) => {
            let runner = phase::Runner { context: Arc::clone(&context), plan, brakes, deadline };
            for phase in &plan.phases {
                steps.extend(one_phase(&runner, phase, &mut standing).await);
            }
        }
        Err(failure) => standing.fail(failure),
    }
    context.processes.finish(context.grace).await;
    let mut used = share::used(&context.processes, started.elapsed());
    if let Some(sharing) = sharing {
        sharing.end(&context, &mut used).await;
    }
    let end = brakes.stop.child();
    let cleared =
        ended_by(reached(Some(Instant::now() + END_LIMIT)), EndCause::TimedOut, &end, context.clear_files(&end));
    if let Err(failure @ Failure::System(_)) = cleared.await {
        context.say(&style::warning(&failure.to_string()));
    }
    let failure = standing.failure();
    context.trace.close(last_line(failure.as_ref()).as_bytes());
    let status = match &failure {
        None => StepStatus::Success,
        Some(Failure::Stopped(_)) => StepStatus::Cancelled,
        Some(_) => StepStatus::Failure,
    };
    let message = failure.as_ref().map(ToString::to_string).unwrap_or_default();
    let tree = StepNode {
        name: "job".to_owned(),
        status,
        started_ms,
        duration_ms: millis(started.elapsed()),
        exit_code: failure.as_ref().and_then(Failure::exit_code),
        message: message.clone(),
        cause: failure.as_ref().and_then(Failure::cause),
        steps,
    };
    JobEnd { outcome: outcome(failure.as_ref()), message, tree, used: Some(used) }
}

/// What comes before the first phase: the sticky context, and the job's temporary files.
async fn prepare(
    context: &Arc<Context>,
    plan: &JobPlan,
    brakes: &Brakes,
    deadline: Option<Instant>,
) -> (Option<Sharing>, Result<(), Failure>) {
    let stop = brakes.stop.child();
    let work = async {
        let sharing = match &plan.share {
            Some(share) => Some(Sharing::begin(context, share, &stop).await),
            None => None,
        };
        (sharing, context.write_files(&stop).await)
    };
    let work = ended_by(reached(deadline), EndCause::TimedOut, &stop, work);
    ended_by(brakes.cancel.cancelled(), EndCause::CanceledByUser, &stop, work).await
}

/// Does the work; when `event` comes first, asks it to end. The work decides how long that takes.
async fn ended_by<T>(
    event: impl Future<Output = ()>,
    cause: EndCause,
    stop: &Stop,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    tokio::select! {
        biased;
        done = &mut work => return done,
        () = event => stop.stop(cause),
    }
    work.await
}

/// The first lines of the trace.
fn opening(plan: &JobPlan) -> String {
    let header = plan.header.iter().map(|line| style::plain(line));
    let notices = plan.notices.iter().map(|notice| style::info(notice));
    let warnings = (!plan.warnings.is_empty()).then(|| style::warning(&plan.warnings.join("\n")));
    header.chain(notices).chain(warnings).collect()
}

/// Runs one phase if it is its turn. None if there is nothing to tell about it.
async fn one_phase(runner: &phase::Runner<'_>, phase: &Phase, standing: &mut Standing) -> Option<StepNode> {
    if is_idle(&phase.run) {
        return None;
    }
    standing.notice(runner.brakes);
    if !standing.allows(phase) {
        if matches!(phase.run, Builtin::Prepare(_)) {
            return None;
        }
        // A variant for the other outcome is no news.
        let told = phase.when != PhaseWhen::OnFailure;
        return told.then(|| node(&phase.name, StepStatus::Skipped, Instant::now(), unix_ms(), None, Vec::new()));
    }
    let started = Instant::now();
    let started_ms = unix_ms();
    let is_script = is_user_script(&phase.run);
    standing.enter(is_script);
    runner.context.variables.set("CI_JOB_STATUS", standing.word(is_script));
    let done = runner.run(phase, standing.cancel_reaches(phase)).await;
    let failure = done.result.err();
    let status = match &failure {
        None => StepStatus::Success,
        Some(Failure::Stopped(_)) => StepStatus::Cancelled,
        Some(_) => StepStatus::Failure,
    };
    let node = node(&phase.name, status, started, started_ms, failure.as_ref(), done.steps);
    if let Some(failure) = failure {
        standing.settle(phase, failure, runner);
    }
    // Where a job runs is no step of it.
    (!matches!(phase.run, Builtin::Prepare(_))).then_some(node)
}

fn node(
    name: &str,
    status: StepStatus,
    started: Instant,
    started_ms: u64,
    failure: Option<&Failure>,
    steps: Vec<StepNode>,
) -> StepNode {
    StepNode {
        name: name.to_owned(),
        status,
        started_ms,
        duration_ms: millis(started.elapsed()),
        exit_code: failure.and_then(Failure::exit_code),
        message: failure.map(ToString::to_string).unwrap_or_default(),
        cause: failure.and_then(Failure::cause),
        steps,
    }
}

/// The user's own commands, but for after_script.
fn is_user_script(run: &Builtin) -> bool {
    match run {
        Builtin::Script(script) => !script.after_script,
        Builtin::Steps { .. } => true,
        _ => false,
    }
}

fn is_after_script(run: &Builtin) -> bool {
    matches!(run, Builtin::Script(script) if script.after_script)
}

/// A phase with nothing to do prints nothing at all (job-execution 1.3).
fn is_idle(run: &Builtin) -> bool {
    match run {
        Builtin::Script(script) => script.commands.is_empty(),
        Builtin::CacheRestore(all) | Builtin::CacheSave(all) => all.caches.is_empty(),
        Builtin::ArtifactsDownload(download) => download.from.is_empty(),
        Builtin::ArtifactsUpload(all) => all.artifacts.is_empty(),
        Builtin::Prepare(_) | Builtin::Checkout(_) | Builtin::Steps { .. } | Builtin::Cleanup(_) => false,
    }
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

pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
