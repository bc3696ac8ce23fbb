//! The `process_*` metrics, read from `/proc/self` on each scrape.

use prometheus::{Counter, Gauge};
use rustix::process::{Resource, getrlimit};

use super::metric_set::MetricSet;
use crate::names;

/// Clock ticks per second in `/proc`.
const TICKS: f64 = 100.0;

pub(super) struct ProcessMetrics {
    cpu: Counter,
    open_fds: Gauge,
    max_fds: Gauge,
    resident: Gauge,
    virtual_memory: Gauge,
    virtual_max: Gauge,
    start: Gauge,
}

impl ProcessMetrics {
    pub(super) fn new(set: &mut MetricSet) -> Self {
        Self {
            cpu: set.float_counter(&names::PROCESS_CPU),
            open_fds: set.float_gauge(&names::PROCESS_OPEN_FDS),
            max_fds: set.float_gauge(&names::PROCESS_MAX_FDS),
            resident: set.float_gauge(&names::PROCESS_RESIDENT),
            virtual_memory: set.float_gauge(&names::PROCESS_VIRTUAL),
            virtual_max: set.float_gauge(&names::PROCESS_VIRTUAL_MAX),
            start: set.float_gauge(&names::PROCESS_START),
        }
    }

    /// Updates all metrics. A metric that cannot be read keeps its last value.
    pub(super) fn refresh(&self) {
        self.max_fds.set(limit(Resource::Nofile));
        self.virtual_max.set(limit(Resource::As));
        if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
            // One of the entries is the file descriptor of the directory itself.
            self.open_fds.set((entries.count() as f64 - 1.0).max(0.0));
        }
        let Some(stat) = std::fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(Stat::parse) else {
            return;
        };
        self.cpu.reset();
        self.cpu.inc_by(stat.cpu_ticks / TICKS);
        self.virtual_memory.set(stat.virtual_bytes);
        self.resident.set(stat.resident_pages * rustix::param::page_size() as f64);
        if let Some(boot) = boot_seconds() {
            self.start.set(boot + stat.start_ticks / TICKS);
        }
    }
}

#[derive(Debug, PartialEq)]
struct Stat {
    cpu_ticks: f64,
    start_ticks: f64,
    virtual_bytes: f64,
    resident_pages: f64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The second field is the name in parentheses. It can contain any characters.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        // The rest starts with the third field of proc_pid_stat(5).
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

fn boot_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Returns the soft limit of a resource, or `u64::MAX` if it has no limit, as Go's Prometheus library does.
fn limit(resource: Resource) -> f64 {
    getrlimit(resource).current.unwrap_or(u64::MAX) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_in_stat_can_contain_parentheses() {
        let line = "7 (a) b) S 1 7 7 0 -1 4 5 6 7 8 120 30 0 0 20 0 3 0 9000 4096000 25 1 2";
        let stat = Stat { cpu_ticks: 150.0, start_ticks: 9000.0, virtual_bytes: 4_096_000.0, resident_pages: 25.0 };
        assert_eq!(Stat::parse(line), Some(stat));
        assert_eq!(Stat::parse("7 (x"), None);
    }
}
