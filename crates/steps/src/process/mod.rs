//! Processes of jobs: starts them, and terminates every one of them (invariant J5; `docs/explanation/processes.md`).
//!
//! The process of each step leads its own process group. There are two ways to find the other processes of a job:
//! - As the subreaper of its descendants, the agent finds a job's processes by process group, ancestors and a tag in
//!   their environment. An orphan without group and tag is terminated once all jobs that ran when it started have
//!   ended.
//! - With [`Containment::Cgroups`], each process starts in the job's cgroup, which is killed at the end of the job.
//!
//! A step that can be stopped alone has its own set of processes ([`Processes::in_own_set`]). A [`ProcessRecorder`]
//! stores what was started. After a killed agent, [`terminate_leftovers`] reads these records.

mod cgroup;
mod child;
mod limits;
mod network;
mod output;
mod procfs;
mod run;
mod running;
mod set;
mod slot;
mod spawn;
mod sys;
mod terminate;
mod usage;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use cgroup::{AgentCgroup, Cgroup};
use limits::JobLimits;
pub use limits::{LimitError, run_limited};
pub use network::{JobNetwork, Traffic};
pub use run::{Command, ProcessEnd, RunError};
use running::RUNNING;
use set::ProcessSet;
use slot::SlotCgroup;
pub use slot::{PressureStall, SlotError, SlotShare, UsageCounters};
pub use sys::Watched;
pub use terminate::terminate_leftovers;
pub use usage::{Usage, measure_usage};

const JOB_TAG: &str = "MUSTER_JOB_TAG";

/// Children of this process that a task waits for. All other children are orphans, which must be reaped.
///
/// Static, because a process has only one list of children.
static AWAITED: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// Record of a job's processes, for the agent that follows a killed agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessRecord {
    /// Tag and cgroup of the job's processes.
    Job {
        /// Tag in the environment of the processes, unique on this host and over time.
        tag: String,
        /// Cgroup directory of the processes. `None` means no cgroup.
        cgroup: Option<PathBuf>,
    },
    /// Leader of a process group of the job.
    Leader {
        /// Process ID.
        pid: i32,
        /// Start time in clock ticks since boot, which distinguishes the process from a later one with the same ID.
        start_ticks: u64,
    },
}

/// Stores a [`ProcessRecord`] on disk: of a job before its first process starts, and of a leader right after its start.
pub type ProcessRecorder = Arc<dyn Fn(&ProcessRecord) -> io::Result<()> + Send + Sync>;

/// Creates the [`Processes`] of each job of one agent.
#[derive(Debug)]
pub struct ProcessManager {
    /// Cgroup that contains the cgroups of the jobs. `None` means no cgroups.
    cgroups: Option<AgentCgroup>,
    /// Whether orphaned processes of jobs become children of this process.
    is_subreaper: bool,
    environment: Vec<(OsString, OsString)>,
    /// Limit of open files for the processes of jobs. `None` means the limit of this process.
    open_files: Option<Rlimit>,
}

/// Ways to find the processes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Containment {
    /// By process group, ancestors and tag.
    ProcessTree,
    /// Also by a cgroup, if the system permits it. Only processes that may write to cgroups can leave it.
    #[default]
    Cgroups,
}

impl ProcessManager {
    /// Returns the manager for the jobs that this process runs. Makes this process the subreaper of its descendants.
    ///
    /// `open_files` is the maximum number of open files of a job's process. `None` means the limit of this process.
    #[must_use]
    pub fn new(containment: Containment, open_files: Option<u64>) -> Arc<Self> {
        let agent_limit = getrlimit(Resource::Nofile);
        let open_files = open_files
            .filter(|files| agent_limit.current.is_none_or(|limit| *files < limit))
            .map(|files| Rlimit { current: Some(files), maximum: agent_limit.maximum });
        let cgroups = if containment == Containment::Cgroups { AgentCgroup::for_processes() } else { None };
        let is_subreaper = rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .inspect_err(|error| {
                tracing::warn!(%error, "failed to become a subreaper, finding orphaned processes of jobs only by their tag");
            })
            .is_ok();
        let environment = std::env::vars_os().filter(|(key, _)| is_inherited_by_jobs(key)).collect();
        Arc::new(Self { cgroups, is_subreaper, environment, open_files })
    }

    /// Prepares the processes of a job with this ID. `nonce` makes its tag unique.
    ///
    /// # Errors
    /// The error of the recorder.
    pub fn new_job(self: &Arc<Self>, id: &str, nonce: &str, recorder: ProcessRecorder) -> io::Result<Processes> {
        let cgroup = self.cgroups.as_ref().and_then(|cgroups| cgroups.create_child(&format!("job-{id}-{nonce}")));
        let tag = format!("{id}/{nonce}");
        let record =
            ProcessRecord::Job { tag: tag.clone(), cgroup: cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()) };
        recorder(&record)?;
        let number = RUNNING.add(&tag);
        Ok(Processes {
            manager: Arc::clone(self),
            number,
            all: ProcessSet::of_job(number, tag.clone()),
            sets: AtomicU64::new(0),
            tag,
            cgroup,
            terminations: AtomicU64::new(0),
            slot: None,
            limits: Mutex::default(),
            environment: self.environment.clone(),
            recorder,
            usage: Mutex::default(),
            readers: Mutex::new(JoinSet::new()),
        })
    }
}

impl Drop for ProcessManager {
    fn drop(&mut self) {
        if let Some(cgroups) = &self.cgroups {
            cgroups.remove();
        }
    }
}

/// Looks up a program in the agent's `PATH`, then in the usual directories (docs/spec/job-execution.md, section 4.2).
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    find_in(&std::env::var_os("PATH").unwrap_or_default(), name)
}

