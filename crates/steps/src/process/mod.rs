//! The processes of a job: started here, and ended here, every one of them (invariant J5).
//!
//! Each step's process leads a process group of its own. There are two ways to find what else a job started:
//! - As the sub-reaper of its descendants, the agent finds a job's processes by their group, their ancestors and a mark
//!   in their environment. One that leaves its group, is orphaned *and* has not the mark of a running job is found by its
//!   being a child of the agent that nobody waits for; it is ended as soon as every job has ended that ran when it started.
//! - With [`Containment::Cgroups`], where the agent may create them (version 2, a writable subtree), each process of a job
//!   starts in the job's cgroup, and ending the job ends what is in it.
//!
//! What holds with which of them is in `docs/explanation/processes.md`.
//!
//! What is started is told to a [`Recorder`], so that another agent can end what a killed one left behind
//! ([`end_leftovers`]).

mod cgroup;
mod child;
mod end;
mod run;
mod running;
mod slot;
mod spawn;
mod sys;
mod table;
mod usage;

use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use cgroup::Cgroup;
pub use end::end_leftovers;
pub use run::{Command, Ended, RunError};
use running::RUNNING;
use slot::Slot;
pub use slot::{Counted, Share, Stalled};
pub use sys::Watched;
use usage::Usage;

/// The variable whose value marks a job's processes.
const MARK: &str = "MUSTER_JOB_MARK";

/// The children of this process that someone waits for; any other child is an orphan to be reaped. One for the whole
/// process, as its children are.
static AWAITED: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// One thing to know about a job's processes, for the agent that comes after a killed one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trail {
    /// The job's processes have this mark in their environment, and are in this cgroup if there is one.
    Job {
        /// Unique on this host and over time.
        mark: String,
        /// The cgroup's directory.
        cgroup: Option<PathBuf>,
    },
    /// This process leads a group of the job.
    Leader {
        /// Its process id.
        pid: i32,
        /// When it started, in clock ticks since boot: tells it from a later one with the same id.
        start_ticks: u64,
    },
}

/// Keeps a [`Trail`] on disk: that of a job before anything of it runs, that of a leader as soon as there is one.
pub type Recorder = Arc<dyn Fn(&Trail) -> io::Result<()> + Send + Sync>;

/// What the jobs of one agent share.
#[derive(Debug)]
pub struct Host {
    /// The agent's own cgroup directory, below which jobs get theirs.
    cgroups: Option<Cgroup>,
    /// Orphans of jobs become children of this process.
    adopts: bool,
    environment: Vec<(OsString, OsString)>,
    /// The limit of open files of jobs' processes, where it is not this process's own.
    open_files: Option<Rlimit>,
}

/// How the processes of a job are kept together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Containment {
    /// By group, ancestry and mark.
    Descent,
    /// By a cgroup too, where the system permits it. Without rights on the cgroup file system nothing escapes.
    #[default]
    Cgroups,
}

impl Host {
    /// A host for the jobs of this process, whose processes may have `open_files` open; none means as many as this one. Makes
    /// the process a sub-reaper.
    #[must_use]
    pub fn new(containment: Containment, open_files: Option<u64>) -> Arc<Self> {
        let own = getrlimit(Resource::Nofile);
        let open_files = open_files
            .filter(|files| own.current.is_none_or(|own| *files < own))
            .map(|files| Rlimit { current: Some(files), maximum: own.maximum });
        let cgroups = if containment == Containment::Cgroups { Cgroup::for_agent() } else { None };
        let adopts = rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
            .inspect_err(|error| {
                tracing::warn!(%error, "orphaned processes of jobs cannot be adopted: they are found by their mark only");
            })
            .is_ok();
        let environment = std::env::vars_os().filter(|(key, _)| is_for_jobs(key)).collect();
        Arc::new(Self { cgroups, adopts, environment, open_files })
    }

    /// Makes room for the processes of a job. `id` names the job, `nonce` makes the name unique.
    ///
    /// # Errors
    /// What the recorder says.
    pub fn job(self: &Arc<Self>, id: &str, nonce: &str, recorder: Recorder) -> io::Result<Processes> {
        let cgroup = self.cgroups.as_ref().and_then(|cgroups| cgroups.child(&format!("job-{id}-{nonce}")));
        let mark = format!("{id}/{nonce}");
        let trail = Trail::Job { mark: mark.clone(), cgroup: cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()) };
        recorder(&trail)?;
        Ok(Processes {
            host: Arc::clone(self),
            number: RUNNING.enter(&mark),
            mark,
            cgroup,
            ends: AtomicU64::new(0),
            slot: None,
            environment: self.environment.clone(),
            recorder,
            leaders: Mutex::new(HashSet::new()),
            usage: Mutex::default(),
            pumps: Mutex::new(JoinSet::new()),
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(cgroups) = &self.cgroups {
            cgroups.remove();
        }
    }
}

/// The file that a bare name means: the agent's PATH first, then where programs usually are (job-execution 4.2).
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    find_in(&std::env::var_os("PATH").unwrap_or_default(), name)
}

