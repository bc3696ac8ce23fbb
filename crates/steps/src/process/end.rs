//! Ending processes: TERM to all of them, and after the grace time KILL, until none is left.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use tokio::time::{Instant, timeout_at};

use super::cgroup::Cgroup;
use super::sys::Watched;
use super::table::{self, Process};
use super::usage::Usage;
use super::{AWAITED, Processes, RUNNING, Trail};

/// How long killed processes may take to go. Only a process in an uninterruptible call of the kernel takes longer.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// How long the readers of output may take once every writer is gone.
const PUMP_LIMIT: Duration = Duration::from_secs(2);

impl Processes {
    /// Ends every process of the job that still runs. Returns how many would not go, which is 0 but for a process
    /// stuck in the kernel.
    pub async fn end(&self, grace: Duration) -> usize {
        // Their accounts go with them: nobody waits for most of these.
        for usage in self.members().into_iter().filter_map(Usage::so_far) {
            self.usage.lock().add(usage);
        }
        let left = end_all(|| self.members(), grace, self.cgroup.as_ref()).await;
        self.ends.fetch_add(1, Ordering::Relaxed);
        self.reap_orphans();
        left
    }

    /// The end of the job: ends its processes, waits for their last output, and removes the cgroup.
    pub async fn finish(&self, grace: Duration) {
        if self.may_have_members() {
            let left = self.end(grace).await;
            if left > 0 {
                tracing::error!(mark = self.mark, left, "processes of a job could not be ended");
            }
        }
        // From here on the job protects no process: two jobs that end at once do not wait for each other's end.
        let others = RUNNING.leave(self.number);
        if self.host.adopts && !self.orphans().is_empty() {
            // Whoever hid from its own job is found here. One that started before every job that still runs is of none of them.
            let is_owned = |process: &Process| others.iter().any(|since| *since <= process.start_ticks);
            end_all(|| self.strangers(|process| !is_owned(process)), grace, None).await;
            self.reap_orphans();
        }
        let mut pumps = std::mem::take(&mut *self.pumps.lock());
        let drained = tokio::time::timeout(PUMP_LIMIT, async { while pumps.join_next().await.is_some() {} });
        if drained.await.is_err() {
            pumps.shutdown().await;
        }
        if let Some(cgroup) = self.cgroup.as_ref().filter(|_| !self.is_counted_in_cgroup()) {
            cgroup.remove();
        }
    }

    /// Whether the job's cgroup is that of its slot, which is read once more and removed with this.
    fn is_counted_in_cgroup(&self) -> bool {
        let slots = self.slot.as_ref().and_then(|slot| slot.unified());
        slots.zip(self.cgroup.as_ref()).is_some_and(|(slots, own)| slots.path() == own.path())
    }

    /// Whether anything of the job may be left: one look at a short list, where most jobs end.
    fn may_have_members(&self) -> bool {
        // With the agent as sub-reaper, whatever is left of a job hangs below one of the agent's children.
        let is_contained = || self.cgroup.as_ref().is_some_and(|cgroup| !cgroup.members().is_empty());
        !self.host.adopts || !self.leaders.lock().is_empty() || !self.orphans().is_empty() || is_contained()
    }

    /// Every process of the job: what is in its cgroup, and what belongs to it by descent. A process that may write to the
    /// cgroup file system can leave its cgroup.
    pub(super) fn members(&self) -> Vec<i32> {
        let mut members = self.cgroup.as_ref().map(Cgroup::members).unwrap_or_default();
        if self.host.adopts && self.leaders.lock().is_empty() && self.orphans().is_empty() {
            return members;
        }
        let leaders = self.leaders.lock().clone();
        let of_job = if self.host.adopts { table::of_job_below_us } else { table::of_job };
        members.extend(of_job(&self.mark, &leaders));
        members.sort_unstable();
        members.dedup();
        members
    }

    /// The agent's children that nobody waits for.
    fn orphans(&self) -> Vec<i32> {
        let awaited = AWAITED.lock();
        table::adopted_children().into_iter().filter(|pid| !awaited.contains(pid)).collect()
    }

