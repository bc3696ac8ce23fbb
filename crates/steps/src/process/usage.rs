//! Resource usage of the processes of a job, as the kernel counts it for each process.
//!
//! It covers processes that have ended, with the children that they waited for, and processes that are being terminated. The counters
//! of a cgroup are more accurate, and are used if they exist ([`super::SlotCgroup`]).

use std::time::Duration;

use super::procfs;

/// Resource usage of one or several processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// CPU time, user and system.
    pub(super) cpu: Duration,
    /// Peak memory of the largest process, in bytes.
    pub(super) memory_bytes: u64,
}

impl Usage {
    pub(super) fn add(&mut self, other: Self) {
        self.cpu += other.cpu;
        self.memory_bytes = self.memory_bytes.max(other.memory_bytes);
    }

    /// Returns the usage of a running process. `None` means that the process does not exist.
    pub(super) fn current(pid: i32) -> Option<Self> {
        let ticks = procfs::cpu_ticks(pid)?;
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        let cpu = Duration::from_nanos(ticks.saturating_mul(1_000_000_000) / per_second);
        let status = procfs::read(&format!("/proc/{pid}/status")).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB"));
        let kib: u64 = peak.and_then(|text| text.trim().parse().ok()).unwrap_or_default();
        Some(Self { cpu, memory_bytes: kib.saturating_mul(1024) })
    }
}
