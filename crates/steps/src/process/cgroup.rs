//! Version 2 cgroups that contain the processes of jobs: one cgroup for the agent, and below it one for each job.
//!
//! Requires a writable directory of a cgroup2 hierarchy, but no controllers.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::procfs;
use super::spawn::can_start_in;

static TRIED_NAMES: AtomicU64 = AtomicU64::new(0);
/// Prefix of the name of an agent's cgroup, before the agent's process ID and a number.
const AGENT_PREFIX: &str = "muster-agent-";
/// Maximum number of names to try, because agents in other PID namespaces can use the same names.
const MAX_NAMES: usize = 1000;

#[derive(Debug, Clone)]
pub(super) struct Cgroup(PathBuf);

/// Cgroup of an agent, locked so that other agents do not remove it.
///
/// A process ID would not show whether the agent still runs, because agents may be in different PID namespaces.
#[derive(Debug)]
pub(super) struct AgentCgroup {
    cgroup: Cgroup,
    /// Locked directory. The kernel unlocks it when this process ends.
    _lock: File,
}

impl AgentCgroup {
    /// Creates the cgroup for the processes of all jobs. `None` means that the system does not support or permit
    /// cgroups.
    pub(super) fn for_processes() -> Option<Self> {
        let mount = mount_point(&procfs::read("/proc/self/mountinfo").ok()?)?;
        let own_path = procfs::read("/proc/self/cgroup").ok()?;
        let own_path = own_path.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
        let created = Self::create(&mount.join(own_path)).ok()?;
        if !created.is_usable() {
            created.remove();
            return None;
        }
        Some(created)
    }

    /// Removes the cgroups of dead agents in `parent`, and creates the cgroup of this agent.
    pub(super) fn create(parent: &Path) -> io::Result<Self> {
        remove_dead_agents(parent);
        for _ in 0..MAX_NAMES {
            let number = TRIED_NAMES.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("{AGENT_PREFIX}{}-{number}", std::process::id()));
            // Other users must not open the directory, because they could lock it.
            match DirBuilder::new().mode(0o711).create(&path).and_then(|()| File::open(&path)) {
                // Another agent may lock the cgroup first, to remove it.
                Ok(directory) if directory.try_lock().is_ok() && is_same_file(&directory, &path) => {
                    return Ok(Self { cgroup: Cgroup(path), _lock: directory });
                }
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) => {}
                Err(error) => return Err(error),
            }
            if !parent.exists() {
                return Err(io::ErrorKind::NotFound.into());
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Deref for AgentCgroup {
    type Target = Cgroup;

    fn deref(&self) -> &Cgroup {
        &self.cgroup
    }
}

impl Cgroup {
    pub(super) fn existing(path: &Path) -> Option<Self> {
        path.join(PROCS_FILE).exists().then(|| Self(path.to_owned()))
    }

    /// Returns whether processes can start in a child of the cgroup, and can be killed with it. Old kernels lack these
    /// abilities.
    pub(super) fn is_usable(&self) -> bool {
        let Some(probe) = self.create_child("probe") else { return false };
        let is_usable = File::open(&probe.0).is_ok_and(|directory| can_start_in(&directory)) && probe.kill().is_ok();
        probe.remove();
        is_usable
    }

    /// Opens a child. Creates it if it does not exist.
    pub(super) fn open_child(&self, name: &str) -> io::Result<(Self, File)> {
        let path = self.0.join(name);
        let directory = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&path)?;
                File::open(&path)
            }
            opened => opened,
        }?;
        Ok((Self(path), directory))
    }

    /// Creates a child, unless it exists. Only logs an error.
    pub(super) fn create_child(&self, name: &str) -> Option<Self> {
        let path = self.0.join(name);
        match fs::create_dir_all(&path) {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "failed to create a cgroup");
                None
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Moves a process into the cgroup. Its later children belong to the cgroup, too.
    pub(super) fn add(&self, pid: i32) -> io::Result<()> {
        fs::write(self.0.join(PROCS_FILE), pid.to_string())
    }

    /// Returns all processes in the cgroup and its children, except zombies.
    pub(super) fn members(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        collect_pids(&self.0, &mut pids);
        pids
    }

    pub(super) fn kill(&self) -> io::Result<()> {
        fs::write(self.0.join("cgroup.kill"), "1")
    }

    /// Removes the cgroup and its children. The kernel refuses while they contain processes.
    pub(super) fn remove(&self) {
        for child in children(&self.0) {
            Self(child).remove();
        }
        if let Err(error) = fs::remove_dir(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(%error, path = %self.0.display(), "failed to remove a cgroup");
        }
    }
}

const PROCS_FILE: &str = "cgroup.procs";

