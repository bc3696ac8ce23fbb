//! Share of a job in a machine that runs several jobs, with its sticky context and its resource usage.

use std::io;
use std::time::Duration;

use muster_agent_api::builtin::ResourceShare;
use muster_agent_api::result::ResourceUsage;
use muster_job::milliseconds;
use muster_steps::process::{Processes, Stalled};
use muster_steps::stop::Stop;
use muster_steps::style;

use crate::context::Context;
use crate::sticky::Sticky;

/// Variable with the path of the job's sticky context.
pub const CONTEXT_DIR: &str = "MUSTER_CONTEXT_DIR";

/// Maximum time that the end of a job waits for the removal of old sticky contexts.
const CLOSE_LIMIT: Duration = Duration::from_secs(300);

/// Sticky context of a running job, and the measurement of its resource usage.
#[derive(Debug)]
pub(crate) struct Sharing {
    stalled: Stalled,
    measure: bool,
    sticky: Option<Sticky>,
}

/// Gives the job's processes their share of the machine. Returns the reason if the system does not permit it.
#[must_use]
pub fn give(processes: &mut Processes, share: &ResourceShare) -> Option<String> {
    if share.cgroup.is_empty() {
        return None;
    }
    let wanted = muster_steps::process::Share {
        cgroup: share.cgroup.clone(),
        slots: share.slots,
        memory_bytes: share.memory_bytes,
    };
    processes.share(&wanted).inspect_err(|error| tracing::warn!(error, "a job runs without its share")).err()
}

impl Sharing {
    /// Opens the sticky context and starts measuring. If the context cannot be opened, prints a warning; the job runs without it.
    pub(crate) async fn begin(context: &Context, share: &ResourceShare, stop: &Stop) -> Self {
        let mut sharing = Self { stalled: Stalled::of_machine(), measure: share.measure, sticky: None };
        let Some(wanted) = share.context.clone() else { return sharing };
        let opened = tokio::select! {
            biased;
            opened = Sticky::open(wanted) => opened,
            _ = stop.stopped() => Err(io::Error::other("the job is stopped")),
        };
        match opened {
            Ok(sticky) => {
                context.variables.set(CONTEXT_DIR, &sticky.dir().to_string_lossy());
                context.say(&style::plain(&sticky.words()));
                sharing.sticky = Some(sticky);
            }
            Err(error) => {
                context.say(&style::warning(&format!(
                    "The job has no sticky context, and {CONTEXT_DIR} is not set: {error}"
                )));
            }
        }
        sharing
    }

    /// Closes the sticky context, and adds the times that the job waited for resources to `used`.
    ///
    /// All processes of the job must have ended.
    pub(crate) async fn end(self, context: &Context, used: &mut ResourceUsage) {
        if let Some(sticky) = self.sticky {
            match tokio::time::timeout(CLOSE_LIMIT, tokio::task::spawn_blocking(move || sticky.close())).await {
                Ok(removed) => {
                    removed.unwrap_or_default().iter().for_each(|line| context.say(&style::warning(line)));
                }
                Err(_) => context.say(&style::warning(
                    "removing old sticky contexts takes long, and goes on after the job; check the file system that they are on",
                )),
            }
        }
        if !self.measure {
            return;
        }
        let counted = context.processes.counted();
        let around = Stalled::of_machine().since(self.stalled);
        let stalled = if counted.stalled == Stalled::default() { around } else { counted.stalled };
        used.cpu_stalled_ms = stalled.cpu.map(milliseconds);
        used.memory_stalled_ms = stalled.memory.map(milliseconds);
        used.io_stalled_ms = stalled.io.map(milliseconds);
    }
}

/// Returns the resource usage of a job that took `wall`. All its processes must have ended.
pub(crate) fn used(processes: &Processes, wall: Duration) -> ResourceUsage {
    let counted = processes.counted();
    ResourceUsage {
        wall_ms: milliseconds(wall),
        cpu_ms: counted.cpu.map(milliseconds),
        memory_bytes: counted.memory_bytes,
        counted_by_process: counted.by_processes,
        ..ResourceUsage::default()
    }
}
