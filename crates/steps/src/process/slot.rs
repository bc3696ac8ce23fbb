//! Cgroups of slots. A slot is one job's share of a machine that runs several jobs.
//! ```text
//! <mount>/<slot>          cgroup of the slot, kept after its jobs. Its weight is the slot's share while slots compete
//! <mount>/<slot>/job-<n>  cgroup of one job, removed after the job. Counts the job's usage
//! ```
//!
//! The directories are created in the hierarchy of version 2, and in the hierarchies of version 1 that control CPU,
//! memory or I/O, except where this process may not create them. Without any hierarchy, the job runs without a share.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cgroup::{Cgroup, remove_if_empty};
use super::procfs;

/// CPU shares per slot in version 1, the kernel's default.
const CPU_SHARES_PER_SLOT: u64 = 1024;
/// CPU and I/O weight per slot in version 2, and I/O weight in version 1.
const WEIGHT_PER_SLOT: u64 = 100;
const MAX_WEIGHT: u64 = 10_000;
const MAX_IO_WEIGHT: u64 = 1000;
const CONTROLLERS: [&str; 4] = ["cpu", "cpuacct", "memory", "blkio"];
const JOB_PREFIX: &str = "job-";
/// Age after which the cgroup of a job without processes is removed.
const STALE_JOB_AGE: Duration = Duration::from_secs(24 * 3600);

/// Error while giving a job its share of the machine.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// The path of the slot's cgroup is invalid.
    #[error("`{0}` is not a valid name of a cgroup")]
    Name(String),
    /// The mounted hierarchies cannot be read.
    #[error("failed to read /proc/self/mountinfo: {0}")]
    Mounts(#[source] io::Error),
    /// No usable hierarchy is mounted.
    #[error("the system has no cgroups")]
    NoCgroups,
    /// No hierarchy permits the cgroup. Contains the error of the first hierarchy.
    #[error("failed to create the cgroup {}: {source}", path.display())]
    NotPermitted {
        /// Path of the cgroup.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// No hierarchy remains, because the version 2 cgroup cannot contain the processes of the job.
    #[error(
        "failed to start a process in the cgroup {}; run the agent as root, or delegate a cgroup to it that contains its own cgroup and the cgroup of the slot",
        .0.display()
    )]
    NotUsable(PathBuf),
    /// The cgroup cannot be recorded.
    #[error("failed to record the cgroup: {0}")]
    Record(#[source] io::Error),
}

/// Share of the machine for a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotShare {
    /// Path of the slot's cgroup, relative to the root of each hierarchy.
    pub cgroup: String,
    /// Number of slots that the job occupies, which determines the weight of the slot's cgroup.
    pub slots: u32,
    /// Bytes of memory that the kernel reclaims only after memory of other jobs. 0 protects no memory.
    pub memory_bytes: u64,
}

/// Resource usage of a job. `None` means that the kernel does not count the value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageCounters {
    /// CPU time.
    pub cpu: Option<Duration>,
    /// Peak memory in bytes. A cgroup's counter includes the page cache.
    pub memory_bytes: Option<u64>,
    /// Whether CPU time and memory come from single processes instead of a cgroup. Memory is then the memory of the
    /// largest process.
    pub by_processes: bool,
    /// Bytes read from storage, counted by process.
    pub read_bytes: Option<u64>,
    /// Bytes written to storage, counted by process.
    pub written_bytes: Option<u64>,
    /// Time that the job waited for resources.
    pub stalled: PressureStall,
}

/// Time during which at least one process waited for a resource (pressure stall information). `None` means not
/// measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub struct PressureStall {
    pub cpu: Option<Duration>,
    pub memory: Option<Duration>,
    pub io: Option<Duration>,
}

impl PressureStall {
    /// Returns the stall times of the machine since boot.
    #[must_use]
    pub fn of_machine() -> Self {
        let read = |resource: &str| stall_time(&PathBuf::from("/proc/pressure").join(resource));
        Self { cpu: read("cpu"), memory: read("memory"), io: read("io") }
    }

