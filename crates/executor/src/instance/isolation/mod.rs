//! A virtual machine for each job, on its instance (`vm_isolation`, fleeting.md 8.4): the nesting daemon there makes it, the
//! job's agent runs in it, and it goes with the job.
//!
//! ```text
//! slot --session to the instance--> daemon: Create --> session through that one to the machine --> agent --> lease
//! over: Delete, then the slot is free        next start of the manager: the lease's record names the machine, which is used on
//! ```
//!
//! A machine of nobody goes when its instance is made ready, which each start of the manager does; or, at the latest, when its
//! slot is used again: the daemon has one machine for each slot.

mod nested;
mod numbers;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_config::settings::IsolationSettings;
use muster_fleeting::nesting::{Nesting, NestingError, NestingLimits};
use muster_remote::{KnownHosts, Session};
use muster_taskscaler::driver::Family;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::lease::HeldLease;
use crate::deploy::Dial;
use crate::{LeaseRecord, VmImage};
pub(super) use nested::NestedMachine;
use numbers::{Numbers, Operation};

/// A job has no machine. The text is for the job's log.
#[derive(Debug)]
pub(super) struct NotMade(pub(super) String);

/// What all jobs of an entry share; of no use where they run on the instances themselves.
#[derive(Default)]
pub(super) struct Isolation {
    /// Instances with the machines that jobs have.
    owned: Mutex<BTreeSet<(String, String)>>,
    /// Those of an earlier start are known.
    announced: watch::Sender<bool>,
    /// Machines that are being made or removed.
    busy: watch::Sender<usize>,
    /// The machines' host keys. Not kept: the way leads through the instance, which is who it was by its own key.
    hosts: KnownHosts,
    numbers: Numbers,
}

impl Isolation {
    /// The machine of this lease of an earlier start is used on.
    pub(super) fn expect(&self, record: &LeaseRecord) {
        if let Some(machine) = record.vm() {
            self.own(&record.environment, &machine.id);
        }
    }

    /// No more are expected.
    pub(super) fn expected_all(&self) {
        self.announced.send_replace(true);
    }

    /// Its numbers.
    pub(super) fn families(&self) -> Vec<Family> {
        self.numbers.families()
    }

    fn own(&self, instance: &str, machine: &str) {
        self.owned.lock().insert((instance.to_owned(), machine.to_owned()));
    }

    fn disown(&self, instance: &str, machine: &str) {
        self.owned.lock().remove(&(instance.to_owned(), machine.to_owned()));
    }

    /// Makes an instance ready: its daemon answers, and has no machines but those of jobs that go on.
    ///
    /// # Errors
    /// Why it is not, for people.
    pub(super) async fn prepare(
        &self,
        settings: &IsolationSettings,
        way: &dyn Dial,
        instance: &str,
    ) -> Result<(), String> {
        let mut announced = self.announced.subscribe();
        // The sender lives in `self`.
        let _ = announced.wait_for(|all| *all).await;
        let host: Arc<dyn Session> = Arc::from(way.dial().await?.session);
        let cleared = self.clear(settings, &host, instance).await;
        host.close().await;
        cleared.map_err(|error| format!("vm_isolation: {error}"))
    }

    async fn clear(
        &self,
        settings: &IsolationSettings,
        host: &Arc<dyn Session>,
        instance: &str,
    ) -> Result<(), NestingError> {
        let owned = |machine: &str| self.owned.lock().contains(&(instance.to_owned(), machine.to_owned()));
        for (machine, removed) in daemon(settings, host).await?.clear(owned).await? {
            let machine = machine.id;
            match removed {
                Ok(()) => {
                    self.numbers.count(Operation::Orphan);
                    tracing::info!(instance, machine, "a virtual machine of nobody was removed");
                }
                // It stays until its slot is used: that is no reason to have no jobs.
                Err(error) => tracing::warn!(instance, machine, %error, "a virtual machine of nobody is left"),
            }
        }
        Ok(())
    }

    /// A machine for a job on the instance of its slot, with an agent that answers.
    ///
    /// Whoever waits for it may go: a machine that is made all the same is removed, and then the slot is free.
    ///
    /// # Errors
    /// [`NotMade`]; the slot is free again, or will be.
    pub(super) async fn machine(
        self: &Arc<Self>,
        held: HeldLease,
        settings: IsolationSettings,
        image: VmImage,
    ) -> Result<HeldLease, NotMade> {
        let (mut reply, answer) = oneshot::channel();
        let (busy, isolation) = (Busy::new(&self.busy), Arc::clone(self));
        tokio::spawn(async move {
            let _busy = busy;
            let began = Instant::now();
            let made = tokio::select! {
                nested = NestedMachine::make(&isolation, &held, settings, &image) => nested,
                why = held.lost() => Err(NotMade(why)),
            };
            let made = match made {
                Ok(nested) => {
                    let held = held.with(nested);
                    // A machine that is half made cannot be removed; one that is made can.
                    tokio::select! {
                        reached = reach(&held) => reached.map(|()| held),
                        why = held.lost() => Err(NotMade(why)),
                        () = reply.closed() => return,
                    }
                }
                Err(error) => Err(error),
            };
            match &made {
                Ok(_) => isolation.numbers.created(began.elapsed()),
                Err(_) => isolation.numbers.count(Operation::CreateFailed),
            }
            // Where nobody waits any more, the machine goes with what holds it.
            let _ = reply.send(made);
        });
        answer.await.unwrap_or_else(|_| Err(NotMade("the manager ends".to_owned())))
    }

    /// Waits until no machine is being made or removed, for `limit` at most: what is left then goes at the next start.
    pub(super) async fn idle(&self, limit: Duration) {
        let mut busy = self.busy.subscribe();
        // The sender lives in `self`.
        if tokio::time::timeout(limit, busy.wait_for(|busy| *busy == 0)).await.is_err() {
            let left = *self.busy.borrow();
            tracing::warn!(left, "virtual machines on instances are left: the next start removes them");
        }
    }
}

/// The daemon on the instance of a session.
async fn daemon(settings: &IsolationSettings, host: &Arc<dyn Session>) -> Result<Nesting, NestingError> {
    let IsolationSettings { nesting_host, nesting_config, .. } = settings;
    let none = serde_json::json!({});
    let config = if nesting_config.is_null() { &none } else { nesting_config };
    Nesting::connect(Arc::clone(host), nesting_host, config, NestingLimits::default()).await
}

/// The agent of a machine that has just been made answers.
async fn reach(held: &HeldLease) -> Result<(), NotMade> {
    let reached = held.place().connect(held).await;
    let Some(slot) = held.slot() else { return Ok(()) };
    match reached {
        Ok(_) => {
            slot.health(Ok(()));
            Ok(())
        }
        Err(error) => {
            let error = error.to_string();
            slot.health(Err(error.clone()));
            Err(NotMade(error))
        }
    }
}

/// A machine that is being made or removed.
struct Busy(watch::Sender<usize>);

impl Busy {
    fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}
