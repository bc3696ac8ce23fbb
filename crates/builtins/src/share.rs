//! A job's part of a machine that it shares: its context from earlier jobs at the start, and what it used at the end.

use std::time::{Duration, Instant};

use muster_agent_api::builtin::Share;
use muster_agent_api::result::Used;
use muster_steps::process::{Processes, Stalled};

use crate::context::Context;
use crate::sticky::Sticky;
use crate::trace::style;

/// The variable that names the directory of the sticky context.
pub const CONTEXT_DIR: &str = "MUSTER_CONTEXT_DIR";

/// A job's part, while it runs.
#[derive(Debug)]
pub(crate) struct Sharing {
    began: Instant,
    stalled: Stalled,
    measure: bool,
    sticky: Option<Sticky>,
}

/// Gives the job's processes their share of the machine; why not, where the system does not let us.
#[must_use]
pub fn give(processes: &mut Processes, share: &Share) -> Option<String> {
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
    /// Before the job's first phase. A context that cannot be had is told, and the job runs without.
    pub(crate) async fn begin(context: &Context, share: &Share) -> Self {
        let mut sharing =
            Self { began: Instant::now(), stalled: Stalled::of_machine(), measure: share.measure, sticky: None };
        let Some(wanted) = share.context.clone() else { return sharing };
        let opened = tokio::task::spawn_blocking(move || Sticky::open(&wanted)).await;
        match opened.map_err(std::io::Error::other).and_then(|opened| opened) {
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

    /// After the job's last process has ended.
    pub(crate) async fn end(self, context: &Context) -> Option<Used> {
        if let Some(sticky) = self.sticky {
            let removed = tokio::task::spawn_blocking(move || sticky.close()).await.unwrap_or_default();
            for line in removed {
                context.say(&style::warning(&line));
            }
        }
        if !self.measure {
            return None;
        }
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let counted = context.processes.counted().unwrap_or_default();
        let around = Stalled::of_machine().since(self.stalled);
        let stalled = if counted.stalled == Stalled::default() { around } else { counted.stalled };
        Some(Used {
            wall_ms: millis(self.began.elapsed()),
            cpu_ms: counted.cpu.map(millis),
            memory_bytes: counted.memory_bytes,
            cpu_stalled_ms: stalled.cpu.map(millis),
            memory_stalled_ms: stalled.memory.map(millis),
            io_stalled_ms: stalled.io.map(millis),
            no_share: String::new(),
        })
    }
}
