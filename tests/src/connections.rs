//! Cuts connections of other processes.

use std::collections::HashSet;
use std::path::Path;

use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Cuts the connections that a process has accepted on a socket with this file name. Returns their number.
///
/// Returns 0 without the permission to trace the process.
#[must_use]
pub fn cut_connections(pid: i32, socket_name: &str) -> usize {
    let accepted = accepted_sockets(socket_name);
    let Some(process) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { return 0 };
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let cut = |descriptor: std::fs::DirEntry| {
        let target = std::fs::read_link(descriptor.path()).ok()?.to_string_lossy().into_owned();
        let inode = target.strip_prefix("socket:[")?.strip_suffix(']')?;
        let number = descriptor.file_name().to_string_lossy().parse().ok().filter(|_| accepted.contains(inode))?;
        // The copy refers to the same connection.
        let copy = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?;
        shutdown(&copy, Shutdown::Both).ok()
    };
    descriptors.filter_map(cut).count()
}

fn accepted_sockets(socket_name: &str) -> HashSet<String> {
    /// `SS_CONNECTED` of the kernel.
    const CONNECTED: &str = "03";
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let inode = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, _, _, CONNECTED, inode, path] = columns.as_slice() else { return None };
        (Path::new(path).file_name()? == socket_name).then(|| (*inode).to_owned())
    };
    table.lines().filter_map(inode).collect()
}
