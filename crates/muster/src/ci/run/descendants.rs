//! Finds, signals and reaps the descendants of this process. On systems other than Linux, no descendants are found.

pub(crate) use sys::adopt_orphans;
pub(super) use sys::{kill, reap, running_descendants, terminate};

#[cfg(target_os = "linux")]
mod sys {
    use std::collections::HashMap;

    use rustix::process::{Pid, Signal, WaitOptions};

    /// Makes this process the parent of its orphaned descendants.
    pub(crate) fn adopt_orphans() {
        if let Err(error) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
            tracing::debug!(%error, "failed to become a subreaper, so orphaned processes of jobs may keep running");
        }
    }

    /// Returns all running descendants, each process before its children.
    pub(in super::super) fn running_descendants() -> Vec<u32> {
        descendants_of(std::process::id())
    }

    fn descendants_of(ancestor: u32) -> Vec<u32> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok) {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // The name of a process need not be UTF-8.
            let Ok(stat) = std::fs::read(entry.path().join("stat")) else { continue };
            if let Some(parent) = parent_unless_zombie(&String::from_utf8_lossy(&stat)) {
                children.entry(parent).or_default().push(pid);
            }
        }
        let mut found = Vec::new();
        let mut pending = vec![ancestor];
        while let Some(pid) = pending.pop() {
            for child in children.remove(&pid).unwrap_or_default() {
                found.push(child);
                pending.push(child);
            }
        }
        found
    }

    /// Returns the parent from `/proc/<pid>/stat`: `pid (name) state parent ...`. The name may contain anything.
    /// Returns `None` for a zombie.
    fn parent_unless_zombie(stat: &str) -> Option<u32> {
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        if fields.next()? == "Z" {
            return None;
        }
        fields.next()?.parse().ok()
    }

    pub(in super::super) fn terminate(pid: u32) {
        signal(pid, Signal::TERM);
    }

    pub(in super::super) fn kill(pid: u32) {
        signal(pid, Signal::KILL);
    }

    fn signal(pid: u32, signal: Signal) {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // The process may have exited already.
        let _ = pid.map(|pid| rustix::process::kill_process(pid, signal));
    }

    /// Reaps exited children. Do not call this while a child is awaited elsewhere.
    pub(in super::super) fn reap() {
        while matches!(rustix::process::wait(WaitOptions::NOHANG), Ok(Some(_))) {}
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn parent_is_found_after_a_process_name_with_parentheses() {
            assert_eq!(parent_unless_zombie("12 (a) b) S 7 12 12 0"), Some(7));
            assert_eq!(parent_unless_zombie("12 (a) Z 7 12 12 0"), None);
            assert_eq!(parent_unless_zombie("invalid"), None);
        }

        #[test]
        fn grandchild_is_found() {
            let mut child = std::process::Command::new("sh").args(["-c", "sleep 100 & wait"]).spawn().unwrap();
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while descendants_of(child.id()).is_empty() {
                assert!(std::time::Instant::now() < deadline, "the grandchild was not found");
                std::thread::yield_now();
            }
            assert!(running_descendants().contains(&child.id()));
            descendants_of(child.id()).into_iter().chain([child.id()]).for_each(kill);
            child.wait().unwrap();
        }

        #[test]
        fn process_with_non_utf8_name_is_found_with_its_children() {
            let script = r"printf '\377\376' >/proc/$$/comm; sleep 100 & wait";
            let mut child = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
            let name = || std::fs::read(format!("/proc/{}/comm", child.id())).unwrap();
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while name() != b"\xff\xfe\n" || descendants_of(child.id()).is_empty() {
                assert!(std::time::Instant::now() < deadline, "the process did not change its name or start its child");
                std::thread::yield_now();
            }
            let (found, grandchildren) = (running_descendants(), descendants_of(child.id()));
            assert!(found.contains(&child.id()), "the process with the non-UTF-8 name must be found");
            assert!(grandchildren.iter().all(|pid| found.contains(pid)), "the children of the process must be found");
            grandchildren.into_iter().chain([child.id()]).for_each(kill);
            child.wait().unwrap();
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod sys {
    pub(crate) fn adopt_orphans() {}
    pub(in super::super) fn running_descendants() -> Vec<u32> {
        Vec::new()
    }
    pub(in super::super) fn terminate(_pid: u32) {}
    pub(in super::super) fn kill(_pid: u32) {}
    pub(in super::super) fn reap() {}
}
