//! Instances of `fleeting-plugin-local` in a directory, seen from outside: they are processes.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Kind of a process of an instance, which is recognized by its last argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Whole instance that ends with the plugin.
    Instance,
    /// Whole instance that outlives the plugin.
    Machine,
    /// SSH server of an instance that outlives the plugin. It is restarted when it ends.
    Server,
}

impl Part {
    fn last_argument(self) -> &'static str {
        match self {
            Self::Instance => "instance",
            Self::Machine => "persistent",
            Self::Server => "sshd",
        }
    }
}

/// Instances of one group, by the group's directory.
#[derive(Debug, Clone)]
pub struct Machines(PathBuf);

impl Machines {
    /// Returns the instances below a directory.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// Returns the sorted names of the instances that have files on disk.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().to_string_lossy().trim_end_matches(".json").to_owned())
            // A record is written to a temporary file in the same directory, then renamed.
            .filter(|name| !name.starts_with('.') && !name.ends_with(".new"))
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Returns the path of a file in the home directory of each instance.
    pub fn each(&self, path: &str) -> impl Iterator<Item = PathBuf> {
        let directory = self.0.clone();
        let path = path.to_owned();
        self.names().into_iter().map(move |name| directory.join(name).join(&path))
    }

    /// Returns the sorted IDs of the processes of this kind.
    pub fn processes(&self, part: Part) -> Vec<i32> {
        let end = format!("\0{}\0", part.last_argument());
        let is_part = |process: &Path| {
            let inside = std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&self.0));
            let words = std::fs::read(process.join("cmdline")).unwrap_or_default();
            // The process that creates the namespaces ends with the same arguments.
            inside && words.ends_with(end.as_bytes()) && !words.starts_with(b"unshare\0")
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten().filter(|process| is_part(&process.path()));
        let mut pids: Vec<i32> = all.filter_map(|process| process.file_name().to_string_lossy().parse().ok()).collect();
        pids.sort_unstable();
        pids
    }

    /// Stops all processes of all instances (SIGSTOP): the instances exist, but do not respond. Returns the number of processes.
    ///
    /// The processes that created the namespaces are outside of the instances, and are not stopped.
    pub fn freeze(&self) -> usize {
        self.signal_all("STOP")
    }

    /// Resumes the processes that [`freeze`](Self::freeze) stopped (SIGCONT). Returns the number of processes.
    pub fn thaw(&self) -> usize {
        self.signal_all("CONT")
    }

    /// Kills all processes of all instances (SIGKILL).
    pub fn end(&self) {
        self.signal_all("KILL");
    }

    fn signal_all(&self, name: &str) -> usize {
        let directory = self.0.as_os_str().as_encoded_bytes();
        let is_inside = |process: &Path| {
            let file = |name| std::fs::read(process.join(name)).unwrap_or_default();
            let home = [&b"HOME="[..], directory].concat();
            let words = [file("cmdline"), file("environ")];
            let is_theirs = std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&self.0))
                || words.iter().any(|words| words.windows(home.len()).any(|part| part == home));
            is_theirs && !words[0].starts_with(b"unshare\0")
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten().filter(|process| is_inside(&process.path()));
        let pids = all.filter_map(|process| process.file_name().to_string_lossy().parse().ok());
        pids.filter(|pid| signal(name, *pid)).count()
    }

    /// Kills the processes of this kind of all instances (SIGKILL). Returns their number.
    pub fn kill(&self, part: Part) -> usize {
        self.processes(part).into_iter().filter(|pid| kill(*pid)).count()
    }
}

/// Kills a process (SIGKILL). Returns whether it existed.
pub fn kill(pid: i32) -> bool {
    signal("KILL", pid)
}

/// Sends a process the signal with this name. Returns whether the process existed.
pub fn signal(name: &str, pid: i32) -> bool {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).output();
    sent.is_ok_and(|sent| sent.status.success())
}
