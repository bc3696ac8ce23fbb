//! Recovers the jobs of an earlier agent.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::FutureExt;
use futures::future::join_all;
use muster_agent_api::development::Development;
use muster_agent_api::result::{JobResult, Outcome};
use muster_agent_api::step_runner::RunRequest;
use muster_builtins::Variables;
use muster_job::TerminationCause;
use muster_job::mask::Secrets;
use muster_steps::builtin::Step;
use muster_steps::engine::StartTime;
use muster_steps::process::ProcessRecord;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::agent::Agent;
use crate::job::{AgentContext, Finished, Job};
use crate::leftovers::{
    FIRST_REMOVAL_TIMEOUT, KILL_GRACE, has_environments, has_leftovers, is_of_earlier_boot, remove_leftovers, temp_dir,
    terminate_processes, try_remove,
};
use crate::parsed_request::{ParsedRequest, parse};
use crate::run_job::{fail_job, persist_result};
use crate::spool::{Entry, JournalContents};

/// Maximum time to remove leftovers of all jobs that can run again, during which the agent serves no calls.
///
/// The next start of such a job replaces its leftovers.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);
const LOST_MESSAGE: &str =
    "the agent was killed while the job ran, so its script was killed, too; the log is complete up to this line";
const REBOOT_MESSAGE: &str =
    "the machine was restarted while the job ran, so its script was killed; the last seconds of the log may be missing";

/// Recovers each job in the spool, and returns tasks that remove environments of lost jobs, such as containers.
///
/// Finished jobs keep their results. An unfinished job fails if its user code may have run. Other jobs start again when
/// their `Run` is repeated. A job that could not be recovered never starts again.
pub(crate) async fn recover(agent: &Arc<Agent>) -> std::io::Result<JoinSet<()>> {
    let (mut removals, mut restarting, mut unfinished) = (JoinSet::new(), Vec::new(), Vec::new());
    let mark_unrecovered = |entry: &Entry, error: std::io::Error| {
        tracing::error!(job = entry.id, %error, "failed to recover a job, leaving it in the spool");
        agent.mark_unrecovered(&entry.id, error.to_string());
    };
    for entry in agent.context.spool.entries()? {
        let recovered = match entry.read_journal() {
            Ok(JournalContents { request, result: Some(result), .. }) => {
                adopt_finished(agent, &entry, request, result, &mut removals)
            }
            Ok(contents) => {
                unfinished.push((entry, contents));
                continue;
            }
            Err(error) => Err(error),
        };
        recovered.unwrap_or_else(|error| mark_unrecovered(&entry, error));
    }
    terminate_processes(unfinished.iter().map(|(_, contents)| contents), &agent.context.boot_id).await;
    for (entry, contents) in unfinished {
        let recovered = recover_unfinished(agent, &entry, &contents, &mut removals, &mut restarting).await;
        recovered.unwrap_or_else(|error| mark_unrecovered(&entry, error));
    }
    // The removals must end now, because the next start of each job creates objects with the same names.
    let removing = join_all(restarting.iter().map(|(parsed, id)| try_remove(parsed, id)));
    if tokio::time::timeout(REMOVAL_TIMEOUT, removing).await.is_err() {
        tracing::warn!(
            jobs = restarting.len(),
            "failed to remove the leftovers of killed jobs in time, continuing; the next start of each job replaces them"
        );
    }
    Ok(removals)
}

fn adopt_finished(
    agent: &Agent,
    entry: &Entry,
    request: Option<RunRequest>,
    result: JobResult,
    removals: &mut JoinSet<()>,
) -> std::io::Result<()> {
    // The earlier agent may not have removed everything.
    let parsed = request.filter(|_| is_environment_lost(&result)).and_then(|request| parse(&request).ok());
    if let Some(parsed) = parsed {
        removals.spawn(remove_leftovers(parsed, entry.id.clone(), None));
    }
    let ended = SystemTime::now().checked_sub(entry.age()).unwrap_or(SystemTime::UNIX_EPOCH);
    let log = entry.log()?;
    log.close();
    agent.adopt(Job::new(entry.clone(), entry.journal()?, log, Some(Finished { result, ended })));
    Ok(())
}

