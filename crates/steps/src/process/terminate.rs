//! Terminates processes with TERM, and then KILL after the grace time.

use std::collections::{BTreeMap, HashSet};
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout_at};

use super::cgroup::{Cgroup, remove_agent_cgroup_of};
use super::procfs::{self, Process};
use super::sys::Watched;
use super::usage::Usage;
use super::{AWAITED, ProcessRecord, ProcessSet, Processes, RUNNING};

const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Like [`KILL_TIMEOUT`], for processes of a killed agent. The next agent listens only after this time, and the manager
/// kills an agent that does not listen within 20 s.
const LEFTOVERS_KILL_TIMEOUT: Duration = Duration::from_secs(5);
const REAP_INTERVAL: Duration = Duration::from_millis(500);
/// Delay before the processes are listed again if none could be watched.
const WATCH_RETRY_DELAY: Duration = Duration::from_millis(5);
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

impl Processes {
    /// Terminates every process of the job. Returns the number of processes that are still alive.
    pub async fn terminate(&self, grace: Duration) -> usize {
        self.terminate_set(&self.all, grace).await
    }

    pub(super) async fn terminate_set(&self, set: &ProcessSet, grace: Duration) -> usize {
        // The usage of the members must be read now, because most of them have no parent that collects it.
        for usage in self.members_of(set).into_iter().filter_map(Usage::of_process) {
            self.count(usage);
        }
        let remaining = terminate_all(|| self.members_of(set), grace, || self.cgroups_of(set)).await;
        self.terminations.fetch_add(1, Ordering::Relaxed);
        self.reap_orphans();
        remaining
    }

    /// Ends the job: terminates its processes, waits for their remaining output, and removes the cgroup unless it is in
    /// the slot's cgroup.
    pub async fn finish(&self, grace: Duration) {
        if self.may_have_processes() {
            let remaining = self.terminate(grace).await;
            if remaining > 0 {
                tracing::error!(tag = self.tag, remaining, "failed to terminate all processes of a job");
            }
        }
        // The job leaves the list before the following check. Otherwise, two jobs that end at the same time would leave
        // the orphans to each other.
        let start_times = RUNNING.remove(self.number);
        if self.manager.is_subreaper && !self.orphans().is_empty() {
            // These processes left their own job. A process that started before all running jobs belongs to no running
            // job.
            let is_owned = |process: &Process| start_times.iter().any(|start| *start <= process.start_ticks);
            terminate_all(|| self.adopted_descendants(|process| !is_owned(process)), grace, Vec::new).await;
            self.reap_orphans();
        }
        let mut readers = std::mem::take(&mut *self.readers.lock());
        let drained =
            tokio::time::timeout(OUTPUT_DRAIN_TIMEOUT, async { while readers.join_next().await.is_some() {} });
        if drained.await.is_err() {
            readers.shutdown().await;
        }
        if let Some(cgroup) = self.cgroup.as_ref().filter(|_| !self.is_in_slot_cgroup()) {
            cgroup.remove();
        }
    }

    /// Returns whether the job's cgroup is inside its slot's cgroup. Such a cgroup is removed later, because its
    /// counters are still needed.
    fn is_in_slot_cgroup(&self) -> bool {
        let job_cgroup_in_slot = self.slot.as_ref().and_then(|slot| slot.unified());
        job_cgroup_in_slot.zip(self.cgroup.as_ref()).is_some_and(|(in_slot, job)| in_slot.path() == job.path())
    }

    /// Returns whether the job may have processes. Fast for most jobs, which have none at their end.
    fn may_have_processes(&self) -> bool {
        // With a subreaper, every remaining process descends from a child of the agent.
        let cgroup_has_members = || self.cgroup.as_ref().is_some_and(|cgroup| !cgroup.members().is_empty());
        !self.manager.is_subreaper
            || !self.all.leaders.lock().is_empty()
            || !self.orphans().is_empty()
            || cgroup_has_members()
    }

