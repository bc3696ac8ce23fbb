//! Recovers the jobs in a spool that another agent left. There is no other form of recovery.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use muster_builtins::Variables;
use muster_job::TerminationCause;
use muster_job::mask::Secrets;
use muster_steps::engine::Began;
use muster_steps::process::end_leftovers;
use muster_steps::style;

use crate::agent::Agent;
use crate::job::{Finished, Job};
use crate::running::{parse, settle, system_failure};
use crate::spool::Entry;

/// Time from SIGTERM to SIGKILL for processes that a dead agent left.
const GRACE: Duration = Duration::from_secs(2);
const LOST: &str = "the agent was ended while the job ran, so its script was ended too; the log up to here is whole";
const REBOOTED: &str =
    "the machine was restarted while the job ran, so its script was ended too; the log may lack its last second";

/// Recovers each job in the spool.
///
/// Finished jobs are served as they are. Jobs whose user code may have run are ended and fail. Jobs that never started their first command
/// wait until their `Run` is repeated.
pub(crate) async fn recover(agent: &Arc<Agent>) -> std::io::Result<()> {
    for entry in agent.context.spool.entries()? {
        if let Err(error) = recover_one(agent, &entry).await {
            tracing::error!(job = entry.id, %error, "a job in the spool cannot be recovered: it is left as it is");
        }
    }
    Ok(())
}

async fn recover_one(agent: &Arc<Agent>, entry: &Entry) -> std::io::Result<()> {
    let past = entry.past()?;
    if let Some(result) = past.result {
        let ended = SystemTime::now().checked_sub(entry.age()).unwrap_or(SystemTime::UNIX_EPOCH);
        let log = entry.log()?;
        log.close();
        agent.adopt(Job::new(entry.clone(), entry.journal()?, log, Some(Finished { result, ended })));
        return Ok(());
    }
    let Some(request) = past.request else {
        // `Run` was never answered, so no manager relies on the job.
        return entry.remove_apart().await;
    };
    let rebooted = past.boot.as_ref().is_some_and(|boot| *boot != agent.context.boot_id);
    // No process survived a restart of the system, and its process IDs belong to other processes now.
    if !rebooted {
        end_leftovers(&past.trail, GRACE).await;
    }
    if let Ok(work) = parse(&request)
        && let Err(error) = Variables::clear_files(std::path::Path::new(&format!("{}.tmp", work.plan.project_dir)))
    {
        tracing::warn!(job = entry.id, %error, "temporary files of a lost job stay");
    }
    if !past.user_code {
        tracing::info!(job = entry.id, "the job had not started its first command: it may be run again");
        return Ok(());
    }
    let job = Job::new(entry.clone(), entry.journal()?, entry.log()?, None);
    let gap = if job.log.ends_a_line() { "" } else { "\n" };
    let lost = if rebooted { REBOOTED } else { LOST };
    let line = style::error(&format!("Job failed (system failure): {lost}"));
    job.log.append(format!("{gap}{line}").as_bytes())?;
    let end = system_failure(Began::now(), lost, Some(TerminationCause::EnvironmentLost));
    // The message contains no text of the job, so nothing is masked.
    settle(&agent.context, &job, end, &Secrets::default());
    agent.adopt(job);
    Ok(())
}
