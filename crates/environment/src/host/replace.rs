//! Replacing the only agent of a state directory by one of a newer executable.

use std::time::Duration;

use muster_agent_api::agent::ListRequest;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::{AgentConnection, EnvironmentError, Identity};

/// From the word to its end: an agent without jobs has only old workspaces to remove. Then it is killed.
const END_LIMIT: Timespec = Timespec { tv_sec: 15, tv_nsec: 0 };
const KILL_LIMIT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
const LIST_LIMIT: Duration = Duration::from_secs(10);

/// Whether no job runs at the agent. Those that have ended are in its spool, where the next agent finds them.
pub(super) async fn is_idle(connection: &AgentConnection) -> bool {
    match tokio::time::timeout(LIST_LIMIT, connection.agent().list(ListRequest {})).await {
        Ok(Ok(answer)) => answer.get_ref().jobs.iter().all(|job| job.ended),
        Ok(Err(_)) | Err(_) => false,
    }
}

/// Ends the agent, and waits until it is gone: it removes its socket as its last act, which must not be another one's.
///
/// # Errors
/// [`EnvironmentError::Unreachable`] where it stays.
pub(super) async fn end(agent: &Identity) -> Result<(), EnvironmentError> {
    let stays = |message: String| EnvironmentError::Unreachable {
        place: format!("process {}", agent.pid),
        message: format!("an agent of another executable cannot be replaced: {message}"),
    };
    let pid =
        i32::try_from(agent.pid).ok().and_then(Pid::from_raw).ok_or_else(|| stays("it tells no process".into()))?;
    let ended = tokio::task::spawn_blocking(move || {
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(Errno::SRCH) => return Ok(true),
            Err(error) => return Err(error),
        };
        for (signal, limit) in [(Signal::TERM, &END_LIMIT), (Signal::KILL, &KILL_LIMIT)] {
            match pidfd_send_signal(&process, signal) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error),
            }
            if poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(limit))? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    });
    match ended.await {
        Ok(Ok(true)) => {
            tracing::info!(pid = agent.pid, version = agent.version, "an agent of another executable was ended");
            Ok(())
        }
        Ok(Ok(false)) => Err(stays("it does not end".to_owned())),
        Ok(Err(error)) => Err(stays(error.to_string())),
        Err(error) => Err(stays(error.to_string())),
    }
}