/// Removes a cgroup and its children, unless they contain processes.
pub(super) fn remove_if_empty(path: &Path) {
    let cgroup = Cgroup(path.to_owned());
    if cgroup.members().is_empty() {
        cgroup.remove();
    }
}

fn remove_dead_agents(parent: &Path) {
    for path in children(parent).into_iter().filter(|path| is_of_agent(path)) {
        if let Ok(directory) = File::open(&path)
            && directory.try_lock().is_ok()
        {
            Cgroup(path).remove();
        }
    }
}

/// Removes the cgroup of the dead agent that created the cgroup `job`. Keeps the cgroup of a slot and that of a running agent.
pub(super) fn remove_agent_cgroup_of(job: &Path) {
    if let Some(parent) = job.parent().filter(|parent| is_of_agent(parent))
        && let Ok(directory) = File::open(parent)
        && directory.try_lock().is_ok()
    {
        // Fails while the cgroup contains other jobs.
        let _ = fs::remove_dir(parent);
    }
}

fn is_of_agent(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = name.strip_prefix(AGENT_PREFIX).and_then(|rest| rest.split_once('-'));
    numbers.is_some_and(|(pid, number)| is_number(pid) && is_number(number))
}

fn is_same_file(directory: &File, path: &Path) -> bool {
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    directory
        .metadata()
        .is_ok_and(|opened| fs::symlink_metadata(path).is_ok_and(|found| identity(found) == identity(opened)))
}

fn collect_pids(path: &Path, pids: &mut Vec<i32>) {
    let text = fs::read_to_string(path.join(PROCS_FILE)).unwrap_or_default();
    pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    // The number of links shows whether the cgroup has children.
    if has_children(path) {
        for child in children(path) {
            collect_pids(&child, pids);
        }
    }
}

fn has_children(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.nlink() > 2)
}

fn children(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()).collect()
}

/// Returns the mount point of the cgroup2 file system from `/proc/self/mountinfo`. `None` means that it is not mounted.
fn mount_point(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (fields, rest) = line.split_once(" - ")?;
        rest.starts_with("cgroup2 ").then(|| fields.split(' ').nth(4).map(PathBuf::from)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn mount_point_of_hybrid_system_is_found() {
        let text = "30 25 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                    31 25 0:27 / /sys/fs/cgroup/unified rw,relatime shared:5 - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_point(text), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(mount_point("30 25 0:26 / /proc rw - proc proc rw\n"), None);
    }

    #[test]
    fn only_cgroups_of_ended_agents_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let next = TRIED_NAMES.load(Ordering::Relaxed);
        // An agent with this process ID in another PID namespace uses these names.
        let names = next..next + 50;
        let others: Vec<_> = names
            .map(|number| {
                let path = parent.path().join(format!("{AGENT_PREFIX}{}-{number}", std::process::id()));
                fs::create_dir(&path).unwrap();
                let directory = File::open(&path).unwrap();
                directory.lock().unwrap();
                (path, directory)
            })
            .collect();
        let first = AgentCgroup::create(parent.path()).unwrap();
        let second = AgentCgroup::create(parent.path()).unwrap();
        assert!(first.path().exists() && second.path().exists() && first.path() != second.path());
        assert!(others.iter().all(|(path, _)| path.exists() && path != first.path() && path != second.path()));
        let unrelated = parent.path().join(format!("{AGENT_PREFIX}backup"));
        fs::create_dir(&unrelated).unwrap();
        drop((first, others));
        let third = AgentCgroup::create(parent.path()).unwrap();
        let expected = BTreeSet::from([second.path().to_owned(), third.path().to_owned(), unrelated]);
        let left = || children(parent.path()).into_iter().collect::<BTreeSet<_>>();
        // A process that another test starts holds a copy of the lock until it executes its program.
        let end = Instant::now() + Duration::from_secs(30);
        while left() != expected && Instant::now() < end {
            remove_dead_agents(parent.path());
        }
        assert_eq!(left(), expected);
    }

    #[test]
    fn cgroup_of_a_dead_agent_is_removed_but_that_of_a_slot_is_kept() {
        let parent = tempfile::tempdir().unwrap();
        for (name, is_kept) in [("muster-agent-12-0", false), ("slot-0", true)] {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            remove_agent_cgroup_of(&path.join("job-7"));
            assert_eq!(path.exists(), is_kept, "{name}");
        }
        let running = AgentCgroup::create(parent.path()).unwrap();
        remove_agent_cgroup_of(&running.path().join("job-7"));
        assert!(running.path().exists(), "the cgroup of a running agent must be kept");
    }

    #[test]
    fn agent_gets_no_cgroup_if_the_parent_directory_is_missing() {
        let parent = tempfile::tempdir().unwrap();
        assert_eq!(AgentCgroup::create(&parent.path().join("missing")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
