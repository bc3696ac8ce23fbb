//! Runs a job, from the request in the spool to the result in the spool.

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::SystemTime;

use futures::FutureExt;
use muster_agent_api::development::Development;
use muster_agent_api::plan::JobPlan;
use muster_agent_api::result::{JobResult, Outcome, StepNode, limit_records};
use muster_agent_api::step_runner::RunRequest;
use muster_builtins::job::{self, JobOutcome};
use muster_builtins::trace::{Trace, TraceOptions};
use muster_builtins::{Context, JobVariable, OnUserCode, Variables, share};
use muster_job::TerminationCause;
use muster_job::mask::Secrets;
use muster_steps::engine::{Debugger, StartTime};
use muster_steps::failure::Failure;
use muster_steps::process::Usage;
use muster_steps::style;
use rand::Rng;

use crate::job::{AgentContext, Finished, Job};
use crate::leftovers;
use crate::parsed_request::ParsedRequest;
use crate::spool::LogSink;

/// Executes a job, stores its result in the spool, and then publishes it.
pub(crate) async fn execute(agent: Arc<AgentContext>, job: Arc<Job>, request: RunRequest, parsed: ParsedRequest) {
    let started = StartTime::now();
    let variables = Variables::new(variables(request));
    let secrets = secrets(&parsed.plan, &variables);
    let running = Box::pin(run(&agent, &job, variables, &parsed, &secrets));
    let outcome = match AssertUnwindSafe(running).catch_unwind().await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => fail_job(&job, started, &secrets.mask(&format!("failed to start the job: {error}")), None),
        Err(_) => {
            leftovers::remove_unfinished(&job.entry, &agent.boot_id).await;
            fail_job(&job, started, "the agent panicked while it ran the job; see the agent's log", None)
        }
    };
    persist_result(&agent, &job, outcome, &secrets, &parsed.plan.development);
}

pub(crate) fn debugger(request: &RunRequest, plan: &JobPlan) -> Option<Debugger> {
    let options = plan.development.debug.as_ref()?;
    Some(Debugger::new(options, secrets(plan, &Variables::new(variables(request.clone())))))
}

fn secrets(plan: &JobPlan, variables: &Variables) -> Secrets {
    let prefixes = plan.mask_prefixes.iter().map(String::as_str);
    if plan.legacy_token_masking {
        Secrets::with_personal_prefix(variables.masked(), prefixes)
    } else {
        Secrets::new(variables.masked(), prefixes)
    }
}

/// Stores a job's result in the spool, and then publishes it.
///
/// Masks the outcome, because names and errors of steps may quote values. `development` limits the size.
pub(crate) fn persist_result(
    agent: &AgentContext,
    job: &Job,
    outcome: JobOutcome,
    secrets: &Secrets,
    development: &Development,
) {
    let outcome = masked(outcome, secrets);
    let mut tree = outcome.tree;
    if !development.full_records {
        limit_records(&mut tree);
    }
    let result = JobResult {
        outcome: outcome.outcome,
        message: outcome.message,
        log_bytes: job.log.bytes(),
        log_crc32: job.log.crc32(),
        tree,
        used: outcome.used,
    };
    let result = result.within_limit(development.max_result_bytes());
    if let Err(error) = job.journal.record_result(&result) {
        agent.spool.release_reserve();
        // The reserve is too small for the records of many calls.
        if let Err(retry_error) = job.journal.record_result(&result.without_records()) {
            // The manager can still report the published result.
            tracing::error!(job = job.id, %error, %retry_error, "failed to write the result to the spool");
        }
    }
    job.result.send_replace(Some(Arc::new(Finished { result, ended: SystemTime::now() })));
    job.log.close();
}

fn masked(mut outcome: JobOutcome, secrets: &Secrets) -> JobOutcome {
    mask(&mut outcome.tree, secrets);
    outcome.message = secrets.mask(&outcome.message);
    if let Some(used) = &mut outcome.used {
        used.share_error = secrets.mask(&used.share_error);
    }
    outcome
}

/// Masks a step and the steps inside it. The step engine limits the depth of the tree, and thus of the recursion.
fn mask(node: &mut StepNode, secrets: &Secrets) {
    node.name = secrets.mask(&node.name);
    node.message = secrets.mask(&node.message);
    if let Some(call) = &mut node.call {
        **call = call.masked(&|text| secrets.mask(text));
    }
    node.steps.iter_mut().for_each(|step| mask(step, secrets));
}

