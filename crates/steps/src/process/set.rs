//! Sets of processes: all processes of a job, and inside it the processes of each step that can be stopped alone.
//!
//! A set is found in the same ways as a job: by process groups, by the tag in the environment, and by cgroups.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::iter::successors;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;

use super::Processes;
use super::cgroup::Cgroup;
use crate::stop::StopToken;

tokio::task_local! {
    /// Set to which newly started processes belong. Has no value outside of [`Processes::in_own_set`].
    static CURRENT: Arc<ProcessSet>;
}

#[derive(Debug)]
pub(super) struct ProcessSet {
    job: u64,
    /// Number of the set in its job. 0 is the set of all processes.
    number: u64,
    /// Tag in the environment of the processes: the job's tag, or for an inner set, the outer tag, a slash and the
    /// number.
    pub(super) tag: String,
    /// Set around this one. `None` means that this is the set of the job.
    outer: Option<Arc<ProcessSet>>,
    /// Leaders of process groups whose exit status was not collected yet.
    pub(super) leaders: Mutex<HashSet<i32>>,
    /// Cgroups in which processes were started. Empty for the set of the job, which uses the job's cgroup.
    cgroups: Mutex<Vec<Cgroup>>,
}

impl ProcessSet {
    pub(super) fn of_job(job: u64, tag: String) -> Arc<Self> {
        Arc::new(Self { job, number: 0, tag, outer: None, leaders: Mutex::default(), cgroups: Mutex::default() })
    }

    fn inside(outer: Arc<Self>, number: u64) -> Arc<Self> {
        let tag = format!("{}/{number}", outer.tag);
        let (leaders, cgroups) = (Mutex::default(), Mutex::default());
        Arc::new(Self { job: outer.job, number, tag, outer: Some(outer), leaders, cgroups })
    }

    fn with_outer(&self) -> impl Iterator<Item = &Self> {
        successors(Some(self), |set| set.outer.as_deref())
    }

    pub(super) fn add_leader(&self, pid: i32) {
        for set in self.with_outer() {
            set.leaders.lock().insert(pid);
        }
    }

    pub(super) fn remove_leader(&self, pid: i32) {
        for set in self.with_outer() {
            set.leaders.lock().remove(&pid);
        }
    }

    /// Opens the cgroup inside of `parent` in which the next process of the set starts. `terminations` counts the
    /// terminations of the job.
    ///
    /// Each termination requires a new cgroup: some kernels, such as 6.18, kill every process that is later cloned into
    /// a killed cgroup.
    pub(super) fn open_cgroup(&self, parent: &Cgroup, terminations: u64) -> io::Result<File> {
        let (cgroup, directory) = parent.open_child(&format!("{}-{terminations}", self.number))?;
        for set in self.with_outer().filter(|set| set.outer.is_some()) {
            let mut cgroups = set.cgroups.lock();
            if !cgroups.iter().any(|known| known.path() == cgroup.path()) {
                cgroups.push(cgroup.clone());
            }
        }
        Ok(directory)
    }
}

impl Processes {
    /// Runs the work of a step that can be stopped alone. When `stop` is stopped, terminates only the processes that
    /// the work has started, with `grace` between TERM and KILL.
    pub async fn in_own_set<F: Future>(&self, stop: &StopToken, grace: Duration, work: F) -> F::Output {
        let number = self.sets.fetch_add(1, Ordering::Relaxed) + 1;
        let set = ProcessSet::inside(self.current_set(), number);
        let output = CURRENT.scope(Arc::clone(&set), work).await;
        if stop.cause().is_some() {
            // Processes that ended before the stop may have left children.
            self.terminate_set(&set, grace).await;
        }
        // Fails while the cgroup contains processes. Such a cgroup is removed with the job's cgroup.
        set.cgroups.lock().iter().for_each(Cgroup::remove);
        output
    }

    pub(super) fn current_set(&self) -> Arc<ProcessSet> {
        // The current set may be that of another job, whose work starts a process of this job, such as a debugger's
        // command.
        let current = CURRENT.try_with(Arc::clone).ok().filter(|set| set.job == self.all.job);
        current.unwrap_or_else(|| Arc::clone(&self.all))
    }

    pub(super) fn cgroups_of(&self, set: &ProcessSet) -> Vec<Cgroup> {
        match &set.outer {
            None => self.cgroup.iter().cloned().collect(),
            Some(_) => set.cgroups.lock().clone(),
        }
    }
}
