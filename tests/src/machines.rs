//! The instances of `fleeting-plugin-local` in a directory, as whoever stands beside them sees them: they are processes.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A process of an instance, by its last argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of it: an instance that ends with the plugin.
    Instance,
    /// All of it: an instance that outlives the plugin.
    Machine,
    /// The SSH server of such a one, which is started again.
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

/// The instances of one group, whose directory is this.
#[derive(Debug, Clone)]
pub struct Machines(PathBuf);

impl Machines {
    /// Those below a directory.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// The names of those that have anything on disk, in order.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().to_string_lossy().trim_end_matches(".json").to_owned())
            // A record that is being written stands beside its place for a moment.
            .filter(|name| !name.starts_with('.') && !name.ends_with(".new"))
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// A file in the home of each.
    pub fn each(&self, path: &str) -> impl Iterator<Item = PathBuf> {
        let directory = self.0.clone();
        let path = path.to_owned();
        self.names().into_iter().map(move |name| directory.join(name).join(&path))
    }

    /// The processes that are this part, in order of their ids.
    pub fn processes(&self, part: Part) -> Vec<i32> {
        let end = format!("\0{}\0", part.last_argument());
        let is_part = |process: &Path| {
            let inside = std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&self.0));
            let words = std::fs::read(process.join("cmdline")).unwrap_or_default();
            // What makes the namespaces has the same words after its own.
            inside && words.ends_with(end.as_bytes()) && !words.starts_with(b"unshare\0")
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten().filter(|process| is_part(&process.path()));
        let mut pids: Vec<i32> = all.filter_map(|process| process.file_name().to_string_lossy().parse().ok()).collect();
        pids.sort_unstable();
        pids
    }

    /// SIGSTOP for everything on all of them: they are there, and do nothing; how many processes there were. What made their
    /// namespaces is not on them.
    pub fn freeze(&self) -> usize {
        self.signal_all("STOP")
    }

    /// SIGCONT for what [`freeze`](Self::freeze) stopped; how many processes there were.
    pub fn thaw(&self) -> usize {
        self.signal_all("CONT")
    }

    /// SIGKILL for everything on all of them.
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

    /// SIGKILL for this part of all; how many there were.
    pub fn kill(&self, part: Part) -> usize {
        self.processes(part).into_iter().filter(|pid| kill(*pid)).count()
    }
}

/// SIGKILL; whether it was there.
pub fn kill(pid: i32) -> bool {
    signal("KILL", pid)
}

/// A signal by its name; whether the process was there.
pub fn signal(name: &str, pid: i32) -> bool {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).output();
    sent.is_ok_and(|sent| sent.status.success())
}
