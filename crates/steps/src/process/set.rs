//! Sets of processes: all processes of a job, and inside it the processes of each step that can be stopped alone.
//!
//! Stopping a step terminates the processes of its set, and not those of the steps that run at the same time. A set is found in the same
//! ways as the job: by process groups, by the tag in the environment, and by cgroups.

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
    /// Set of the processes that are started now. Not set for processes that belong only to the set of their job.
    static CURRENT: Arc<ProcessSet>;
}

/// Processes that a job or one of its steps has started.
#[derive(Debug)]
pub(super) struct ProcessSet {
    /// Number of the job in the list of running jobs.
    job: u64,
    /// Number of the set in its job. 0 is the set of all processes.
    number: u64,
    /// Tag in the environment of the processes.
    ///
    /// It is the tag of the job, or inside another set the tag of that set, a slash and the number.
    pub(super) tag: String,
    /// Set that includes this one. `None` means that the set has all processes of its job.
    outer: Option<Arc<ProcessSet>>,
    /// Leaders of process groups that still run or whose exit status was not collected yet.
    pub(super) leaders: Mutex<HashSet<i32>>,
    /// Cgroups in which processes were started. Empty for the set of all processes, which are in the job's cgroup.
    cgroups: Mutex<Vec<Cgroup>>,
}

impl ProcessSet {
    /// Returns the set of all processes of a job.
    pub(super) fn of_job(job: u64, tag: String) -> Arc<Self> {
        Arc::new(Self { job, number: 0, tag, outer: None, leaders: Mutex::default(), cgroups: Mutex::default() })
    }

    fn inside(outer: Arc<Self>, number: u64) -> Arc<Self> {
        let tag = format!("{}/{number}", outer.tag);
        let (leaders, cgroups) = (Mutex::default(), Mutex::default());
        Arc::new(Self { job: outer.job, number, tag, outer: Some(outer), leaders, cgroups })
    }

    /// Returns this set and the sets that include it.
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

    /// Opens the cgroup inside of `parent` in which the next process of the set starts. `terminations` is the number of times that processes
    /// of the job were terminated.
    ///
    /// The cgroup must change after each termination: some kernels, such as 6.18, kill every process that is later cloned into a cgroup
    /// whose processes were killed.
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
    /// Runs the work of a step that can be stopped alone. If `stop` is stopped, only the processes that the work has started are terminated,
    /// with `grace` between TERM and KILL.
    pub async fn in_own_set<F: Future>(&self, stop: &StopToken, grace: Duration, work: F) -> F::Output {
        let number = self.sets.fetch_add(1, Ordering::Relaxed) + 1;
        let set = ProcessSet::inside(self.current_set(), number);
        let output = CURRENT.scope(Arc::clone(&set), work).await;
        if stop.cause().is_some() {
            // Processes that have ended before the stop may have left others behind.
            self.terminate_set(&set, grace).await;
        }
        // The kernel refuses while a process is in the cgroup. The cgroup is then removed with the job's cgroup.
        set.cgroups.lock().iter().for_each(Cgroup::remove);
        output
    }

    /// Returns the set of a process that is started now.
    pub(super) fn current_set(&self) -> Arc<ProcessSet> {
        // Work can also start processes of another job, such as a command of its debugger.
        let current = CURRENT.try_with(Arc::clone).ok().filter(|set| set.job == self.all.job);
        current.unwrap_or_else(|| Arc::clone(&self.all))
    }

    /// Returns the cgroups that contain the processes of a set.
    pub(super) fn cgroups_of(&self, set: &ProcessSet) -> Vec<Cgroup> {
        match &set.outer {
            None => self.cgroup.iter().cloned().collect(),
            Some(_) => set.cgroups.lock().clone(),
        }
    }
}
