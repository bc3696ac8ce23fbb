//! Processes whose parent has ended, such as an agent or a daemon. They become children of the instance, and are killed
//! with it at the latest.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};
use tokio::signal::unix::SignalKind;

use crate::server::Commands;

/// Maximum time to wait until the killed processes have ended.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
const END_PAUSE: Duration = Duration::from_millis(5);

/// Makes this process the parent of orphaned descendants.
pub(crate) fn adopt() -> std::io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Reaps orphaned processes indefinitely. Commands in `own` are reaped by the tasks that started them.
pub(crate) async fn reap(own: Commands) {
    let Ok(mut ended) = tokio::signal::unix::signal(SignalKind::child()) else { return };
    while ended.recv().await.is_some() {
        for child in children().into_iter().filter(|child| !own.has(child.as_raw_nonzero().get())) {
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
    }
}

/// Kills all descendants of this process. Children of a killed process become children of this one, so this terminates.
/// Blocks the thread, so that no command can report that it ended. On a lost machine, none would either.
pub(crate) fn end_all() {
    let end = Instant::now() + KILL_TIMEOUT;
    loop {
        let left = children();
        if left.is_empty() || Instant::now() >= end {
            return;
        }
        for child in left {
            let _ = kill_process(child, Signal::KILL);
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
        std::thread::sleep(END_PAUSE);
    }
}

fn children() -> Vec<Pid> {
    let own = getpid().as_raw_nonzero().get();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let child = |process: std::fs::DirEntry| {
        let pid = process.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
        // `pid (name) state parent ...`; the name may contain any characters.
        let parent: i32 = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        (parent == own).then_some(pid)
    };
    processes.filter_map(child).collect()
}
