//! Ends an outdated agent, so that a newer agent can replace it.

use std::time::Duration;

use muster_agent_api::agent::ListJobsRequest;
use muster_agent_api::client::AgentConnection;
use rustix::event::Timespec;
use rustix::process::Signal;

use super::agent::HostAgent;
use crate::ExecutorError;

/// Time after which an agent that does not terminate is killed. A kill interrupts at most the deletion of old
/// workspaces, because an agent is ended only when all its jobs have ended.
const END_TIMEOUT: Timespec = Timespec { tv_sec: 15, tv_nsec: 0 };
const KILL_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// Timeout of a list of an agent's jobs.
pub(super) const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns whether all jobs of the agent have ended. `false` if the jobs cannot be listed.
///
/// The agent may keep ended jobs, because the next agent finds them in the spool.
pub(super) async fn is_idle(connection: &AgentConnection) -> bool {
    match tokio::time::timeout(LIST_TIMEOUT, connection.agent().list_jobs(ListJobsRequest {})).await {
        Ok(Ok(answer)) => answer.get_ref().jobs.iter().all(|job| job.ended),
        Ok(Err(_)) | Err(_) => false,
    }
}

/// Ends the agent, and waits until its process has ended, because it deletes its socket at the end.
///
/// # Errors
/// [`ExecutorError::Unreachable`] if the process cannot be ended.
pub(super) async fn end(agent: &HostAgent) -> Result<(), ExecutorError> {
    let process = agent.process.clone();
    let pid = process.pid();
    let ended = tokio::task::spawn_blocking(move || {
        for (signal, timeout) in [(Signal::TERM, &END_TIMEOUT), (Signal::KILL, &KILL_TIMEOUT)] {
            process.signal(signal)?;
            if process.wait(timeout)? {
                return Ok(true);
            }
        }
        Ok(false)
    });
    let message = match ended.await.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
        Ok(true) => {
            tracing::info!(pid, version = agent.connection.identity().version, "outdated agent ended");
            return Ok(());
        }
        Ok(false) => "it did not end in time".to_owned(),
        Err(error) => error.to_string(),
    };
    let message = format!("failed to end the outdated agent: {message}");
    Err(ExecutorError::unreachable(format!("process {pid}"), message))
}
