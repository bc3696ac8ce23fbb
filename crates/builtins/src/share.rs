//! A job's share of a machine, its sticky context and its resource usage.

use std::io;
use std::time::Duration;

use muster_agent_api::builtin::ResourceShare;
use muster_agent_api::result::ResourceUsage;
use muster_job::milliseconds;
use muster_steps::process::{JobNetwork, PressureStall, Processes};
use muster_steps::stop::StopToken;
use muster_steps::style;

use crate::context::Context;
use crate::sticky::StickyDir;

/// Variable with the path of the job's sticky context.
pub const CONTEXT_DIR: &str = "MUSTER_CONTEXT_DIR";

/// Maximum time to wait for the removal of old sticky contexts.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(300);

/// Sticky context of a running job, and the measurement of its resource usage.
#[derive(Debug)]
pub(crate) struct JobResources {
    /// Stall times of the machine before the job.
    stalled: PressureStall,
    /// Whether to measure how long the job waits for resources.
    measure: bool,
    sticky: Option<StickyDir>,
}

/// Gives the job's processes their share of the machine. Returns a message after a failure.
#[must_use]
pub fn apply_share(processes: &mut Processes, share: &ResourceShare) -> Option<String> {
    if share.cgroup.is_empty() {
        return None;
    }
    let slot_share = muster_steps::process::SlotShare {
        cgroup: share.cgroup.clone(),
        slots: share.slots,
        memory_bytes: share.memory_bytes,
    };
    let error = processes.apply_share(&slot_share).err()?;
    tracing::warn!(%error, "failed to give a job its share of the machine, running it without a share");
    Some(error.to_string())
}

impl JobResources {
    /// Opens the sticky context and starts the measurement. If the context cannot be opened, only prints a warning.
    pub(crate) async fn begin(context: &Context, share: &ResourceShare, stop: &StopToken) -> Self {
        let mut resources = Self { stalled: PressureStall::of_machine(), measure: share.measure, sticky: None };
        let Some(settings) = share.context.clone() else { return resources };
        let opened = tokio::select! {
            biased;
            opened = StickyDir::open(settings) => opened,
            _ = stop.stopped() => Err(io::Error::other("the job was stopped")),
        };
        match opened {
            Ok(sticky) => {
                context.variables.set(CONTEXT_DIR, &sticky.dir().to_string_lossy());
                context.print(&style::plain(&sticky.description()));
                resources.sticky = Some(sticky);
            }
            Err(error) => {
                context.print(&style::warning(&format!(
                    "The job has no sticky context, and {CONTEXT_DIR} is not set: {error}"
                )));
            }
        }
        resources
    }

    /// Closes the sticky context, and adds the job's waiting times for resources to `used`.
    ///
    /// All processes of the job must have ended.
    pub(crate) async fn end(self, context: &Context, used: &mut ResourceUsage) {
        if let Some(sticky) = self.sticky {
            match tokio::time::timeout(CLEANUP_TIMEOUT, tokio::task::spawn_blocking(move || sticky.close())).await {
                Ok(removed) => {
                    removed.unwrap_or_default().iter().for_each(|line| context.print(&style::warning(line)));
                }
                Err(_) => context.print(&style::warning(
                    "removing old sticky contexts takes too long and continues after the job; check their file system",
                )),
            }
        }
        if !self.measure {
            return;
        }
        let counters = context.processes.usage_counters();
        let machine = PressureStall::of_machine().since(self.stalled);
        let stalled = if counters.stalled == PressureStall::default() { machine } else { counters.stalled };
        used.cpu_stalled_ms = stalled.cpu.map(milliseconds);
        used.memory_stalled_ms = stalled.memory.map(milliseconds);
        used.io_stalled_ms = stalled.io.map(milliseconds);
    }
}

/// Returns the resource usage of a job or service that ran for `wall`. All its processes must have ended.
///
/// `network` is `None` for a service, or if the traffic cannot be counted.
pub(crate) fn usage(processes: &Processes, network: Option<&JobNetwork>, wall: Duration) -> ResourceUsage {
    let counters = processes.usage_counters();
    let traffic = network.map(JobNetwork::traffic);
    ResourceUsage {
        wall_ms: milliseconds(wall),
        cpu_ms: counters.cpu.map(milliseconds),
        memory_bytes: counters.memory_bytes,
        counted_by_process: counters.by_processes,
        read_bytes: counters.read_bytes,
        written_bytes: counters.written_bytes,
        received_bytes: traffic.map(|traffic| traffic.received_bytes),
        sent_bytes: traffic.map(|traffic| traffic.sent_bytes),
        ..ResourceUsage::default()
    }
}
