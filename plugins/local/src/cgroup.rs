//! Resource limits of instances by cgroups, version 1 or 2.
//!
//! ```text
//! <own cgroup>/muster-local-<process>/<instance>     one for each controller (v1), or one (v2)
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

const MOUNT_POINT: &str = "/sys/fs/cgroup";
/// Prefix of the name of a plugin's cgroup. The process ID of the plugin follows.
const PREFIX: &str = "muster-local-";
/// In microseconds.
const CPU_PERIOD_US: u64 = 100_000;
/// Maximum number of attempts to remove a cgroup, which fails while the cgroup has processes.
const MAX_REMOVE_ATTEMPTS: u32 = 40;
const REMOVE_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Resource limits of an instance. 0 means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Limits {
    pub(crate) memory_bytes: u64,
    pub(crate) cpus: f64,
    pub(crate) processes: u32,
}

impl Limits {
    pub(crate) fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }

    /// Controller, file and value of each limit.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be positive and small")]
    fn settings(&self, version: Version) -> Vec<(&'static str, &'static str, String)> {
        let mut settings = Vec::new();
        let quota = (self.cpus * CPU_PERIOD_US as f64) as u64;
        match version {
            Version::V1 => {
                if self.memory_bytes > 0 {
                    settings.push(("memory", "memory.limit_in_bytes", self.memory_bytes.to_string()));
                }
                if self.cpus > 0.0 {
                    settings.push(("cpu", "cpu.cfs_period_us", CPU_PERIOD_US.to_string()));
                    settings.push(("cpu", "cpu.cfs_quota_us", quota.to_string()));
                }
            }
            Version::V2 => {
                if self.memory_bytes > 0 {
                    settings.push(("memory", "memory.max", self.memory_bytes.to_string()));
                }
                if self.cpus > 0.0 {
                    settings.push(("cpu", "cpu.max", format!("{quota} {CPU_PERIOD_US}")));
                }
            }
        }
        if self.processes > 0 {
            settings.push(("pids", "pids.max", self.processes.to_string()));
        }
        settings
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

#[derive(Debug)]
pub(crate) struct Cgroups {
    version: Version,
    limits: Limits,
    /// Paths by controller. Version 2 has one path for all controllers.
    parents: Vec<(&'static str, PathBuf)>,
}

#[derive(Debug)]
pub(crate) struct InstanceCgroup(Vec<PathBuf>);

impl Cgroups {
    /// `None` if no limits are set, or if cgroups cannot be created.
    pub(crate) fn for_limits(limits: Limits) -> Option<Self> {
        if limits.is_unlimited() {
            return None;
        }
        match Self::new(limits) {
            Ok(cgroups) => Some(cgroups),
            Err(error) => {
                tracing::warn!(
                    error,
                    "failed to create cgroups; max_memory_mib, max_cpus and max_processes have no effect"
                );
                None
            }
        }
    }

    /// # Errors
    /// The reason why limits cannot be set, with a hint.
    fn new(limits: Limits) -> Result<Self, String> {
        let proc_self_cgroup = std::fs::read_to_string("/proc/self/cgroup")
            .map_err(|error| format!("failed to read /proc/self/cgroup: {error}"))?;
        Self::create_below(Path::new(MOUNT_POINT), &proc_self_cgroup, limits)
    }

    fn create_below(mount: &Path, proc_self_cgroup: &str, limits: Limits) -> Result<Self, String> {
        let version = if mount.join("cgroup.controllers").exists() { Version::V2 } else { Version::V1 };
        let mut controllers: Vec<&'static str> =
            limits.settings(version).into_iter().map(|(controller, ..)| controller).collect();
        controllers.dedup();
        let name = format!("{PREFIX}{}", std::process::id());
        let mut parents = Vec::new();
        match version {
            Version::V1 => {
                for controller in controllers {
                    let path = controller_path(proc_self_cgroup, controller);
                    let own_cgroup = cgroup_directory(&mount.join(controller), path);
                    remove_stale(&own_cgroup);
                    let parent = own_cgroup.join(&name);
                    create_cgroup(&parent)?;
                    parents.push((controller, parent));
                }
            }
            Version::V2 => {
                let own_cgroup = cgroup_directory(mount, controller_path(proc_self_cgroup, ""));
                remove_stale(&own_cgroup);
                enable_for_children(&own_cgroup, &controllers)?;
                let parent = own_cgroup.join(&name);
                create_cgroup(&parent)?;
                enable_for_children(&parent, &controllers)?;
                parents.push(("", parent));
            }
        }
        Ok(Self { version, limits, parents })
    }

    pub(crate) fn create(&self, instance: &str) -> Result<InstanceCgroup, String> {
        let group = InstanceCgroup(self.parents.iter().map(|(_, parent)| parent.join(instance)).collect());
        match self.set_up(instance, &group) {
            Ok(()) => Ok(group),
            Err(error) => {
                for path in &group.0 {
                    let _ = std::fs::remove_dir(path);
                }
                Err(error)
            }
        }
    }

    fn set_up(&self, instance: &str, group: &InstanceCgroup) -> Result<(), String> {
        for path in &group.0 {
            create_cgroup(path)?;
        }
        for (controller, file, value) in self.limits.settings(self.version) {
            let parent = self.parents.iter().find(|(name, _)| name.is_empty() || *name == controller);
            if let Some((_, parent)) = parent {
                write(&parent.join(instance).join(file), &value)?;
            }
        }
        Ok(())
    }
}

impl Cgroups {
    /// Removes the plugin's cgroups, in which the cgroups of the instances must have been removed before.
    pub(crate) fn remove(&self) {
        for (_, parent) in &self.parents {
            let _ = std::fs::remove_dir(parent);
        }
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Removes cgroups of killed plugins. The process ID in the name of such a cgroup belongs to no process, or has been
/// reused for this process. Cgroups with processes remain.
fn remove_stale(own_cgroup: &Path) {
    for entry in own_cgroup.read_dir().into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(PREFIX).and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        if pid != std::process::id() && Path::new("/proc").join(pid.to_string()).exists() {
            continue;
        }
        for instance in entry.path().read_dir().into_iter().flatten().flatten() {
            let _ = std::fs::remove_dir(instance.path());
        }
        let _ = std::fs::remove_dir(entry.path());
    }
}

impl InstanceCgroup {
    pub(crate) fn add_process(&self, pid: u32) -> Result<(), String> {
        let add = |pid: u32| self.0.iter().try_for_each(|path| write(&path.join("cgroup.procs"), &pid.to_string()));
        add(pid)?;
        // Future children inherit the cgroups.
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        // A child may have exited meanwhile.
        children.split_whitespace().filter_map(|child| child.parse().ok()).for_each(|child| drop(add(child)));
        Ok(())
    }

    /// Removes the instance's cgroups. For each, waits up to two seconds until its last process has ended.
    pub(crate) async fn remove(self) {
        for path in self.0 {
            for attempt in 1..=MAX_REMOVE_ATTEMPTS {
                match std::fs::remove_dir(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound && attempt < MAX_REMOVE_ATTEMPTS => {
                        tokio::time::sleep(REMOVE_RETRY_DELAY).await;
                    }
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        tracing::warn!(path = %path.display(), %error, "failed to remove cgroup of an instance");
                    }
                    _ => break,
                }
            }
        }
    }
}

/// Returns the path of this process's cgroup for a controller. The controller of version 2 is "".
///
/// `proc_self_cgroup` is the text of `/proc/self/cgroup`.
fn controller_path<'a>(proc_self_cgroup: &'a str, controller: &str) -> &'a str {
    let path = proc_self_cgroup.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    });
    path.unwrap_or("/")
}

