//! Resource usage of the processes of a job and of its steps, as the kernel counts it for each process.
//!
//! The usage covers processes that have ended, with the children that they waited for, and processes that are being terminated. For CPU time
//! and memory of a job, the counters of a cgroup are more accurate, and are used if they exist ([`super::SlotCgroup`]).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::network::{JobNetwork, Traffic};
use super::procfs;

tokio::task_local! {
    /// Usage of the processes that the current step has started.
    static STEP_USAGE: Arc<Mutex<Usage>>;
}

/// Runs the work of a step. Returns its result, and the resource usage of the processes that ended during the work.
///
/// Processes of steps inside the step are not counted, but their traffic is. `network` is `None` if the traffic cannot be counted.
pub async fn measured<F: Future>(network: Option<&JobNetwork>, work: F) -> (F::Output, Usage) {
    let usage = Arc::new(Mutex::new(Usage::default()));
    let before = network.map(JobNetwork::traffic);
    let output = STEP_USAGE.scope(Arc::clone(&usage), work).await;
    let mut usage = *usage.lock();
    usage.traffic = network.zip(before).map(|(network, before)| network.traffic().since(before));
    (output, usage)
}

/// Adds the usage of a process that has ended to the usage of the current step.
pub(super) fn add_to_step(usage: Usage) {
    // Processes that belong to no step, such as a second agent, run in a separate task.
    let _ = STEP_USAGE.try_with(|step| step.lock().add(usage));
}

/// Resource usage of one or several processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of processes that were counted, without the children that they waited for.
    pub processes: u64,
    /// CPU time, user and system.
    pub cpu: Duration,
    /// Peak memory of the largest process, in bytes.
    pub memory_bytes: u64,
    /// Bytes read from storage.
    pub read_bytes: u64,
    /// Bytes written to storage, including those that the kernel has not flushed yet.
    pub written_bytes: u64,
    /// Traffic of the job's network during the step. `None` means that it was not measured.
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

    /// Returns the usage of a running process. `None` means that the process does not exist.
    pub(super) fn current(pid: i32) -> Option<Self> {
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