    /// Returns all processes of a set, found by cgroup, process group, tag or descent.
    ///
    /// The cgroup alone is not enough, because a process that may write to cgroups can leave its own.
    pub(super) fn members_of(&self, set: &ProcessSet) -> Vec<i32> {
        let mut members: Vec<i32> = self.cgroups_of(set).iter().flat_map(Cgroup::members).collect();
        let leaders = set.leaders.lock().clone();
        if self.manager.is_subreaper && leaders.is_empty() && self.orphans().is_empty() {
            return members;
        }
        let find_job = if self.manager.is_subreaper { procfs::job_descendants } else { procfs::job_processes };
        members.extend(find_job(&[&set.tag], &leaders));
        members.sort_unstable();
        members.dedup();
        members
    }

    /// Returns the children of the agent that no task waits for.
    fn orphans(&self) -> Vec<i32> {
        let awaited = AWAITED.lock();
        procfs::adopted_children().into_iter().filter(|pid| !awaited.contains(pid)).collect()
    }

    /// Returns the adopted processes that belong to no running job and satisfy `is_wanted`, with their descendants.
    ///
    /// Excludes the agent's own process group, whose processes were not started for jobs.
    pub(super) fn adopted_descendants(&self, is_wanted: impl Fn(&Process) -> bool) -> Vec<i32> {
        let own_group = own_group();
        let adopted = self.orphans().into_iter().filter_map(Process::read);
        let adopted = adopted.filter(|process| !process.is_zombie && process.group != own_group && is_wanted(process));
        // A process with the tag of a running job belongs to that job. Other tags are forged.
        let adopted = adopted.filter(|process| !process.tag().is_some_and(|tag| RUNNING.contains(&tag)));
        let roots: HashSet<i32> = adopted.map(|process| process.pid).collect();
        if roots.is_empty() { Vec::new() } else { procfs::with_all_descendants(roots) }
    }

    /// Collects the exit status of the job's orphans as they exit, and adds their usage to the usage of the job.
    ///
    /// Otherwise, a long script could fill the process table.
    pub(super) async fn reap_exited_orphans(&self) -> Infallible {
        // Watching starts late, because each exit wakes all watching jobs. The orphans of a shorter command are reaped
        // after the command.
        sleep(REAP_INTERVAL).await;
        let mut exits = match signal(SignalKind::child()) {
            Ok(exits) if self.manager.is_subreaper => exits,
            Ok(_) => return std::future::pending().await,
            Err(error) => {
                tracing::warn!(%error, "failed to watch for the end of orphaned processes, reaping them after the command");
                return std::future::pending().await;
            }
        };
        loop {
            self.reap_own_orphans();
            exits.recv().await;
            // Handles many exits at once.
            sleep(REAP_INTERVAL).await;
        }
    }

