//! Cgroups of slots. A machine that runs several jobs has a slot for each of them. The cgroups of a slot give its job a share of the
//! machine, and count the job's usage.
//!
//! ```text
//! <mount>/<slot>          cgroup of the slot, kept after its jobs: its weight is the slot's share while slots compete
//! <mount>/<slot>/job-<n>  cgroup of one job, removed after the job: counts the job's usage
//! ```
//!
//! Hierarchies of version 1 and version 2 can be mounted side by side. The directories are created in the hierarchy of version 2, and in
//! each hierarchy of version 1 that controls CPU, memory or I/O. A hierarchy in which this process may not create them is left out. If all are
//! left out, the job runs without a share.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cgroup::Cgroup;
use super::procfs;

/// CPU shares per slot in version 1. This is the kernel's default.
const CPU_SHARES_PER_SLOT: u64 = 1024;
/// Weight per slot of CPU and I/O in version 2, and of I/O in version 1.
const WEIGHT_PER_SLOT: u64 = 100;
/// Maximum weight that the kernel permits in version 2.
const MAX_WEIGHT: u64 = 10_000;
/// Maximum I/O weight that the kernel permits in version 1.
const MAX_IO_WEIGHT: u64 = 1000;
/// Controllers of version 1 whose hierarchies are used.
const CONTROLLERS: [&str; 4] = ["cpu", "cpuacct", "memory", "blkio"];
/// Prefix of the name of a job's cgroup.
const JOB_PREFIX: &str = "job-";
/// Age after which the cgroup of a job without processes is removed.
const STALE_JOB_AGE: Duration = Duration::from_secs(24 * 3600);

/// Error while a job is given its share of the machine.
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
    /// The cgroup cannot be recorded.
    #[error("failed to record the cgroup: {0}")]
    Record(#[source] io::Error),
}

/// Share of the machine for a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotShare {
    /// Path of the slot's cgroup, relative to the root of each hierarchy.
    pub cgroup: String,
    /// Number of slots that the job occupies. The weight of the slot's cgroup is proportional to this number.
    pub slots: u32,
    /// Bytes of memory that the kernel reclaims only after memory of other jobs. 0 means that no memory is protected.
    pub memory_bytes: u64,
}

/// Resource usage of a job, as the kernel counted it. `None` means that the kernel does not count it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageCounters {
    /// CPU time.
    pub cpu: Option<Duration>,
    /// Peak memory in bytes. If a cgroup counted it, it includes the page cache.
    pub memory_bytes: Option<u64>,
    /// Whether CPU time and memory come from single processes, because no cgroup counts them. Memory is then the peak of the largest process.
    pub by_processes: bool,
    /// Bytes that processes of the job read from storage. The kernel counts them for each process, not for the cgroup.
    pub read_bytes: Option<u64>,
    /// Bytes that processes of the job wrote to storage. The kernel counts them for each process, not for the cgroup.
    pub written_bytes: Option<u64>,
    /// Time that processes of the job waited for resources.
    pub stalled: PressureStall,
}

/// Time during which at least one process waited for a resource (pressure stall information).
///
/// `None` means that the kernel does not measure it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub struct PressureStall {
    pub cpu: Option<Duration>,
    pub memory: Option<Duration>,
    pub io: Option<Duration>,
}

impl PressureStall {
    /// Returns the stall times of the whole machine since boot.
    #[must_use]
    pub fn of_machine() -> Self {
        let read = |resource: &str| some_total(&PathBuf::from("/proc/pressure").join(resource));
        Self { cpu: read("cpu"), memory: read("memory"), io: read("io") }
    }

    /// Returns the stall times between an earlier reading and this one.
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

/// Cgroups of a job inside the cgroups of its slot.
#[derive(Debug)]
pub(super) struct SlotCgroup {
    hierarchies: Vec<Hierarchy>,
}

#[derive(Debug)]
struct Hierarchy {
    job: Cgroup,
    /// Whether the hierarchy has version 2.
    unified: bool,
}

impl SlotCgroup {
    /// Creates the cgroups for the job `name`, and sets the weights of its slot.
    ///
    /// # Errors
    /// No hierarchy permits it.
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

    /// Returns the job's version 2 cgroup. `None` means that the job has none.
    pub(super) fn unified(&self) -> Option<&Cgroup> {
        self.hierarchies.iter().find(|hierarchy| hierarchy.unified).map(|hierarchy| &hierarchy.job)
    }

    /// Returns whether a process must be moved after it was started in `start_cgroup`.
    pub(super) fn must_move(&self, start_cgroup: Option<&Cgroup>) -> bool {
        self.hierarchies.iter().any(|hierarchy| !(hierarchy.unified && start_cgroup.is_some()))
    }