    /// Returns the stall times since an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let difference = |now: Option<Duration>, then: Option<Duration>| Some(now?.saturating_sub(then?));
        Self {
            cpu: difference(self.cpu, earlier.cpu),
            memory: difference(self.memory, earlier.memory),
            io: difference(self.io, earlier.io),
        }
    }
}

#[derive(Debug)]
pub(super) struct SlotCgroup {
    hierarchies: Vec<Hierarchy>,
}

#[derive(Debug)]
struct Hierarchy {
    job: Cgroup,
    is_v2: bool,
}

impl SlotCgroup {
    pub(super) fn create(share: &SlotShare, name: &str) -> Result<Self, SlotError> {
        let mountinfo = procfs::read("/proc/self/mountinfo").map_err(SlotError::Mounts)?;
        Self::create_in(&mounts(&mountinfo), share, name)
    }

    fn create_in(mounts: &[Mount], share: &SlotShare, name: &str) -> Result<Self, SlotError> {
        let relative = share.cgroup.trim_matches('/');
        let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
        if !relative.split('/').all(is_plain) {
            return Err(SlotError::Name(share.cgroup.clone()));
        }
        let mut first_error = None;
        let mut hierarchies = Vec::new();
        for mount in mounts {
            match mount.create(relative, share, name) {
                Ok(hierarchy) => hierarchies.push(hierarchy),
                Err(source) => {
                    tracing::debug!(error = %source, path = %mount.path.display(), "failed to create a cgroup for the slot");
                    let path = mount.path.join(relative);
                    first_error.get_or_insert(SlotError::NotPermitted { path, source });
                }
            }
        }
        if hierarchies.is_empty() {
            return Err(first_error.unwrap_or(SlotError::NoCgroups));
        }
        Ok(Self { hierarchies })
    }

    /// Removes the version 2 cgroup, because processes cannot start there.
    ///
    /// # Errors
    /// No other hierarchy remains.
    pub(super) fn remove_unified(&mut self) -> Result<(), SlotError> {
        let unusable: Vec<_> = self.hierarchies.extract_if(.., |hierarchy| hierarchy.is_v2).collect();
        unusable.iter().for_each(|hierarchy| hierarchy.job.remove());
        match unusable.first() {
            Some(first) if self.hierarchies.is_empty() => Err(SlotError::NotUsable(first.job.path().to_owned())),
            _ => Ok(()),
        }
    }

    pub(super) fn unified(&self) -> Option<&Cgroup> {
        self.hierarchies.iter().find(|hierarchy| hierarchy.is_v2).map(|hierarchy| &hierarchy.job)
    }

    /// Returns whether a process must be moved after its start in `start_cgroup`.
    pub(super) fn must_move(&self, start_cgroup: Option<&Cgroup>) -> bool {
        self.hierarchies.iter().any(|hierarchy| !(hierarchy.is_v2 && start_cgroup.is_some()))
    }

    /// Moves a process into the job's cgroups. A process that was started in the version 2 cgroup `start_cgroup` stays
    /// in that cgroup.
    ///
    /// Only logs an error, because the job can run without its share.
    pub(super) fn add(&self, pid: i32, start_cgroup: Option<&Cgroup>) {
        for hierarchy in self.hierarchies.iter().filter(|hierarchy| !(hierarchy.is_v2 && start_cgroup.is_some())) {
            let added = hierarchy.job.add(pid).or_else(|error| {
                if error.kind() != io::ErrorKind::NotFound {
                    return Err(error);
                }
                // Another program may have removed the empty cgroup.
                fs::create_dir_all(hierarchy.job.path())?;
                hierarchy.job.add(pid)
            });
            match added {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                    let path = hierarchy.job.path().display();
                    tracing::warn!(%error, %path, "failed to move a process into the cgroup of its slot, running it without a share");
                }
                _ => {}
            }
        }
    }

    pub(super) fn usage_counters(&self) -> UsageCounters {
        let paths = |name: &'static str| self.hierarchies.iter().map(move |hierarchy| hierarchy.job.path().join(name));
        let read = |name| paths(name).find_map(|path| number(&path));
        let stalled = |name| paths(name).find_map(|path| stall_time(&path));
        let stat = || {
            let stat = |hierarchy: &Hierarchy| fs::read_to_string(hierarchy.job.path().join("cpu.stat")).ok();
            let text = self.hierarchies.iter().filter(|hierarchy| hierarchy.is_v2).find_map(stat)?;
            let line = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
            line.trim().parse().ok().map(Duration::from_micros)
        };
        UsageCounters {
            cpu: read("cpuacct.usage").map(Duration::from_nanos).or_else(stat),
            memory_bytes: read("memory.peak").or_else(|| read("memory.max_usage_in_bytes")),
            by_processes: false,
            read_bytes: None,
            written_bytes: None,
            stalled: PressureStall {
                cpu: stalled("cpu.pressure"),
                memory: stalled("memory.pressure"),
                io: stalled("io.pressure"),
            },
        }
    }

    pub(super) fn remove(&self) {
        self.hierarchies.iter().for_each(|hierarchy| hierarchy.job.remove());
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    path: PathBuf,
    is_v2: bool,
}

