//! Measures the resource usage of a process tree, using /proc.

use std::collections::HashMap;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct ProcessUsage {
    pub(crate) cpu_seconds: f64,
    pub(crate) memory_bytes: u64,
    pub(crate) processes: u32,
}

struct Stat {
    parent: u32,
    ticks: u64,
    pages: u64,
}

/// Parses `/proc/PID/stat`. The name may contain any characters.
fn parse(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
    // The fields utime, stime, cutime and cstime; the last two are of reaped children.
    let ticks = (11..=14).map(number).sum::<Option<u64>>()?;
    Some(Stat { parent: u32::try_from(number(1)?).ok()?, ticks, pages: number(21)? })
}

/// Measures the process `root` and its descendants. Returns `None` if `root` does not exist.
#[expect(clippy::cast_precision_loss, reason = "f64 represents the ticks of many years exactly")]
pub(crate) fn measure(root: u32) -> Option<ProcessUsage> {
    let mut stats: HashMap<u32, Stat> = HashMap::new();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(stat) = std::fs::read_to_string(entry.path().join("stat")).ok().as_deref().and_then(parse) {
            stats.insert(pid, stat);
        }
    }
    stats.contains_key(&root).then_some(())?;
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for (pid, stat) in &stats {
        children.entry(stat.parent).or_default().push(*pid);
    }
    let (mut usage, mut ticks, mut pending) = (ProcessUsage::default(), 0, vec![root]);
    while let Some(pid) = pending.pop() {
        if let Some(stat) = stats.remove(&pid) {
            usage.processes += 1;
            usage.memory_bytes += stat.pages * rustix::param::page_size() as u64;
            ticks += stat.ticks;
            pending.extend(children.remove(&pid).unwrap_or_default());
        }
    }
    usage.cpu_seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    Some(usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_parentheses_is_parsed() {
        let stat = parse("7 (a) b) S 3 7 7 0 -1 4 0 0 0 0 10 20 3 4 20 0 1 0 99 1000 42 18446744073709551615").unwrap();
        assert_eq!((stat.parent, stat.ticks, stat.pages), (3, 37, 42));
        assert!(parse("7 (a").is_none());
    }

    #[test]
    fn only_existing_processes_are_measured() {
        let usage = measure(std::process::id()).unwrap();
        assert!(usage.processes >= 1 && usage.memory_bytes > 0, "{usage:?}");
        assert_eq!(measure(u32::MAX), None);
    }
}