    /// Moves a process into the job's cgroups, except into version 2 if it was started in `start_cgroup`.
    ///
    /// If a process cannot be moved, this only logs a warning, because the job can run without its share.
    pub(super) fn add(&self, pid: i32, start_cgroup: Option<&Cgroup>) {
        for hierarchy in self.hierarchies.iter().filter(|hierarchy| !(hierarchy.unified && start_cgroup.is_some())) {
            let added = hierarchy.job.add(pid).or_else(|error| {
                if error.kind() != io::ErrorKind::NotFound {
                    return Err(error);
                }
                // The cgroup had no processes, so another program may have removed it.
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
        let stalled = |name| paths(name).find_map(|path| some_total(&path));
        let stat = || {
            let stat = |hierarchy: &Hierarchy| fs::read_to_string(hierarchy.job.path().join("cpu.stat")).ok();
            let text = self.hierarchies.iter().filter(|hierarchy| hierarchy.unified).find_map(stat)?;
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

/// Mount point of a cgroup hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    path: PathBuf,
    /// Whether the hierarchy has version 2.
    unified: bool,
}

impl Mount {
    fn create(&self, relative: &str, share: &SlotShare, name: &str) -> io::Result<Hierarchy> {
        let slot = self.path.join(relative);
        fs::create_dir_all(&slot)?;
        if self.unified {
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
        // Permission to create the directory does not always include permission to move processes into it.
        if let Err(error) = fs::OpenOptions::new().write(true).open(path.join("cgroup.procs")) {
            job.remove();
            return Err(error);
        }
        Ok(Hierarchy { job, unified: self.unified })
    }

    /// Enables the controllers for the slot and its jobs, if they are available.
    fn enable_controllers(&self, relative: &str) {
        let mut path = self.path.clone();
        let parts: Vec<&str> = relative.split('/').collect();
        for depth in 0..=parts.len() {
            for controller in ["+cpu", "+memory", "+io"] {
                // A controller may be missing, or this process may not be permitted to enable it. The job can run without it.
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
        // The cgroup of the slot outlives its jobs, so the memory of an earlier share must be reset.
        let memory = |unprotected: &str| match share.memory_bytes {
            0 => unprotected.to_owned(),
            bytes => bytes.to_string(),
        };
        let all: &[(&str, String)] = if self.unified {
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

/// Removes cgroups that a killed agent left behind.
///
/// The kernel refuses to remove a cgroup with processes. One without processes may still be in use by another agent with the same
/// slot, so only old ones are removed.
fn remove_dead_jobs(slot: &Path) {
    for entry in fs::read_dir(slot).into_iter().flatten().flatten() {
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(JOB_PREFIX))
            && age().is_some_and(|age| age > STALE_JOB_AGE)
        {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Returns the hierarchies to use, without duplicates, from the text of `/proc/self/mountinfo`.
///
/// These are the hierarchy of version 2, and the hierarchies of version 1 that control CPU, memory or I/O.
fn mounts(mountinfo: &str) -> Vec<Mount> {
    let mut found: Vec<Mount> = Vec::new();
    for line in mountinfo.lines() {
        let Some((fields, rest)) = line.split_once(" - ") else { continue };
        let mut rest = rest.split(' ');
        let unified = match rest.next() {
            Some("cgroup2") => true,
            Some("cgroup") => false,
            _ => continue,
        };
        let options = rest.nth(1).unwrap_or_default();
        if !unified && !options.split(',').any(|option| CONTROLLERS.contains(&option)) {
            continue;
        }
        let Some(path) = fields.split(' ').nth(4).map(PathBuf::from) else { continue };
        // A hierarchy with several controllers can be listed more than once.
        if found.iter().all(|mount| mount.path != path) {
            found.push(Mount { path, unified });
        }
    }
    found
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns the `total` of the line `some` in a file with pressure stall information.
fn some_total(path: &Path) -> Option<Duration> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with("some "))?;
    let total = line.rsplit_once("total=")?.1.trim();
    total.parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions_are_listed_once() {
        let text = "24 1 0:22 / /proc rw - proc proc rw\n\
                    30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
                    31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                    32 25 0:28 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices\n\
                    33 25 0:29 / /sys/fs/cgroup/unified rw,relatime shared:5 - cgroup2 cgroup2 rw\n";
        let [cpu, unified] = ["/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/unified"].map(PathBuf::from);
        assert_eq!(mounts(text), [Mount { path: cpu, unified: false }, Mount { path: unified, unified: true }]);
    }

    /// Creates a directory that looks like a hierarchy, with the files that a kernel would create.
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
        let mounts = [Mount { path: one.clone(), unified: false }, Mount { path: two.clone(), unified: true }];
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
    fn slot_error_names_reason_if_cgroups_are_not_permitted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let share = |cgroup: &str| SlotShare { cgroup: cgroup.to_owned(), slots: 1, memory_bytes: 0 };
        let error = |cgroup: &str, mounts: &[Mount]| {
            SlotCgroup::create_in(mounts, &share(cgroup), "7").unwrap_err().to_string()
        };
        let not_permitted = error("ci/slot-0", &[Mount { path: file, unified: true }]);
        assert!(not_permitted.contains("/file/ci/slot-0: "), "{not_permitted}");
        assert_eq!(error("ci/slot-0", &[]), "the system has no cgroups");
        assert!(error("../slot-0", &[]).contains("not a valid name of a cgroup"));
    }
}
