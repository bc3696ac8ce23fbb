//! Instances of `fleeting-plugin-local`, found through their files and processes.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Kind of a process of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessKind {
    /// Main process of an instance that ends with the plugin.
    Instance,
    /// Main process of an instance that outlives the plugin.
    PersistentInstance,
    /// SSH server of an instance that outlives the plugin. The instance restarts its server.
    SshServer,
}

impl ProcessKind {
    fn last_argument(self) -> &'static str {
        match self {
            Self::Instance => "instance",
            Self::PersistentInstance => "persistent",
            Self::SshServer => "sshd",
        }
    }
}

/// Instances of one group, which are found through the group's directory.
#[derive(Debug, Clone)]
pub struct Machines(PathBuf);

impl Machines {
    /// Returns the instances in the group's directory.
    #[must_use]
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// Returns the sorted names of the instances.
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
    pub fn paths_in_homes(&self, path: &str) -> impl Iterator<Item = PathBuf> {
        let directory = self.0.clone();
        let path = path.to_owned();
        self.names().into_iter().map(move |name| directory.join(name).join(&path))
    }

    /// Returns the sorted IDs of the processes of this kind.
    pub fn processes(&self, kind: ProcessKind) -> Vec<i32> {
        let last_argument = format!("\0{}\0", kind.last_argument());
        let is_of_kind = |process: &Path| {
            let is_in_directory = std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&self.0));
            let command_line = std::fs::read(process.join("cmdline")).unwrap_or_default();
            // `unshare`, which creates the namespaces, has the same last argument.
            is_in_directory
                && command_line.ends_with(last_argument.as_bytes())
                && !command_line.starts_with(b"unshare\0")
        };
        let processes = std::fs::read_dir("/proc").unwrap().flatten().filter(|process| is_of_kind(&process.path()));
        let mut pids: Vec<i32> =
            processes.filter_map(|process| process.file_name().to_string_lossy().parse().ok()).collect();
        pids.sort_unstable();
        pids
    }

    /// Stops all processes of all instances (SIGSTOP), except `unshare`. Returns the number of stopped processes.
    pub fn freeze(&self) -> usize {
        self.signal_all("STOP")
    }

    /// Resumes the processes (SIGCONT). Returns their number.
    pub fn resume(&self) -> usize {
        self.signal_all("CONT")
    }

    /// Kills all processes of all instances (SIGKILL), except `unshare`.
    pub fn kill_all(&self) {
        self.signal_all("KILL");
    }

    fn signal_all(&self, name: &str) -> usize {
        let directory = self.0.as_os_str().as_encoded_bytes();
        let belongs_to_instance = |process: &Path| {
            let read = |name| std::fs::read(process.join(name)).unwrap_or_default();
            let home = [&b"HOME="[..], directory].concat();
            let contents = [read("cmdline"), read("environ")];
            let matches = std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&self.0))
                || contents.iter().any(|content| content.windows(home.len()).any(|window| window == home));
            matches && !contents[0].starts_with(b"unshare\0")
        };
        let processes =
            std::fs::read_dir("/proc").unwrap().flatten().filter(|process| belongs_to_instance(&process.path()));
        let pids = processes.filter_map(|process| process.file_name().to_string_lossy().parse().ok());
        pids.filter(|pid| signal(name, *pid)).count()
    }

    /// Kills the processes of this kind of all instances (SIGKILL). Returns their number.
    pub fn kill(&self, kind: ProcessKind) -> usize {
        self.processes(kind).into_iter().filter(|pid| kill(*pid)).count()
    }
}

/// Kills a process (SIGKILL). Returns whether it existed.
pub fn kill(pid: i32) -> bool {
    signal("KILL", pid)
}

/// Sends a signal to a process. `name` has no `SIG` prefix. Returns whether the process existed.
pub fn signal(name: &str, pid: i32) -> bool {
    let output = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).output();
    output.is_ok_and(|output| output.status.success())
}
