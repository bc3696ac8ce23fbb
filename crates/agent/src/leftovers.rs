//! Processes of jobs whose agent was killed.

use std::time::Duration;

use muster_steps::process::terminate_leftovers;

use crate::spool::{Entry, JournalContents};

/// Time between SIGTERM and SIGKILL.
pub(crate) const KILL_GRACE: Duration = Duration::from_secs(2);

/// Terminates the processes of an unfinished job of an earlier agent.
///
/// Returns false if the system was restarted since then. The recorded process IDs may then belong to other processes.
pub(crate) async fn terminate_processes(contents: &JournalContents, boot_id: &str) -> bool {
    let rebooted = contents.boot.as_ref().is_some_and(|boot| boot != boot_id);
    if !rebooted {
        terminate_leftovers(&contents.process_records, KILL_GRACE).await;
    }
    !rebooted
}

/// Terminates the processes of a job whose recovery failed, if its journal can be read now.
pub(crate) async fn terminate_unrecovered(entry: &Entry, boot_id: &str) {
    match entry.read_journal() {
        Ok(contents) if contents.result.is_none() => drop(terminate_processes(&contents, boot_id).await),
        Ok(_) => {}
        Err(error) => tracing::warn!(job = entry.id, %error, "failed to find the processes of a lost job"),
    }
}
