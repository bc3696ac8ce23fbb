//! Cgroups, version 2: one for the agent, and below it one for each job.
//!
//! No controller is used, only the grouping: it needs no more than a writable directory in a mounted cgroup2 tree
//! (also the `unified` one of a hybrid system), which root has, and a user with a delegated subtree. Processes start in
//! their cgroup ([`super::spawn`]); none is moved.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::spawn::can_start_in;
use super::table;

/// How many cgroups this process has made for itself.
static HOSTS: AtomicU64 = AtomicU64::new(0);
/// Name of an agent's cgroup, before its process id and a number.
const AGENT: &str = "muster-agent-";

/// A cgroup directory that we made.
#[derive(Debug, Clone)]
pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    /// The cgroup of this agent, if the system lets us make one that can kill.
    pub(super) fn for_agent() -> Option<Self> {
        let mount = mount_point(&table::read("/proc/self/mountinfo").ok()?)?;
        let own = table::read("/proc/self/cgroup").ok()?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
        // A second host of the same process gets one of its own: neither removes what is the other's.
        let number = HOSTS.fetch_add(1, Ordering::Relaxed);
        let above = mount.join(own);
        let path = above.join(format!("{AGENT}{}-{number}", std::process::id()));
        fs::create_dir(&path).ok()?;
        remove_dead_agents(&above);
        let cgroup = Self(path);
        if !cgroup.is_usable() {
            cgroup.remove();
            return None;
        }
        Some(cgroup)
    }

    /// A cgroup that an earlier agent made.
    pub(super) fn existing(path: &Path) -> Option<Self> {
        path.join(PROCS).exists().then(|| Self(path.to_owned()))
    }

    /// Whether processes can start below it, and all be killed: the kernel may be too old for the one or the other.
    pub(super) fn is_usable(&self) -> bool {
        let Some(probe) = self.child("probe") else { return false };
        let is_usable = File::open(&probe.0).is_ok_and(|directory| can_start_in(&directory)) && probe.kill().is_ok();
        probe.remove();
        is_usable
    }

    /// The directory below it for processes to start in, by a number that must differ after a kill: some kernels (6.18) kill
    /// whatever is cloned into a cgroup that was killed before. It is created if it does not exist.
    pub(super) fn open(&self, number: u64) -> io::Result<File> {
        let path = self.0.join(number.to_string());
        match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&path)?;
                File::open(&path)
            }
            opened => opened,
        }
    }

    pub(super) fn child(&self, name: &str) -> Option<Self> {
        let path = self.0.join(name);
        match fs::create_dir_all(&path) {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "cannot make a cgroup for the job");
                None
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Puts a process, and what it will start, into the cgroup.
    pub(super) fn add(&self, pid: i32) -> io::Result<()> {
        fs::write(self.0.join(PROCS), pid.to_string())
    }

    /// Every process in it and in cgroups that the job made inside it. Zombies do not count.
    pub(super) fn members(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        collect(&self.0, &mut pids);
        pids
    }

    /// Ends everything in it at once.
    pub(super) fn kill(&self) -> io::Result<()> {
        fs::write(self.0.join("cgroup.kill"), "1")
    }

    /// Removes it with what the job made inside it. The kernel refuses while a process is in it.
    pub(super) fn remove(&self) {
        for child in children(&self.0) {
            Self(child).remove();
        }
        if let Err(error) = fs::remove_dir(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(%error, path = %self.0.display(), "the cgroup stays");
        }
    }
}

const PROCS: &str = "cgroup.procs";

/// Removes the cgroups of agents that were killed, if they are empty.
fn remove_dead_agents(above: &Path) {
    for path in children(above) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let pid = name.strip_prefix(AGENT).and_then(|rest| Pid::from_raw(rest.split_once('-')?.0.parse().ok()?));
        // Gone is only what the system says is gone, not what this process may not look at.
        if pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH)) {
            // The kernel refuses while there are processes in it.
            Cgroup(path).remove();
        }
    }
}

fn collect(path: &Path, pids: &mut Vec<i32>) {
    let text = fs::read_to_string(path.join(PROCS)).unwrap_or_default();
    pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    // The count of links tells whether there are cgroups inside, without reading the directory.
    if has_children(path) {
        for child in children(path) {
            collect(&child, pids);
        }
    }
}

fn has_children(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).is_ok_and(|metadata| metadata.nlink() > 2)
}

fn children(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()).collect()
}

/// Where a cgroup2 file system is mounted, from the text of `/proc/self/mountinfo`.
fn mount_point(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (fields, rest) = line.split_once(" - ")?;
        rest.starts_with("cgroup2 ").then(|| fields.split(' ').nth(4).map(PathBuf::from)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_mount_of_a_hybrid_system() {
        let text = "30 25 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                    31 25 0:27 / /sys/fs/cgroup/unified rw,relatime shared:5 - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_point(text), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(mount_point("30 25 0:26 / /proc rw - proc proc rw\n"), None);
    }

    #[test]
    fn only_the_cgroups_of_agents_that_are_gone_are_removed() {
        let above = tempfile::tempdir().unwrap();
        let of = |pid: u32| above.path().join(format!("{AGENT}{pid}-0"));
        let script = r"printf \\377\\376 >/proc/$$/comm; echo; read line";
        let mut agent = std::process::Command::new("sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        io::Read::read_exact(agent.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        fs::create_dir(of(agent.id())).unwrap();
        remove_dead_agents(above.path());
        let while_it_lived = of(agent.id()).exists();
        agent.kill().unwrap();
        agent.wait().unwrap();
        assert!(while_it_lived, "the agent lives, whatever its name is");
        remove_dead_agents(above.path());
        assert!(!of(agent.id()).exists());
    }
}