pub(crate) fn search_path() -> Vec<PathBuf> {
    directories(&std::env::var_os("PATH").unwrap_or_default())
}

/// Returns the directories of `path`, then the usual directories, without duplicates.
fn directories(path: &OsStr) -> Vec<PathBuf> {
    let usual = ["/usr/local/bin", "/usr/bin", "/bin", "/busybox"].map(PathBuf::from);
    let mut directories = Vec::new();
    for directory in std::env::split_paths(path).filter(|dir| dir.is_absolute()).chain(usual) {
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    directories
}

fn find_in(path: &OsStr, name: &str) -> Option<PathBuf> {
    directories(path)
        .into_iter()
        .map(|dir| dir.join(name))
        .find(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file())
}

/// Whether jobs inherit the environment variable `key` from the agent.
///
/// Muster's settings, the path of the agent's socket and runner tokens are excluded (invariant J6).
fn is_inherited_by_jobs(key: &OsStr) -> bool {
    let key = key.as_encoded_bytes();
    let excluded: [&[u8]; 4] =
        [b"STEP_RUNNER_SOCKET", b"_GITLAB_RUNNER_HELPER_NATIVE_STEPS_ARGV", b"CI_SERVER_TOKEN", b"REGISTRATION_TOKEN"];
    !key.starts_with(b"MUSTER_") && !excluded.contains(&key)
}

/// Processes of one job. [`Processes::finish`] must be called before the drop.
pub struct Processes {
    manager: Arc<ProcessManager>,
    number: u64,
    tag: String,
    all: Arc<ProcessSet>,
    /// Number of inner sets so far.
    sets: AtomicU64,
    /// Cgroup that contains the processes. `None` means no cgroup.
    cgroup: Option<Cgroup>,
    terminations: AtomicU64,
    /// Cgroups of the job's slot. `None` means no share of the machine.
    slot: Option<SlotCgroup>,
    limits: Mutex<JobLimits>,
    environment: Vec<(OsString, OsString)>,
    recorder: ProcessRecorder,
    usage: Mutex<Usage>,
    /// Tasks that read output. They may outlive the process that a step waits for.
    readers: Mutex<JoinSet<()>>,
}

impl std::fmt::Debug for Processes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Processes").field("tag", &self.tag).field("cgroup", &self.cgroup).finish_non_exhaustive()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            slot.remove();
        }
        RUNNING.remove(self.number);
    }
}

impl Processes {
    /// Returns the environment of the job's processes: the agent's without Muster's own variables, and variables of the
    /// job.
    #[must_use]
    pub fn environment(&self) -> &[(OsString, OsString)] {
        &self.environment
    }

    /// Returns another set of processes for the same job. The set is terminated separately, and recorded with the job.
    ///
    /// # Errors
    /// The error of the recorder.
    pub fn separate_set(&self, name: &str) -> io::Result<Self> {
        let (id, nonce) = self.tag.split_once('/').unwrap_or((&self.tag, ""));
        let mut set = self.manager.new_job(id, &format!("{nonce}-{name}"), Arc::clone(&self.recorder))?;
        set.environment.clone_from(&self.environment);
        Ok(set)
    }

    /// Adds variables to the environment of later processes.
    pub fn add_environment(&mut self, more: impl IntoIterator<Item = (OsString, OsString)>) {
        self.environment.extend(more);
    }

    /// Removes the variables for which `is_kept` returns false from the environment of later processes.
    pub fn retain_environment(&mut self, is_kept: impl Fn(&OsStr) -> bool) {
        self.environment.retain(|(key, _)| is_kept(key));
    }

    /// Gives later processes this share of the machine.
    ///
    /// # Errors
    /// The system does not permit a share. The job can run without one.
    pub fn apply_share(&mut self, share: &SlotShare) -> Result<(), SlotError> {
        let name: String = self.tag.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        self.use_slot(SlotCgroup::create(share, &name)?)
    }

    fn use_slot(&mut self, mut slot: SlotCgroup) -> Result<(), SlotError> {
        match (&self.cgroup, slot.unified()) {
            (Some(previous), Some(unified)) if unified.is_usable() => {
                // Processes that start in the slot's cgroup need not be moved there.
                let cgroup = Some(unified.path().to_owned());
                (self.recorder)(&ProcessRecord::Job { tag: self.tag.clone(), cgroup }).map_err(SlotError::Record)?;
                previous.remove();
                self.cgroup = Some(unified.clone());
            }
            // Processes stay in the job's own cgroup, so a slot's cgroup of the same version would only count 0.
            (Some(_), Some(_)) => slot.remove_unified()?,
            _ => {}
        }
        self.slot = Some(slot);
        Ok(())
    }

    fn count(&self, usage: Usage) {
        self.usage.lock().add(usage);
        usage::add_to_step(usage);
    }

    /// Returns the resources that the job has used so far.
    ///
    /// Stall times come from the job's cgroup, and so do CPU time and memory if the cgroup counts them. The other
    /// values come from the ended processes.
    #[must_use]
    pub fn usage_counters(&self) -> UsageCounters {
        let usage = *self.usage.lock();
        let counters = self.slot.as_ref().map(SlotCgroup::usage_counters).unwrap_or_default();
        let counters =
            UsageCounters { read_bytes: Some(usage.read_bytes), written_bytes: Some(usage.written_bytes), ..counters };
        if counters.cpu.is_some() || counters.memory_bytes.is_some() {
            return counters;
        }
        UsageCounters { cpu: Some(usage.cpu), memory_bytes: Some(usage.memory_bytes), by_processes: true, ..counters }
    }
}

#[cfg(test)]
mod tests;