impl Mount {
    fn create(&self, relative: &str, share: &SlotShare, name: &str) -> io::Result<Hierarchy> {
        let slot = self.path.join(relative);
        fs::create_dir_all(&slot)?;
        if self.is_v2 {
            self.enable_controllers(relative);
        }
        self.set_weights(&slot, share);
        remove_dead_jobs(&slot);
        let path = slot.join(format!("{JOB_PREFIX}{name}"));
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let job = Cgroup::existing(&path).ok_or_else(|| io::Error::other("the directory is not a cgroup"))?;
        // A process that may create the directory may lack permission to move processes into it.
        if let Err(error) = fs::OpenOptions::new().write(true).open(path.join("cgroup.procs")) {
            job.remove();
            return Err(error);
        }
        Ok(Hierarchy { job, is_v2: self.is_v2 })
    }

    fn enable_controllers(&self, relative: &str) {
        let mut path = self.path.clone();
        let parts: Vec<&str> = relative.split('/').collect();
        for depth in 0..=parts.len() {
            for controller in ["+cpu", "+memory", "+io"] {
                // The job can run without a controller that is missing or not permitted.
                let _ = fs::write(path.join("cgroup.subtree_control"), controller);
            }
            if let Some(part) = parts.get(depth) {
                path.push(part);
            }
        }
    }

    fn set_weights(&self, slot: &Path, share: &SlotShare) {
        let slots = u64::from(share.slots.max(1));
        let weight = (WEIGHT_PER_SLOT * slots).min(MAX_WEIGHT);
        let (shares, io) = (CPU_SHARES_PER_SLOT * slots, (WEIGHT_PER_SLOT * slots).min(MAX_IO_WEIGHT));
        // The slot's cgroup may still have the protected memory of an earlier job.
        let memory = |unprotected: &str| match share.memory_bytes {
            0 => unprotected.to_owned(),
            bytes => bytes.to_string(),
        };
        let all: &[(&str, String)] = if self.is_v2 {
            &[("cpu.weight", weight.to_string()), ("io.weight", weight.to_string()), ("memory.low", memory("0"))]
        } else {
            let memory = ("memory.soft_limit_in_bytes", memory("-1"));
            let [cpu, io, bfq] = [("cpu.shares", shares), ("blkio.weight", io), ("blkio.bfq.weight", io)]
                .map(|(file, value)| (file, value.to_string()));
            &[cpu, io, bfq, memory]
        };
        for (file, value) in all {
            let path = slot.join(file);
            if path.exists()
                && let Err(error) = fs::write(&path, value)
            {
                tracing::debug!(%error, path = %path.display(), "failed to set the share of a slot, keeping the previous one");
            }
        }
    }
}

/// Removes old cgroups that a killed agent left behind.
///
/// New cgroups are kept, because one without processes may belong to another agent with the same slot.
fn remove_dead_jobs(slot: &Path) {
    for entry in fs::read_dir(slot).into_iter().flatten().flatten() {
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(JOB_PREFIX))
            && age().is_some_and(|age| age > STALE_JOB_AGE)
        {
            remove_if_empty(&entry.path());
        }
    }
}

