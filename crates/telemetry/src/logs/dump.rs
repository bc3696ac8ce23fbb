//! Logs the state of all threads, for SIGUSR1 at level debug.

use std::path::Path;

/// Logs one line for each thread: its name, its state, and the kernel function in which it waits.
pub fn dump_threads() {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    for thread in threads {
        let read = |name: &str| read_trimmed(&thread.path().join(name));
        let stat = read("stat");
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?');
        let (name, wait) = (read("comm"), read("wchan"));
        tracing::debug!(thread = %thread.file_name().to_string_lossy(), name, %state, wait, "state of a thread");
    }
}

fn read_trimmed(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
