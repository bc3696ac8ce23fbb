//! Suspension: the processes of an instance are stopped, and go on. They keep their memory, as those of a machine that a cloud
//! hibernates; who looks at their clock sees that time has passed.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// What runs may start more while it is looked at, and a signal takes its time: so often is looked again.
const ROUNDS_MAX: usize = 1000;
/// So long after the last time.
const PAUSE: Duration = Duration::from_millis(1);

/// Stops all that runs in the instance of this process, or lets it go on. Whether nothing is left to be stopped.
pub(crate) fn set(instance: u32, stop: bool) -> bool {
    for _ in 0..ROUNDS_MAX {
        let left: Vec<i32> = all(instance).into_iter().filter(|pid| is_stopped(*pid) != stop).collect();
        if left.is_empty() {
            return true;
        }
        for pid in left.into_iter().filter_map(Pid::from_raw) {
            // One that has ended meanwhile needs nothing.
            let _ = kill_process(pid, if stop { Signal::STOP } else { Signal::CONT });
        }
        std::thread::sleep(PAUSE);
    }
    false
}

/// Whether the instance of this process is suspended.
pub(crate) fn is_suspended(instance: u32) -> bool {
    let all = all(instance);
    !all.is_empty() && all.into_iter().all(is_stopped)
}

/// What runs in an instance, but for what made its namespaces: that waits for the end of them.
fn all(instance: u32) -> BTreeSet<i32> {
    let Ok(root) = i32::try_from(instance) else { return BTreeSet::new() };
    let (mut found, mut next) = (BTreeSet::new(), vec![root]);
    while let Some(pid) = next.pop() {
        if found.insert(pid) {
            next.extend(children(pid));
        }
    }
    let words = std::fs::read(format!("/proc/{root}/cmdline")).unwrap_or_default();
    if words.starts_with(b"unshare\0") {
        found.remove(&root);
    }
    // What has ended and is not yet taken leave of cannot be stopped.
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
    fn a_process_and_what_it_started_stop_and_go_on() {
        let mut child = std::process::Command::new("sh").args(["-c", "sleep 1000 & wait"]).spawn().unwrap();
        while children(i32::try_from(child.id()).unwrap()).is_empty() {
            std::thread::yield_now();
        }
        assert!(!is_suspended(child.id()));
        assert!(set(child.id(), true));
        assert!(is_suspended(child.id()) && all(child.id()).len() == 2);
        assert!(set(child.id(), false));
        assert!(!is_suspended(child.id()));
        for pid in all(child.id()).into_iter().filter_map(Pid::from_raw) {
            kill_process(pid, Signal::KILL).unwrap();
        }
        child.wait().unwrap();
        assert!(!is_suspended(child.id()), "what is gone is not suspended");
    }
}
