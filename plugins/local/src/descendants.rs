//! The processes of an instance without a namespace of its own: also those that have left its sessions, as agents do.

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};

/// Rounds of [`end`]: each ends at least one process.
const ROUNDS_MAX: usize = 10_000;

/// From now on, whose parent ends becomes a child of this process.
pub(crate) fn adopt() -> std::io::Result<()> {
    set_child_subreaper(Some(getpid())).map_err(Into::into)
}

/// Ends all that descends from this process, until nothing is left.
pub(crate) fn end() {
    for _ in 0..ROUNDS_MAX {
        let children = children();
        if children.is_empty() {
            return;
        }
        for child in &children {
            let _ = kill_process(*child, Signal::KILL);
        }
        for child in children {
            // It ends, or somebody else has waited for it.
            let _ = waitpid(Some(child), WaitOptions::empty());
        }
    }
}

fn children() -> Vec<Pid> {
    let own = getpid().as_raw_nonzero().get();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let child = |process: std::fs::DirEntry| {
        let pid = process.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
        // `pid (name) state parent ...`
        let parent: i32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        (parent == own).then_some(pid)
    };
    processes.filter_map(child).collect()
}
