//! Process table of the system, read from `/proc`.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};

/// Initial size of the buffer for a file: enough for one process or a short list of children.
const INITIAL_BUFFER_BYTES: usize = 512;

/// Maximum number of bytes of an environment to read. No process starts with more, but a running process can enlarge
/// its environment.
const ENVIRON_BYTES: u64 = 8 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    pub(super) start_ticks: u64,
    pub(super) is_zombie: bool,
}

impl Process {
    pub(super) fn read(pid: i32) -> Option<Self> {
        parse(pid, &read(&format!("/proc/{pid}/stat")).ok()?)
    }

    fn has_tag(&self, tags: &[&str]) -> bool {
        self.tag().is_some_and(|own_tag| tags.iter().any(|tag| is_within(&own_tag, tag)))
    }

    /// Returns the tag in the environment of the process. `None` means no tag or no permission.
    pub(super) fn tag(&self) -> Option<Vec<u8>> {
        let mut environ = Vec::new();
        let file = File::open(format!("/proc/{}/environ", self.pid)).ok()?;
        file.take(ENVIRON_BYTES).read_to_end(&mut environ).ok()?;
        let mut entries = environ.split(|byte| *byte == 0);
        entries.find_map(|entry| Some(entry.strip_prefix(super::JOB_TAG.as_bytes())?.strip_prefix(b"=")?.to_vec()))
    }
}

/// Returns whether `own_tag` is `tag`, or the tag of a set inside the set with `tag`.
pub(super) fn is_within(own_tag: &[u8], tag: &str) -> bool {
    own_tag.strip_prefix(tag.as_bytes()).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Returns the clock ticks since boot, in the unit of [`Process::start_ticks`]. 0 means that they cannot be read.
pub(super) fn current_ticks() -> u64 {
    read("/proc/uptime").ok().and_then(|text| ticks(&text)).unwrap_or_default()
}

/// Converts `/proc/uptime`, in seconds with two decimals, to clock ticks.
fn ticks(uptime: &str) -> Option<u64> {
    let (seconds, hundredths) = uptime.split(' ').next()?.split_once('.')?;
    let hundredths = seconds.parse::<u64>().ok()?.checked_mul(100)? + hundredths.parse::<u64>().ok()?;
    Some(hundredths.checked_mul(rustix::param::clock_ticks_per_second())? / 100)
}

/// Returns the CPU time of a process and its awaited children in clock ticks.
pub(super) fn cpu_ticks(pid: i32) -> Option<u64> {
    let stat = read(&format!("/proc/{pid}/stat")).ok()?;
    let fields = stat.rsplit_once(") ")?.1.split(' ').skip(11).take(4);
    fields.map(|field| field.parse::<u64>().ok()).sum()
}

/// Returns all processes, including zombies.
pub(super) fn all_processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// Returns the live processes of jobs or sets.
///
/// These have one of the tags or the tag of an inner set, are in the process groups of `leaders`, or descend from such
/// processes.
pub(super) fn job_processes(tags: &[&str], leaders: &HashSet<i32>) -> Vec<i32> {
    select_job_processes(tags, leaders, &live_processes())
}

/// Like [`job_processes`], but examines only the descendants of this process, which must be the subreaper.
pub(super) fn job_descendants(tags: &[&str], leaders: &HashSet<i32>) -> Vec<i32> {
    let mut table = live_processes();
    let own_pid = i32::try_from(std::process::id()).unwrap_or_default();
    let descendants: HashSet<i32> = with_descendants(HashSet::from([own_pid]), &table).into_iter().collect();
    table.retain(|process| descendants.contains(&process.pid));
    select_job_processes(tags, leaders, &table)
}

fn select_job_processes(tags: &[&str], leaders: &HashSet<i32>, table: &[Process]) -> Vec<i32> {
    let is_member = |process: &&Process| leaders.contains(&process.group) || process.has_tag(tags);
    with_descendants(table.iter().filter(is_member).map(|process| process.pid).collect(), table)
}

pub(super) fn with_all_descendants(roots: HashSet<i32>) -> Vec<i32> {
    with_descendants(roots, &live_processes())
}

fn live_processes() -> Vec<Process> {
    let own_pid = i32::try_from(std::process::id()).unwrap_or_default();
    all_processes().into_iter().filter(|process| !process.is_zombie && process.pid != own_pid).collect()
}

fn with_descendants(mut members: HashSet<i32>, table: &[Process]) -> Vec<i32> {
    loop {
        let before = members.len();
        for process in table {
            if members.contains(&process.parent) {
                members.insert(process.pid);
            }
        }
        if members.len() == before {
            return members.into_iter().collect();
        }
    }
}

/// Returns the orphans that this process has adopted, and some of its other children.
///
/// Returns all children of the main thread, because the kernel makes this thread the parent of every orphan.
pub(super) fn adopted_children() -> Vec<i32> {
    let own_pid = std::process::id();
    match read(&format!("/proc/self/task/{own_pid}/children")) {
        Ok(text) => text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect(),
        // The kernel lacks these lists.
        Err(_) => {
            let own_pid = i32::try_from(own_pid).unwrap_or_default();
            all_processes().into_iter().filter(|process| process.parent == own_pid).map(|process| process.pid).collect()
        }
    }
}

/// Reads a file of `/proc`, without querying its length, which is always 0. Replaces invalid UTF-8, such as in process
/// names.
pub(super) fn read(path: &str) -> io::Result<String> {
    let mut text = Vec::with_capacity(INITIAL_BUFFER_BYTES);
    File::open(path)?.take(u64::MAX).read_to_end(&mut text)?;
    Ok(String::from_utf8(text).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Parses `/proc/<pid>/stat`. The name of the program, in parentheses, can contain any character.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    Some(Process {
        pid,
        is_zombie: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_name_with_parentheses_and_spaces() {
        let stat = "42 (a) R 9 (b) S 7 40 39 0 -1 0 1 2 3 4 5 6 7 8 9 10 11 12 987 13";
        let process = parse(42, stat).unwrap();
        assert_eq!((process.parent, process.group, process.start_ticks, process.is_zombie), (7, 40, 987, false));
    }

    #[test]
    fn table_contains_this_process() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(all_processes().iter().any(|process| process.pid == pid));
    }

    #[test]
    fn current_ticks_match_start_times_of_processes() {
        let before = current_ticks();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let start = Process::read(i32::try_from(child.id()).unwrap()).unwrap().start_ticks;
        let after = current_ticks();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(before > 0 && before <= start && start <= after, "{before} {start} {after}");
        assert_eq!(
            (ticks("12.34 5.00\n"), ticks("x")),
            (
                Some(12 * rustix::param::clock_ticks_per_second() + 34 * rustix::param::clock_ticks_per_second() / 100),
                None
            )
        );
    }
}
