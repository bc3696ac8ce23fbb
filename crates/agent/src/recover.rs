//! Recovers the jobs in a spool that another agent left. There is no other form of recovery.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use muster_builtins::Variables;
use muster_job::TerminationCause;
use muster_job::mask::Secrets;
use muster_steps::engine::StartTime;
use muster_steps::process::terminate_leftovers;
use muster_steps::style;

use crate::agent::Agent;
use crate::job::{Finished, Job};
use crate::run_job::{parse, persist_result, system_failure};
use crate::spool::Entry;

/// Time from SIGTERM to SIGKILL for processes that a dead agent left.
const KILL_GRACE: Duration = Duration::from_secs(2);
const LOST_MESSAGE: &str =
    "the agent was killed while the job ran, so its script was killed, too; the log is complete up to this line";
const REBOOT_MESSAGE: &str =
    "the machine was restarted while the job ran, so its script was killed; the last second of the log may be missing";

/// Recovers each job in the spool.
///
/// Finished jobs are served as they are. Jobs whose user code may have run are ended and fail. Jobs that never started their first command
/// wait until their `Run` is repeated.
pub(crate) async fn recover(agent: &Arc<Agent>) -> std::io::Result<()> {
    for entry in agent.context.spool.entries()? {
        if let Err(error) = recover_one(agent, &entry).await {
            tracing::error!(job = entry.id, %error, "failed to recover a job, leaving it in the spool");
        }
    }
    Ok(())
}

async fn recover_one(agent: &Arc<Agent>, entry: &Entry) -> std::io::Result<()> {
    let contents = entry.read_journal()?;
    if let Some(result) = contents.result {
        let ended = SystemTime::now().checked_sub(entry.age()).unwrap_or(SystemTime::UNIX_EPOCH);
        let log = entry.log()?;
        log.close();
        agent.adopt(Job::new(entry.clone(), entry.journal()?, log, Some(Finished { result, ended })));
        return Ok(());
    }
    let Some(request) = contents.request else {
        // `Run` was never answered, so no manager relies on the job.
        return entry.remove_apart().await;
    };
    let rebooted = contents.boot.as_ref().is_some_and(|boot| *boot != agent.context.boot_id);
    // No process survived a restart of the system, and its process IDs belong to other processes now.
    if !rebooted {
        terminate_leftovers(&contents.process_records, KILL_GRACE).await;
    }
    if let Ok(work) = parse(&request)
        && let Err(error) = Variables::clear_files(std::path::Path::new(&format!("{}.tmp", work.plan.project_dir)))
    {
        tracing::warn!(job = entry.id, %error, "failed to delete temporary files of a lost job");
    }
    if !contents.user_code {
        tracing::info!(job = entry.id, "job had not started its first command and can be run again");
        return Ok(());
    }
    let job = Job::new(entry.clone(), entry.journal()?, entry.log()?, None);
    let line_break = if job.log.ends_with_line_break() { "" } else { "\n" };
    let lost = if rebooted { REBOOT_MESSAGE } else { LOST_MESSAGE };
    let line = style::error(&format!("Job failed (system failure): {lost}"));
    job.log.append(format!("{line_break}{line}").as_bytes())?;
    let end = system_failure(StartTime::now(), lost, Some(TerminationCause::EnvironmentLost));
    // The message contains no text of the job, so nothing is masked.
    persist_result(&agent.context, &job, end, &Secrets::default());
    agent.adopt(job);
    Ok(())
}