    /// Collects the exit status of orphans in the process groups of this job. Other jobs count the usage of their own
    /// orphans.
    fn reap_own_orphans(&self) {
        let leaders = self.all.leaders.lock().clone();
        let is_own = |process: &Process| process.is_zombie && leaders.contains(&process.group);
        // Children in the agent's own process group are left to other code, because no leader of the job is in it.
        for process in self.orphans().into_iter().filter_map(Process::read).filter(is_own) {
            let usage = Usage::of_process(process.pid);
            let Some(pid) = Pid::from_raw(process.pid) else { continue };
            if waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG).is_ok()
                && let Some(usage) = usage
            {
                self.count(usage);
            }
        }
    }

    fn reap_orphans(&self) {
        if !self.manager.is_subreaper {
            return;
        }
        // Without the lock, a process that is being started could look like an orphan. Other code waits for children
        // in the agent's own process group.
        let own_group = own_group();
        let awaited = AWAITED.lock();
        let orphans = procfs::adopted_children().into_iter().filter(|pid| !awaited.contains(pid));
        let dead = orphans.filter_map(Process::read).filter(|process| process.is_zombie && process.group != own_group);
        for pid in dead.filter_map(|process| Pid::from_raw(process.pid)) {
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
}

fn own_group() -> i32 {
    rustix::process::getpgrp().as_raw_nonzero().get()
}

/// Terminates the processes that a killed agent recorded in the spool. Ignores a process ID that was reused.
///
/// The processes of all jobs are terminated at the same time, so the duration does not depend on the number of jobs.
/// Gives up 5 s after `grace`. Returns the number of remaining processes.
pub async fn terminate_leftovers<'a>(records: impl IntoIterator<Item = &'a ProcessRecord>, grace: Duration) -> usize {
    // Separate sets of processes, such as services, have their own tags.
    let (mut cgroups, mut tags, mut leaders) = (Vec::new(), Vec::new(), HashSet::new());
    for record in records {
        match record {
            ProcessRecord::Job { tag, cgroup } => {
                tags.push(tag.as_str());
                cgroups.extend(cgroup.as_deref().and_then(Cgroup::existing));
            }
            ProcessRecord::Leader { pid, start_ticks } => {
                let leader = Process::read(*pid).filter(|process| process.start_ticks == *start_ticks);
                leaders.extend(leader.map(|process| process.pid));
            }
        }
    }
    if tags.is_empty() {
        return 0;
    }
    let members = || {
        let in_cgroups = cgroups.iter().flat_map(Cgroup::members);
        in_cgroups.chain(procfs::job_processes(&tags, &leaders)).collect()
    };
    let remaining = terminate_within(members, grace, LEFTOVERS_KILL_TIMEOUT, || cgroups.clone()).await;
    for cgroup in &cgroups {
        cgroup.remove();
        remove_agent_cgroup_of(cgroup.path());
    }
    remaining
}

/// Sends TERM, and KILL after `grace`, until `members` returns no process. Gives up [`KILL_TIMEOUT`] after `grace`.
///
/// `cgroups` contain only these processes. Returns the number of remaining processes.
pub(super) async fn terminate_all(
    members: impl Fn() -> Vec<i32>,
    grace: Duration,
    cgroups: impl Fn() -> Vec<Cgroup>,
) -> usize {
    terminate_within(members, grace, KILL_TIMEOUT, cgroups).await
}

async fn terminate_within(
    members: impl Fn() -> Vec<i32>,
    grace: Duration,
    kill_timeout: Duration,
    cgroups: impl Fn() -> Vec<Cgroup>,
) -> usize {
    // By process ID, so that a parent usually gets the signal before its children. Otherwise, a shell whose child ends
    // first prints `Terminated`.
    let mut watched: BTreeMap<i32, Watched> = BTreeMap::new();
    let phases = [(Signal::TERM, Instant::now() + grace), (Signal::KILL, Instant::now() + grace + kill_timeout)];
    for (signal, deadline) in phases {
        let mut signaled = HashSet::new();
        loop {
            let pids = members();
            // `members` does not find a process that is about to end. Its files may still be open, so its end is
            // awaited.
            watched.retain(|pid, process| {
                let has_ended = process.has_ended();
                if has_ended {
                    // The ID may be reused.
                    signaled.remove(pid);
                }
                !has_ended
            });
            if pids.is_empty() && watched.is_empty() {
                return 0;
            }
            if signal == Signal::KILL {
                for cgroup in cgroups() {
                    let _ = cgroup.kill();
                }
            }
            for pid in pids {
                if !watched.contains_key(&pid)
                    && let Ok(process) = Watched::open(pid)
                {
                    watched.insert(pid, process);
                }
            }
            for (pid, process) in &watched {
                if signaled.insert(*pid) {
                    process.signal(signal);
                }
            }
            // All must end, so waiting for one process is enough. The next call of `members` finds new processes.
            let Some(process) = watched.values().next() else {
                // All have ended, or this process has no descriptors left to watch them.
                sleep(WATCH_RETRY_DELAY).await;
                if Instant::now() >= deadline {
                    break;
                }
                continue;
            };
            if timeout_at(deadline, process.ended()).await.is_err() {
                break;
            }
        }
    }
    watched.retain(|_, process| !process.has_ended());
    members().into_iter().chain(watched.into_keys()).collect::<HashSet<i32>>().len()
}