async fn run(
    agent: &Arc<AgentContext>,
    job: &Arc<Job>,
    variables: Variables,
    parsed: &ParsedRequest,
    secrets: &Secrets,
) -> Result<JobOutcome, std::io::Error> {
    let ParsedRequest { plan, steps, declared, .. } = parsed;
    let mut plan = Cow::Borrowed(plan);
    if parsed.is_step_file() {
        plan.to_mut().builds_dir = job.entry.dir().to_string_lossy().into_owned();
    }
    let plan = &*plan;
    let (journal, recorder) = (Arc::clone(&job.journal), Arc::clone(&job.journal));
    journal.record_boot(&agent.boot_id)?;
    let nonce = format!("{:016x}", rand::rng().random::<u64>());
    let mut processes =
        agent.process_manager.new_job(&job.id, &nonce, Arc::new(move |record| recorder.record_process(record)))?;
    processes.add_environment(parsed.environment());
    let share_error = plan.share.as_ref().and_then(|share| share::apply_share(&mut processes, share));
    let options = TraceOptions {
        secrets: secrets.clone(),
        adds_masks: plan.adds_masks,
        timestamps: plan.timestamps,
        limit: plan.output_limit,
    };
    let (fault_agent, fault_job) = (Arc::clone(agent), Arc::clone(job));
    let on_fault = Box::new(move |error: &std::io::Error| {
        tracing::error!(job = fault_job.id, %error, "failed to write the log of a job, stopping the job");
        fault_agent.spool.release_reserve();
        fault_job.cancellation.stop.stop(TerminationCause::ResourceExhausted);
        if error.kind() == std::io::ErrorKind::QuotaExceeded {
            // The quota still allows this last line. The text of `error` names the limit.
            let line = style::warning(&format!("The log ends here: {error}"));
            let _ = fault_job.log.append(format!("\n{line}").as_bytes());
        }
    });
    let logged_bytes = job.log.bytes();
    let trace = Arc::new(Trace::new(&options, Box::new(LogSink(Arc::clone(&job.log))), logged_bytes, on_fault));
    let (gate, needs_approval) = (job.gate.clone(), plan.require_start_approval);
    let on_user_code: OnUserCode = Box::new(move || {
        let (journal, gate) = (Arc::clone(&journal), gate.clone());
        Box::pin(async move {
            if needs_approval {
                gate.wait_open().await;
            }
            journal.record_user_code()
        })
    });
    let mut context =
        Context::new(plan, variables, processes, Arc::clone(&trace), Arc::clone(&agent.resources), on_user_code);
    if parsed.is_step_file() {
        context.temp_dir = job.entry.temp_dir();
    }
    context.declared.clone_from(declared);
    context.debugger.clone_from(&job.debugger);
    let context = Arc::new(context);
    if logged_bytes > 0 {
        context.print(&style::warning(
            "the agent was restarted before the first command of the job, so the job starts again",
        ));
    }
    let mut outcome = job::run(context, plan, steps, &job.cancellation).await;
    if let (Some(used), Some(error)) = (&mut outcome.used, share_error) {
        used.share_error = error;
    }
    if let Some(secrets) = trace.secrets_with_added() {
        outcome = masked(outcome, &secrets);
    }
    Ok(outcome)
}

fn variables(request: RunRequest) -> Vec<JobVariable> {
    let variables = request.job.unwrap_or_default().variables.into_iter().map(|variable| JobVariable {
        key: variable.key,
        value: variable.value,
        file: variable.file,
        masked: variable.masked,
    });
    variables.collect()
}

/// Returns the outcome of a job that failed for `message`, and appends `message` to the job's log.
pub(crate) fn fail_job(job: &Job, started: StartTime, message: &str, cause: Option<TerminationCause>) -> JobOutcome {
    let line = style::error(&format!("Job failed (system failure): {message}"));
    let line_break = if job.log.ends_with_line_break() { "" } else { "\n" };
    if let Err(error) = job.log.append(format!("{line_break}{line}").as_bytes()) {
        tracing::error!(job = job.id, %error, "failed to write the final message of a job to its log");
    }
    let failure = Failure::System(message.to_owned());
    let mut tree = started.node("job", Some(&failure).into(), Usage::default(), Vec::new());
    tree.cause = cause;
    JobOutcome {
        outcome: Outcome::Failed { reason: failure.reason(), exit_code: None, cause },
        message: message.to_owned(),
        tree,
        used: None,
    }
}