/// Returns the directory of a cgroup, or the mount point if the directory does not exist: in a container, `path` can be
/// a path on the host.
fn cgroup_directory(mount: &Path, path: &str) -> PathBuf {
    let directory = mount.join(path.trim_start_matches('/'));
    if directory.is_dir() { directory } else { mount.to_owned() }
}

/// Enables controllers for the child cgroups of `group`.
fn enable_for_children(group: &Path, controllers: &[&str]) -> Result<(), String> {
    let enabled: Vec<String> = controllers.iter().map(|controller| format!("+{controller}")).collect();
    write(&group.join("cgroup.subtree_control"), &enabled.join(" ")).map_err(|error| {
        format!("{error}; run the manager in a separate cgroup that is delegated to it (systemd: Delegate=yes and DelegateSubgroup=manager)")
    })
}

fn create_cgroup(path: &Path) -> Result<(), String> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(format!("failed to create {}: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

fn write(path: &Path, value: &str) -> Result<(), String> {
    std::fs::write(path, value).map_err(|error| format!("failed to write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { memory_bytes: 64 << 20, cpus: 1.5, processes: 20 };

    fn read(path: PathBuf) -> String {
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    #[test]
    fn version_2_has_one_cgroup_for_all_controllers() {
        let mount = tempfile::tempdir().unwrap();
        std::fs::write(mount.path().join("cgroup.controllers"), "cpu memory pids").unwrap();
        std::fs::create_dir_all(mount.path().join("system.slice/manager")).unwrap();
        let groups = Cgroups::create_below(mount.path(), "0::/system.slice/manager\n", LIMITS).unwrap();
        groups.create("local-1").unwrap();
        let own_cgroup = mount.path().join("system.slice/manager");
        assert_eq!(read(own_cgroup.join("cgroup.subtree_control")), "+memory +cpu +pids");
        let group = own_cgroup.join(format!("muster-local-{}/local-1", std::process::id()));
        assert_eq!(read(group.join("memory.max")), (64 << 20).to_string());
        assert_eq!(read(group.join("cpu.max")), "150000 100000");
        assert_eq!(read(group.join("pids.max")), "20");
    }

    #[test]
    fn version_1_has_one_cgroup_per_controller() {
        let mount = tempfile::tempdir().unwrap();
        for directory in ["memory/ci", "cpu", "pids"] {
            std::fs::create_dir_all(mount.path().join(directory)).unwrap();
        }
        let proc_self_cgroup = "4:memory:/ci\n2:cpu,cpuacct:/of-the-host\n3:pids:/\n0::/\n";
        let groups = Cgroups::create_below(mount.path(), proc_self_cgroup, LIMITS).unwrap();
        groups.create("local-1").unwrap();
        let group = |base: &str| mount.path().join(base).join(format!("muster-local-{}/local-1", std::process::id()));
        assert_eq!(read(group("memory/ci").join("memory.limit_in_bytes")), (64 << 20).to_string());
        assert_eq!(read(group("cpu").join("cpu.cfs_quota_us")), "150000");
        assert_eq!(read(group("pids").join("pids.max")), "20");
    }

    #[test]
    fn failed_creation_leaves_no_cgroup() {
        let mount = tempfile::tempdir().unwrap();
        for controller in ["memory", "cpu", "pids"] {
            std::fs::create_dir(mount.path().join(controller)).unwrap();
        }
        let groups = Cgroups::create_below(mount.path(), "", LIMITS).unwrap();
        let parent = |controller: &str| mount.path().join(format!("{controller}/muster-local-{}", std::process::id()));
        std::fs::remove_dir(parent("pids")).unwrap();
        groups.create("local-1").unwrap_err();
        for controller in ["memory", "cpu"] {
            assert_eq!(parent(controller).read_dir().unwrap().count(), 0, "{controller}");
        }
    }

    #[test]
    fn error_has_reason_and_hint_if_cgroups_cannot_be_created() {
        let mount = tempfile::tempdir().unwrap();
        let error = Cgroups::create_below(mount.path(), "", LIMITS).unwrap_err();
        assert!(error.contains("memory"), "{error}");
        std::fs::write(mount.path().join("cgroup.controllers"), "").unwrap();
        std::fs::create_dir(mount.path().join("cgroup.subtree_control")).unwrap();
        let error = Cgroups::create_below(mount.path(), "0::/\n", LIMITS).unwrap_err();
        assert!(error.contains("Delegate=yes"), "{error}");
    }
}