/// The same for another PATH.
fn find_in(path: &OsStr, name: &str) -> Option<PathBuf> {
    let usual = ["/usr/local/bin", "/usr/bin", "/bin", "/busybox"].map(PathBuf::from);
    std::env::split_paths(path)
        .filter(|dir| dir.is_absolute())
        .chain(usual)
        .map(|dir| dir.join(name))
        .find(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file())
}

/// Muster's own settings, what names the agent's socket, and the variables by which a runner's tokens are given to its
/// commands, are no business of a job's (invariant J6). gitlab-runner hands the tokens on.
fn is_for_jobs(key: &OsStr) -> bool {
    let key = key.as_encoded_bytes();
    let own: [&[u8]; 3] = [b"STEP_RUNNER_SOCKET", b"CI_SERVER_TOKEN", b"REGISTRATION_TOKEN"];
    !key.starts_with(b"MUSTER_") && !own.contains(&key)
}

/// The processes of one job. [`Processes::finish`] must be called before it is dropped.
pub struct Processes {
    host: Arc<Host>,
    /// Its number among the running jobs.
    number: u64,
    mark: String,
    /// Below this its processes start.
    cgroup: Option<Cgroup>,
    /// How often its processes were ended.
    ends: AtomicU64,
    /// Its share of the machine.
    slot: Option<Slot>,
    environment: Vec<(OsString, OsString)>,
    recorder: Recorder,
    /// Leaders that still run or were not waited for yet.
    leaders: Mutex<HashSet<i32>>,
    /// What those used that have ended.
    usage: Mutex<Usage>,
    /// The readers of the processes' output, which may live longer than the process that a step waits for.
    pumps: Mutex<JoinSet<()>>,
}

impl std::fmt::Debug for Processes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Processes").field("mark", &self.mark).field("cgroup", &self.cgroup).finish_non_exhaustive()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            slot.remove();
        }
        RUNNING.leave(self.number);
    }
}

impl Processes {
    /// Returns the agent's environment without what concerns only Muster, then what was added for the job.
    #[must_use]
    pub fn environment(&self) -> &[(OsString, OsString)] {
        &self.environment
    }

    /// Returns a group of processes beside these, which is ended apart from them. The trail of the job has both.
    ///
    /// # Errors
    /// What the recorder says.
    pub fn beside(&self, name: &str) -> io::Result<Self> {
        let (id, nonce) = self.mark.split_once('/').unwrap_or((&self.mark, ""));
        let mut beside = self.host.job(id, &format!("{nonce}-{name}"), Arc::clone(&self.recorder))?;
        beside.environment.clone_from(&self.environment);
        Ok(beside)
    }

    /// Adds to the lowest layer of environment that the job's processes have.
    pub fn add_environment(&mut self, more: impl IntoIterator<Item = (OsString, OsString)>) {
        self.environment.extend(more);
    }

    /// What is started from now on gets this share of the machine.
    ///
    /// # Errors
    /// Why the system does not permit it; the job can run without.
    pub fn share(&mut self, share: &Share) -> Result<(), String> {
        let name: String = self.mark.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let slot = Slot::enter(share, &name)?;
        if let Some(own) = &self.cgroup
            && let Some(unified) = slot.unified().filter(|unified| unified.is_usable())
        {
            // The slot's cgroup contains the processes as well, and they start where they have their share.
            let cgroup = Some(unified.path().to_owned());
            (self.recorder)(&Trail::Job { mark: self.mark.clone(), cgroup }).map_err(|error| error.to_string())?;
            own.remove();
            self.cgroup = Some(unified.clone());
        }
        self.slot = Some(slot);
        Ok(())
    }

    /// What it used so far: what its cgroup counted, or else the accounts of its processes that have ended.
    #[must_use]
    pub fn counted(&self) -> Counted {
        let counted = self.slot.as_ref().map(Slot::counted).unwrap_or_default();
        if counted.cpu.is_some() || counted.memory_bytes.is_some() {
            return counted;
        }
        let usage = *self.usage.lock();
        Counted { cpu: Some(usage.cpu), memory_bytes: Some(usage.memory_bytes), by_processes: true, ..counted }
    }
}

#[cfg(test)]
mod tests;
