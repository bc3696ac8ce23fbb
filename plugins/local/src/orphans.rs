//! Orphaned processes of an instance, such as an agent or a daemon. They become children of the instance process and
//! are killed with it.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};
use tokio::signal::unix::SignalKind;

use crate::server::Commands;

const KILL_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Makes this process the parent of descendants that become orphans later.
pub(crate) fn adopt() -> std::io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Reaps orphaned processes indefinitely. Processes in `commands` are reaped by the tasks that started them.
pub(crate) async fn reap(commands: Commands) {
    let Ok(mut child_signals) = tokio::signal::unix::signal(SignalKind::child()) else { return };
    while child_signals.recv().await.is_some() {
        for child in children().into_iter().filter(|child| !commands.contains(child.as_raw_nonzero().get())) {
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
    }
}

/// Kills all descendants of this process. Waits up to [`KILL_TIMEOUT`] until they have exited.
///
/// Blocks the only thread, so that no command can report its exit: a lost machine would not report it either.
pub(crate) fn kill_all() {
    let deadline = Instant::now() + KILL_TIMEOUT;
    loop {
        let remaining = children();
        if remaining.is_empty() || Instant::now() >= deadline {
            return;
        }
        for child in remaining {
            let _ = kill_process(child, Signal::KILL);
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn children() -> Vec<Pid> {
    let own_pid = getpid().as_raw_nonzero().get();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let child_pid = |process: std::fs::DirEntry| {
        let pid = process.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
        // `pid (name) state parent ...`; the name may contain any characters.
        let parent: i32 = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        (parent == own_pid).then_some(pid)
    };
    processes.filter_map(child_pid).collect()
}
