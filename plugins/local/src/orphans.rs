//! Processes whose parent has ended: they become children of the instance (an agent, a daemon that a job left), and end
//! with it at the latest.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};
use tokio::signal::unix::SignalKind;

use crate::server::Commands;

/// For all of them to end, once they are killed.
const END_LIMIT: Duration = Duration::from_secs(5);
const END_PAUSE: Duration = Duration::from_millis(5);

/// From now on, they come to this process.
pub(crate) fn adopt() -> std::io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Takes leave of those that end, for ever. Who started one of `own` waits for it.
pub(crate) async fn reap(own: Commands) {
    let Ok(mut ended) = tokio::signal::unix::signal(SignalKind::child()) else { return };
    while ended.recv().await.is_some() {
        for child in children().into_iter().filter(|child| !own.has(child.as_raw_nonzero().get())) {
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
    }
}

/// Ends all that descends from this process. Children of one that ends come here, so that there is an end to it. Nothing else
/// is done meanwhile: whoever waits for a command here hears nothing more, as of a machine that is gone.
pub(crate) fn end_all() {
    let end = Instant::now() + END_LIMIT;
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
        // `pid (name) state parent ...`; a name may hold anything.
        let parent: i32 = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        (parent == own).then_some(pid)
    };
    processes.filter_map(child).collect()
}