/// Recovers a job without a result, whose processes have ended.
async fn recover_unfinished(
    agent: &Agent,
    entry: &Entry,
    contents: &JournalContents,
    removals: &mut JoinSet<()>,
    restarting: &mut Vec<(ParsedRequest, String)>,
) -> std::io::Result<()> {
    let Some(request) = &contents.request else {
        // `Run` was never answered, so no manager relies on the job, and its next start replaces the entry.
        if let Err(error) = entry.remove_on_blocking_thread().await {
            tracing::error!(job = entry.id, %error, "failed to delete a job that was not started");
        }
        return Ok(());
    };
    let rebooted = is_of_earlier_boot(contents, &agent.context.boot_id);
    let mut parsed = parse(request).ok();
    let message = if rebooted { REBOOT_MESSAGE } else { LOST_MESSAGE };
    if contents.user_code
        && let Some(parsed) = parsed.take_if(|parsed| has_leftovers(parsed))
    {
        let job = Arc::new(Job::new(entry.clone(), entry.journal()?, entry.log()?, None));
        agent.adopt_unfinished(&job, clean_up_and_fail(Arc::clone(&agent.context), Arc::clone(&job), parsed, message));
        return Ok(());
    }
    if let Some(parsed) = &parsed {
        clear_files(parsed, &entry.id);
    }
    if !contents.user_code {
        restarting.extend(parsed.map(|parsed| (parsed, entry.id.clone())));
        tracing::info!(job = entry.id, "job had not started its first command and can be run again");
        return Ok(());
    }
    if let Some(parsed) = parsed.take_if(|parsed| has_environments(parsed)) {
        let job = Arc::new(Job::new(entry.clone(), entry.journal()?, entry.log()?, None));
        let (attempted, first_attempt) = oneshot::channel();
        removals.spawn(remove_leftovers(parsed, entry.id.clone(), Some(attempted)));
        agent.adopt_unfinished(&job, fail_after(first_attempt, Arc::clone(&agent.context), Arc::clone(&job), message));
        return Ok(());
    }
    let job = Job::new(entry.clone(), entry.journal()?, entry.log()?, None);
    fail(&agent.context, &job, message);
    agent.adopt(job);
    Ok(())
}

/// Writes the result of a lost job after the first attempt to remove its environment, or after
/// [`FIRST_REMOVAL_TIMEOUT`].
///
/// Until then, its containers may write to volumes that the next job uses.
async fn fail_after(
    first_attempt: oneshot::Receiver<()>,
    agent: Arc<AgentContext>,
    job: Arc<Job>,
    message: &'static str,
) {
    if tokio::time::timeout(FIRST_REMOVAL_TIMEOUT, first_attempt).await.is_err() {
        tracing::warn!(
            job = job.id,
            "failed to remove the environment of a lost job in time, reporting the result of the job"
        );
    }
    fail(&agent, &job, message);
}

fn fail(agent: &AgentContext, job: &Job, message: &str) {
    let outcome = fail_job(job, StartTime::now(), message, Some(TerminationCause::EnvironmentLost));
    // The message contains no text of the job.
    persist_result(agent, job, outcome, &Secrets::default(), &Development::default());
}

fn clear_files(parsed: &ParsedRequest, id: &str) {
    if !parsed.is_step_file()
        && let Err(error) = Variables::clear_files(&temp_dir(parsed))
    {
        tracing::warn!(job = id, %error, "failed to delete temporary files of a lost job");
    }
}

/// Removes what the steps of a lost job left, and then writes its result.
///
/// The result comes last, because after it, the manager reuses the job's directories. If this agent is killed, the next
/// agent starts over.
pub(crate) async fn clean_up_and_fail(
    agent: Arc<AgentContext>,
    job: Arc<Job>,
    parsed: ParsedRequest,
    message: &'static str,
) {
    let cleaned = AssertUnwindSafe(clean_up(&agent, &job, &parsed)).catch_unwind().await;
    if cleaned.is_err() {
        tracing::error!(job = job.id, "the agent panicked while it removed the leftovers of a lost job");
        if let Ok(contents) = job.entry.read_journal() {
            terminate_processes([&contents], &agent.boot_id).await;
        }
    }
    clear_files(&parsed, &job.id);
    let (attempted, first_attempt) = oneshot::channel();
    // If this agent ends before the removal has ended, the next agent continues it.
    tokio::spawn(remove_leftovers(parsed, job.id.clone(), Some(attempted)));
    fail_after(first_attempt, agent, job, message).await;
}

/// Removes what the steps of a lost job left, except environments.
async fn clean_up(agent: &AgentContext, job: &Job, parsed: &ParsedRequest) {
    let journal = Arc::clone(&job.journal);
    let recorder = Arc::new(move |record: &ProcessRecord| journal.record_process(record));
    match agent.process_manager.new_job(&job.id, "leftovers", recorder) {
        Ok(mut processes) => {
            processes.add_environment(parsed.environment());
            for step in parsed.steps.iter().flat_map(Step::builtins) {
                if let Err(error) = step.remove_leftovers(&temp_dir(parsed), &processes).await {
                    tracing::warn!(job = job.id, %error, "failed to remove the leftovers of a lost job");
                }
            }
            processes.finish(KILL_GRACE).await;
        }
        Err(error) => tracing::error!(job = job.id, %error, "failed to remove the leftovers of a lost job"),
    }
}

fn is_environment_lost(result: &JobResult) -> bool {
    matches!(result.outcome, Outcome::Failed { cause: Some(TerminationCause::EnvironmentLost), .. })
}
