//! Suspends instances: their processes are stopped and later continued.
//!
//! Unlike on a hibernated machine, their monotonic clock continues.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Maximum number of rounds, each of which signals all processes that have not changed their state yet.
///
/// Several are needed, because processes may start others meanwhile, and signals take time.
const MAX_ROUNDS: usize = 1000;
const ROUND_DELAY: Duration = Duration::from_millis(1);

/// Stops all processes of an instance. `first_pid` is the ID of its first process.
///
/// Returns false if some processes still run.
pub(crate) fn suspend(first_pid: u32) -> bool {
    stop_or_continue(first_pid, true)
}

/// Continues all processes of an instance. `first_pid` is the ID of its first process.
///
/// Returns false if some processes are still stopped.
pub(crate) fn resume(first_pid: u32) -> bool {
    stop_or_continue(first_pid, false)
}

fn stop_or_continue(first_pid: u32, stop: bool) -> bool {
    for _ in 0..MAX_ROUNDS {
        let remaining: Vec<i32> = processes(first_pid).into_iter().filter(|pid| is_stopped(*pid) != stop).collect();
        if remaining.is_empty() {
            return true;
        }
        for pid in &remaining {
            signal(*pid, if stop { Signal::STOP } else { Signal::CONT });
        }
        std::thread::sleep(ROUND_DELAY);
        if stop {
            remaining.into_iter().for_each(finish_vfork);
        }
    }
    false
}

/// Continues the stopped children of a process that a signal cannot stop.
///
/// A process that called vfork(2), as posix_spawn(3) does, cannot be stopped before its child has executed a program.
/// If the child was stopped before that, both would wait forever.
fn finish_vfork(pid: i32) {
    if state(pid) == Some('D') {
        children(pid).into_iter().filter(|child| is_stopped(*child)).for_each(|child| signal(child, Signal::CONT));
    }
}

/// Ignores processes that have exited.
fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

pub(crate) fn is_suspended(first_pid: u32) -> bool {
    let processes = processes(first_pid);
    !processes.is_empty() && processes.into_iter().all(is_stopped)
}

/// Returns the processes of an instance, except `unshare`, which waits for their exit.
fn processes(first_pid: u32) -> BTreeSet<i32> {
    let Ok(root) = i32::try_from(first_pid) else { return BTreeSet::new() };
    let (mut found, mut pending) = (BTreeSet::new(), vec![root]);
    while let Some(pid) = pending.pop() {
        if found.insert(pid) {
            pending.extend(children(pid));
        }
    }
    let command_line = std::fs::read(format!("/proc/{root}/cmdline")).unwrap_or_default();
    if command_line.starts_with(b"unshare\0") {
        found.remove(&root);
    }
    // Zombies cannot be stopped.
    found.retain(|pid| !matches!(state(*pid), None | Some('Z' | 'X')));
    found
}

fn children(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    texts.flat_map(|text| text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()).collect()
}

fn is_stopped(pid: i32) -> bool {
    state(pid) == Some('T')
}

fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_and_descendants_are_stopped_and_continued() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 1000 & wait"]).spawn().unwrap();
        while children(i32::try_from(child.id()).unwrap()).is_empty() {
            std::thread::yield_now();
        }
        assert!(!is_suspended(child.id()));
        assert!(suspend(child.id()));
        assert!(is_suspended(child.id()) && processes(child.id()).len() == 2);
        assert!(resume(child.id()));
        assert!(!is_suspended(child.id()));
        processes(child.id()).into_iter().for_each(|pid| signal(pid, Signal::KILL));
        child.wait().unwrap();
        assert!(!is_suspended(child.id()), "an instance without processes is not suspended");
    }

    #[test]
    fn process_that_starts_others_with_vfork_is_stopped() {
        // dash, which is Debian's sh, starts programs with vfork.
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do /bin/true; done"]).spawn().unwrap();
        for _ in 0..500 {
            assert!(suspend(child.id()));
            assert!(resume(child.id()));
        }
        suspend(child.id());
        processes(child.id()).into_iter().for_each(|pid| signal(pid, Signal::KILL));
        child.wait().unwrap();
    }
}
