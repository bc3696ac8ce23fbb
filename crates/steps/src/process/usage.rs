//! What a job's processes used, by the kernel's own account of each: that of a process that ended, with all those that it waited
//! for, and what one has used so far that has to be ended. Where a cgroup counts, that is the better account ([`super::Slot`]).

use std::time::Duration;

use super::table;

/// What some processes used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// CPU time, user and system.
    pub(super) cpu: Duration,
    /// The most memory that one of them had at once, in bytes.
    pub(super) memory_bytes: u64,
}

impl Usage {
    pub(super) fn add(&mut self, other: Self) {
        self.cpu += other.cpu;
        self.memory_bytes = self.memory_bytes.max(other.memory_bytes);
    }

    /// Of a process that runs; none of one that is gone.
    pub(super) fn so_far(pid: i32) -> Option<Self> {
        let ticks = table::cpu_ticks(pid)?;
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        let cpu = Duration::from_nanos(ticks.saturating_mul(1_000_000_000) / per_second);
        let status = table::read(&format!("/proc/{pid}/status")).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB"));
        let kib: u64 = peak.and_then(|text| text.trim().parse().ok()).unwrap_or_default();
        Some(Self { cpu, memory_bytes: kib.saturating_mul(1024) })
    }
}