/// Returns the hierarchies in `/proc/self/mountinfo`: version 2, and version 1 for CPU, memory or I/O.
fn mounts(mountinfo: &str) -> Vec<Mount> {
    let mut found: Vec<Mount> = Vec::new();
    for line in mountinfo.lines() {
        let Some((fields, rest)) = line.split_once(" - ") else { continue };
        let mut rest = rest.split(' ');
        let is_v2 = match rest.next() {
            Some("cgroup2") => true,
            Some("cgroup") => false,
            _ => continue,
        };
        let options = rest.nth(1).unwrap_or_default();
        if !is_v2 && !options.split(',').any(|option| CONTROLLERS.contains(&option)) {
            continue;
        }
        let Some(path) = fields.split(' ').nth(4).map(PathBuf::from) else { continue };
        // A hierarchy with several controllers may be listed repeatedly.
        if found.iter().all(|mount| mount.path != path) {
            found.push(Mount { path, is_v2 });
        }
    }
    found
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Reads the total time from the line `some` of a file with pressure stall information.
fn stall_time(path: &Path) -> Option<Duration> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with("some "))?;
    let total = line.rsplit_once("total=")?.1.trim();
    total.parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::super::{Containment, ProcessManager};
    use super::*;

    #[test]
    fn hierarchies_of_both_versions_are_listed_once() {
        let text = "24 1 0:22 / /proc rw - proc proc rw\n\
                    30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                    31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                    32 25 0:28 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices\n\
                    33 25 0:29 / /sys/fs/cgroup/unified rw,relatime shared:5 - cgroup2 cgroup2 rw\n";
        let [cpu, unified] = ["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        assert_eq!(mounts(text), [Mount { path: cpu, is_v2: false }, Mount { path: unified, is_v2: true }]);
    }

    fn hierarchy(root: &Path, job: &str, files: &[(&str, &str)]) {
        fs::create_dir_all(root.join(job)).unwrap();
        fs::write(root.join(job).join("cgroup.procs"), "").unwrap();
        for (name, text) in files {
            fs::write(root.join(name), text).unwrap();
        }
    }

    #[test]
    fn slot_cgroup_has_weight_and_counts_usage() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        hierarchy(
            &one,
            "ci/slot-1/job-7",
            &[
                ("ci/slot-1/cpu.shares", "1024"),
                ("ci/slot-1/memory.soft_limit_in_bytes", "-1"),
                ("ci/slot-1/job-7/cpuacct.usage", "1500000000\n"),
                ("ci/slot-1/job-7/memory.max_usage_in_bytes", "4096\n"),
            ],
        );
        let pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=250000\nfull avg10=0.00 total=1\n";
        hierarchy(
            &two,
            "ci/slot-1/job-7",
            &[
                ("ci/slot-1/cpu.weight", "100"),
                ("ci/slot-1/memory.low", "0"),
                ("ci/slot-1/job-7/io.pressure", pressure),
            ],
        );
        let mounts = [Mount { path: one.clone(), is_v2: false }, Mount { path: two.clone(), is_v2: true }];
        let share = SlotShare { cgroup: "/ci/slot-1".to_owned(), slots: 3, memory_bytes: 1 << 30 };
        let slot = SlotCgroup::create_in(&mounts, &share, "7").unwrap();
        assert_eq!(fs::read_to_string(one.join("ci/slot-1/cpu.shares")).unwrap(), "3072");
        assert_eq!(fs::read_to_string(two.join("ci/slot-1/cpu.weight")).unwrap(), "300");
        let protected = || {
            [one.join("ci/slot-1/memory.soft_limit_in_bytes"), two.join("ci/slot-1/memory.low")]
                .map(|path| fs::read_to_string(path).unwrap())
        };
        assert_eq!(protected(), ["1073741824", "1073741824"]);
        SlotCgroup::create_in(&mounts, &SlotShare { memory_bytes: 0, ..share }, "7").unwrap();
        assert_eq!(protected(), ["-1", "0"], "a share without memory must not keep the protection of an earlier one");
        let counters = slot.usage_counters();
        assert_eq!((counters.cpu, counters.memory_bytes), (Some(Duration::from_millis(1500)), Some(4096)));
        assert_eq!(
            counters.stalled,
            PressureStall { io: Some(Duration::from_millis(250)), ..PressureStall::default() }
        );
        let start_cgroup = Cgroup::existing(&two.join("ci/slot-1/job-7")).unwrap();
        assert!(slot.must_move(Some(&start_cgroup)));
        slot.add(99, Some(&start_cgroup));
        assert_eq!(fs::read_to_string(one.join("ci/slot-1/job-7/cgroup.procs")).unwrap(), "99");
        assert_eq!(
            fs::read_to_string(two.join("ci/slot-1/job-7/cgroup.procs")).unwrap(),
            "",
            "a process that was started in the cgroup must not be moved into it again"
        );
    }

    #[test]
    fn old_cgroups_of_jobs_are_removed_with_their_children_unless_they_contain_processes() {
        let slot = tempfile::tempdir().unwrap();
        let create = |job: &str, age: Duration| {
            let path = slot.path().join(job);
            fs::create_dir_all(path.join("0-0")).unwrap();
            if job == "job-used" {
                fs::write(path.join("cgroup.procs"), "1").unwrap();
            }
            fs::File::open(path).and_then(|dir| dir.set_modified(SystemTime::now() - age)).unwrap();
        };
        let old = STALE_JOB_AGE + Duration::from_secs(60);
        for (job, age) in [("job-dead", old), ("job-used", old), ("job-new", Duration::ZERO), ("other", old)] {
            create(job, age);
        }
        remove_dead_jobs(slot.path());
        let left = |job: &str| slot.path().join(job).join("0-0").exists();
        assert!(!slot.path().join("job-dead").exists(), "a cgroup without processes must be removed");
        assert!(left("job-used") && left("job-new") && left("other"));
    }

    #[tokio::test]
    async fn unusable_cgroup_of_a_slot_is_an_error_unless_version_1_gives_the_share() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        hierarchy(&one, "ci/slot-1/job-7", &[("ci/slot-1/job-7/cpuacct.usage", "1500000000\n")]);
        // No process can start in this directory, because it is not a cgroup.
        hierarchy(&two, "ci/slot-1/job-7", &[("ci/slot-1/job-7/cpu.stat", "usage_usec 0\n")]);
        hierarchy(&two, "agent", &[]);
        let share = SlotShare { cgroup: "ci/slot-1".to_owned(), slots: 1, memory_bytes: 0 };
        let apply = |mounts: &[Mount]| {
            let manager = ProcessManager::new(Containment::ProcessTree, None);
            let mut processes = manager.new_job("share", "1", Arc::new(|_| Ok(()))).unwrap();
            processes.cgroup = Cgroup::existing(&two.join("agent"));
            processes.use_slot(SlotCgroup::create_in(mounts, &share, "7").unwrap())?;
            Ok::<_, SlotError>(processes.usage_counters().cpu)
        };
        let version_2 = || Mount { path: two.clone(), is_v2: true };
        let error = apply(&[version_2()]).unwrap_err().to_string();
        assert!(error.contains("two/ci/slot-1/job-7; run the agent as root, or delegate"), "{error}");
        let cpu = apply(&[Mount { path: one.clone(), is_v2: false }, version_2()]).unwrap();
        assert_eq!(cpu, Some(Duration::from_millis(1500)));
    }

    #[test]
    fn slot_error_names_reason_if_cgroups_are_not_permitted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let share = |cgroup: &str| SlotShare { cgroup: cgroup.to_owned(), slots: 1, memory_bytes: 0 };
        let error = |cgroup: &str, mounts: &[Mount]| {
            SlotCgroup::create_in(mounts, &share(cgroup), "7").unwrap_err().to_string()
        };
        let not_permitted = error("ci/slot-0", &[Mount { path: file, is_v2: true }]);
        assert!(not_permitted.contains("/file/ci/slot-0: "), "{not_permitted}");
        assert_eq!(error("ci/slot-0", &[]), "the system has no cgroups");
        assert!(error("../slot-0", &[]).contains("not a valid name of a cgroup"));
    }
}
