//! Resource usage of a job and its steps, as the kernel counts it for each process.
//!
//! Covers ended processes with their awaited children, and processes that are being terminated. For the CPU time and
//! memory of a job, cgroup counters take precedence ([`super::SlotCgroup`]).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::network::{JobNetwork, Traffic};
use super::procfs;

tokio::task_local! {
    static STEP_USAGE: Arc<Mutex<Usage>>;
}

/// Runs the work of a step. Returns its result, and the usage of the processes that ended during the work, except those
/// of inner steps.
///
/// The traffic includes inner steps. `network` is `None` if traffic cannot be counted.
pub async fn measure_usage<F: Future>(network: Option<&JobNetwork>, work: F) -> (F::Output, Usage) {
    let usage = Arc::new(Mutex::new(Usage::default()));
    let before = network.map(JobNetwork::traffic);
    let output = STEP_USAGE.scope(Arc::clone(&usage), work).await;
    let mut usage = *usage.lock();
    usage.traffic = network.zip(before).map(|(network, before)| network.traffic().since(before));
    (output, usage)
}

pub(super) fn add_to_step(usage: Usage) {
    // Fails for processes that belong to no step, such as a second agent.
    let _ = STEP_USAGE.try_with(|step| step.lock().add(usage));
}

/// Resource usage of one or several processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of counted processes, without their awaited children.
    pub processes: u64,
    /// CPU time, user and system.
    pub cpu: Duration,
    /// Peak memory of the largest process, in bytes.
    pub memory_bytes: u64,
    /// Bytes read from storage.
    pub read_bytes: u64,
    /// Bytes written to storage, even if not flushed yet.
    pub written_bytes: u64,
    /// Traffic of the job's network during the step. `None` means not measured.
    pub traffic: Option<Traffic>,
}

impl Usage {
    pub(super) fn add(&mut self, other: Self) {
        self.processes += other.processes;
        self.cpu += other.cpu;
        self.memory_bytes = self.memory_bytes.max(other.memory_bytes);
        self.read_bytes = self.read_bytes.saturating_add(other.read_bytes);
        self.written_bytes = self.written_bytes.saturating_add(other.written_bytes);
    }

    /// Returns the usage of a process so far. `None` means that the process does not exist.
    pub(super) fn of_process(pid: i32) -> Option<Self> {
        let ticks = procfs::cpu_ticks(pid)?;
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        let cpu = Duration::from_nanos(ticks.saturating_mul(1_000_000_000) / per_second);
        let status = procfs::read(&format!("/proc/{pid}/status")).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB"));
        let kib: u64 = peak.and_then(|text| text.trim().parse().ok()).unwrap_or_default();
        let io = procfs::read(&format!("/proc/{pid}/io")).unwrap_or_default();
        let bytes = |name: &str| io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0);
        Some(Self {
            processes: 1,
            cpu,
            memory_bytes: kib.saturating_mul(1024),
            read_bytes: bytes("read_bytes:"),
            written_bytes: bytes("write_bytes:"),
            traffic: None,
        })
    }
}