    /// The adopted processes that belong to no running job and are `wanted`, with what they started. A child that the agent's
    /// own program started is in its group.
    pub(super) fn strangers(&self, wanted: impl Fn(&Process) -> bool) -> Vec<i32> {
        let own_group = own_group();
        let adopted = self.orphans().into_iter().filter_map(Process::read);
        let adopted = adopted.filter(|process| !process.zombie && process.group != own_group && wanted(process));
        // One with the mark of a running job belongs to that job, which finds it. Any other mark is made up.
        let adopted = adopted.filter(|process| !process.mark().is_some_and(|mark| RUNNING.has(&mark)));
        let roots: HashSet<i32> = adopted.map(|process| process.pid).collect();
        if roots.is_empty() { Vec::new() } else { table::below(roots) }
    }

    /// Takes the exit status of adopted processes that ended, so that they do not stay as zombies.
    fn reap_orphans(&self) {
        if !self.host.adopts {
            return;
        }
        // The lock keeps a process that is being started from being taken for an orphan. Children in the agent's own
        // group were not started for a job; someone else waits for them.
        let own_group = own_group();
        let awaited = AWAITED.lock();
        let orphans = table::adopted_children().into_iter().filter(|pid| !awaited.contains(pid));
        let dead = orphans.filter_map(Process::read).filter(|process| process.zombie && process.group != own_group);
        for pid in dead.filter_map(|process| Pid::from_raw(process.pid)) {
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
}

fn own_group() -> i32 {
    rustix::process::getpgrp().as_raw_nonzero().get()
}

/// Ends what a killed agent left of a job, by the trail in its spool. A process id that was given to another process
/// since then is left alone.
pub async fn end_leftovers(trail: &[Trail], grace: Duration) {
    for item in trail {
        if let Trail::Job { cgroup: Some(path), .. } = item
            && let Some(cgroup) = Cgroup::existing(path)
        {
            end_all(|| cgroup.members(), grace, Some(&cgroup)).await;
            cgroup.remove();
            if let Some(parent) = path.parent() {
                // The dead agent's own cgroup; it stays while other jobs are in it.
                let _ = std::fs::remove_dir(parent);
            }
        }
    }
    let leaders: HashSet<i32> = trail
        .iter()
        .filter_map(|item| match item {
            Trail::Leader { pid, start_ticks } => {
                Process::read(*pid).filter(|process| process.start_ticks == *start_ticks).map(|process| process.pid)
            }
            Trail::Job { .. } => None,
        })
        .collect();
    let Some(mark) = trail.iter().find_map(|item| match item {
        Trail::Job { mark, .. } => Some(mark),
        Trail::Leader { .. } => None,
    }) else {
        return;
    };
    end_all(|| table::of_job(mark, &leaders), grace, None).await;
}

/// Signals and waits until `members` finds nothing. Returns how many are left.
pub(super) async fn end_all(members: impl Fn() -> Vec<i32>, grace: Duration, cgroup: Option<&Cgroup>) -> usize {
    let mut watched: HashMap<i32, Watched> = HashMap::new();
    let phases = [(Signal::TERM, Instant::now() + grace), (Signal::KILL, Instant::now() + grace + KILL_LIMIT)];
    for (signal, deadline) in phases {
        let mut signalled = HashSet::new();
        loop {
            let pids = members();
            if pids.is_empty() {
                return 0;
            }
            if signal == Signal::KILL
                && let Some(cgroup) = cgroup
            {
                let _ = cgroup.kill();
            }
            watched.retain(|pid, _| pids.contains(pid));
            for pid in pids {
                if !watched.contains_key(&pid)
                    && let Ok(process) = Watched::open(pid)
                {
                    watched.insert(pid, process);
                }
                if signalled.insert(pid)
                    && let Some(process) = watched.get(&pid)
                {
                    process.signal(signal);
                }
            }
            // One process at a time: all have to go, and each look at the members finds the new ones.
            let Some(process) = watched.values().next() else {
                // Members that cannot be watched are gone already: look again, but let others run first.
                tokio::task::yield_now().await;
                if Instant::now() >= deadline {
                    break;
                }
                continue;
            };
            if timeout_at(deadline, process.ended()).await.is_err() {
                break;
            }
            watched.retain(|_, process| !process.has_ended());
        }
    }
    members().len()
}
