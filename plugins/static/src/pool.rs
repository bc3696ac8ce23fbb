//! State of each machine. No I/O: returns tasks, and records their results.

use std::collections::BTreeMap;

use muster_fleeting::sdk::{InstanceId, InstanceState};
use serde::{Deserialize, Serialize};

use crate::config::Machine;

/// The machines.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    slots: BTreeMap<String, Slot>,
    /// Number of the next lease. Numbers are never reused: an instance is a lease, not a machine.
    next: u64,
}

/// A machine in the pool.
#[derive(Debug)]
struct Slot {
    machine: Machine,
    phase: MachineState,
    health: Health,
    /// Whether a check or cleanup is running.
    busy: bool,
    /// Whether the machine is no longer in the list. It is removed when its lease ends.
    leaving: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum MachineState {
    Free,
    Leased(u64),
    /// After a lease. `failed` means that the cleanup failed: the instance is deleted, but the machine is not
    /// available.
    Cleaning {
        lease: u64,
        failed: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Health {
    Unknown,
    Healthy,
    Unhealthy(String),
}

/// A lease in the form in which it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MachineLease {
    pub(crate) machine: String,
    pub(crate) lease: u64,
    /// True if the instance was deleted, and the machine must be cleaned up.
    pub(crate) cleaning: bool,
    /// The machine, in case it is no longer in the list.
    pub(crate) details: Machine,
}

/// Task for a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MachineTask {
    Check(Machine),
    Clean(Machine),
}

impl Slot {
    fn new(machine: Machine, phase: MachineState) -> Self {
        Self { machine, phase, health: Health::Unknown, busy: false, leaving: false }
    }

    fn is_available(&self) -> bool {
        self.phase == MachineState::Free && self.health == Health::Healthy && !self.leaving
    }

    fn id(&self, lease: u64) -> InstanceId {
        InstanceId::new(format!("{}/{lease}", self.machine.name))
    }
}

impl Pool {
    /// Restores the pool from its stored leases.
    pub(crate) fn new(machines: Vec<Machine>, next: u64, leases: Vec<MachineLease>) -> Self {
        let mut pool = Self { slots: BTreeMap::new(), next };
        pool.set_machines(machines);
        for stored in leases {
            pool.next = pool.next.max(stored.lease + 1);
            let phase = match stored.cleaning {
                true => MachineState::Cleaning { lease: stored.lease, failed: false },
                false => MachineState::Leased(stored.lease),
            };
            match pool.slots.get_mut(&stored.machine) {
                Some(slot) => slot.phase = phase,
                // Its job continues, and it is cleaned up, as if the list had changed while the plugin was running.
                None => {
                    let slot = Slot { leaving: true, ..Slot::new(stored.details, phase) };
                    pool.slots.insert(stored.machine, slot);
                }
            }
        }
        pool
    }

    /// Replaces the list of machines. Leased machines are kept until their lease ends.
    pub(crate) fn set_machines(&mut self, machines: Vec<Machine>) {
        for slot in self.slots.values_mut() {
            slot.leaving = true;
        }
        for machine in machines {
            let slot = self
                .slots
                .entry(machine.name.clone())
                .or_insert_with(|| Slot::new(machine.clone(), MachineState::Free));
            slot.leaving = false;
            if slot.machine != machine {
                slot.health = Health::Unknown;
                slot.machine = machine;
            }
        }
        self.slots.retain(|_, slot| !slot.leaving || slot.phase != MachineState::Free);
    }

    /// Returns true if a machine is available.
    pub(crate) fn has_available(&self) -> bool {
        self.slots.values().any(Slot::is_available)
    }

    /// Leases up to `n` available machines.
    pub(crate) fn grant(&mut self, n: u32) -> Vec<InstanceId> {
        let mut granted = Vec::new();
        for slot in self.slots.values_mut().filter(|slot| slot.is_available()).take(n as usize) {
            slot.phase = MachineState::Leased(self.next);
            granted.push(slot.id(self.next));
            self.next += 1;
        }
        granted
    }

    /// Ends a lease, whose machine must then be cleaned up. `None` if there is no such lease.
    pub(crate) fn release(&mut self, id: &InstanceId) -> Option<Machine> {
        let slot = self.slot(id)?;
        if let MachineState::Leased(lease) = slot.phase {
            slot.phase = MachineState::Cleaning { lease, failed: false };
        }
        Some(slot.machine.clone())
    }

    /// Reverts leases that could not be stored.
    pub(crate) fn revert_grant(&mut self, granted: &[InstanceId]) {
        for id in granted {
            if let Some(slot) = self.slot(id) {
                slot.phase = MachineState::Free;
            }
        }
    }

    fn slot(&mut self, id: &InstanceId) -> Option<&mut Slot> {
        let (name, lease) = id.as_str().rsplit_once('/')?;
        let number: u64 = lease.parse().ok()?;
        let slot = self.slots.get_mut(name)?;
        let is_it = match slot.phase {
            MachineState::Leased(lease) | MachineState::Cleaning { lease, .. } => lease == number,
            MachineState::Free => false,
        };
        is_it.then_some(slot)
    }

    /// Returns the machine of an active lease.
    pub(crate) fn leased(&mut self, id: &InstanceId) -> Option<Machine> {
        self.slot(id).filter(|slot| matches!(slot.phase, MachineState::Leased(_))).map(|slot| slot.machine.clone())
    }

    /// Returns the instances of the protocol.
    pub(crate) fn instances(&self) -> Vec<(InstanceId, InstanceState)> {
        let instance = |slot: &Slot| match slot.phase {
            MachineState::Leased(lease) => Some((slot.id(lease), InstanceState::Running)),
            MachineState::Cleaning { lease, failed: false } => Some((slot.id(lease), InstanceState::Deleting)),
            MachineState::Cleaning { failed: true, .. } | MachineState::Free => None,
        };
        self.slots.values().filter_map(instance).collect()
    }

    /// Returns the task of each unused machine. A machine is busy until [`Self::done`] is called.
    pub(crate) fn due(&mut self) -> Vec<MachineTask> {
        let names: Vec<String> = self.slots.keys().cloned().collect();
        names.iter().filter_map(|name| self.work(name)).collect()
    }

    /// Returns the task of one machine.
    pub(crate) fn work(&mut self, name: &str) -> Option<MachineTask> {
        let slot = self.slots.get_mut(name).filter(|slot| !slot.busy)?;
        let work = match slot.phase {
            MachineState::Free => MachineTask::Check(slot.machine.clone()),
            MachineState::Cleaning { .. } => MachineTask::Clean(slot.machine.clone()),
            MachineState::Leased(_) => return None,
        };
        slot.busy = true;
        Some(work)
    }

    /// Records the result of a check or cleanup. Returns true if the leases have changed.
    pub(crate) fn done(&mut self, work: &MachineTask, result: Result<(), String>) -> bool {
        let (MachineTask::Check(machine) | MachineTask::Clean(machine)) = work;
        let Some(slot) = self.slots.get_mut(&machine.name) else { return false };
        slot.busy = false;
        let health = match result {
            Ok(()) => Health::Healthy,
            Err(cause) => Health::Unhealthy(cause),
        };
        if slot.health != health {
            match (&slot.health, &health) {
                (_, Health::Unhealthy(cause)) => {
                    tracing::warn!(machine = machine.name, cause, "machine is unhealthy, quarantined");
                }
                (Health::Unhealthy(_), _) => tracing::info!(machine = machine.name, "machine is healthy again"),
                _ => {}
            }
        }
        let well = health == Health::Healthy;
        // The machine was replaced during the check, so the result does not apply.
        slot.health = if slot.machine == *machine { health } else { Health::Unknown };
        let changed = match (&mut slot.phase, work) {
            (phase @ MachineState::Cleaning { .. }, MachineTask::Clean(_)) if well => {
                *phase = MachineState::Free;
                true
            }
            (MachineState::Cleaning { failed, .. }, MachineTask::Clean(_)) => {
                *failed = true;
                false
            }
            _ => false,
        };
        self.slots.retain(|_, slot| !slot.leaving || slot.phase != MachineState::Free);
        changed
    }

    /// Returns the reason why no machine is available.
    pub(crate) fn no_machine_reason(&self) -> String {
        let count = |test: &dyn Fn(&Slot) -> bool| self.slots.values().filter(|slot| test(slot)).count();
        let leased = count(&|slot| matches!(slot.phase, MachineState::Leased(_)));
        let cleaning = count(&|slot| matches!(slot.phase, MachineState::Cleaning { .. }));
        let ill: Vec<String> = self
            .slots
            .values()
            .filter_map(|slot| match &slot.health {
                Health::Unhealthy(cause) if slot.phase == MachineState::Free => {
                    Some(format!("{}: {cause}", slot.machine.name))
                }
                _ => None,
            })
            .collect();
        let mut text =
            format!("no machine is available: {leased} leased, {cleaning} being cleaned up, {} quarantined", ill.len());
        if let Some(first) = ill.first() {
            text = format!("{text} ({first})");
        }
        text
    }

    /// Returns the data to store: the next number and the leases.
    pub(crate) fn leases(&self) -> (u64, Vec<MachineLease>) {
        let lease = |slot: &Slot| {
            let (lease, cleaning) = match slot.phase {
                MachineState::Leased(lease) => (lease, false),
                MachineState::Cleaning { lease, .. } => (lease, true),
                MachineState::Free => return None,
            };
            Some(MachineLease { machine: slot.machine.name.clone(), lease, cleaning, details: slot.machine.clone() })
        };
        (self.next, self.slots.values().filter_map(lease).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(name: &str) -> Machine {
        Machine { name: name.to_owned(), address: "10.0.0.1".to_owned(), ..Machine::default() }
    }

    fn pool(names: &[&str]) -> Pool {
        let mut pool = Pool::new(names.iter().map(|name| machine(name)).collect(), 1, Vec::new());
        settle(&mut pool, &[]);
        pool
    }

    /// Completes all tasks. Those of the named machines fail.
    fn settle(pool: &mut Pool, ill: &[&str]) {
        for work in pool.due() {
            let (MachineTask::Check(machine) | MachineTask::Clean(machine)) = &work;
            let result = if ill.contains(&machine.name.as_str()) { Err("no route".to_owned()) } else { Ok(()) };
            pool.done(&work, result);
        }
    }

    fn names(pool: &mut Pool, n: u32) -> Vec<String> {
        pool.grant(n).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_free_and_healthy_machines_are_granted() {
        let mut pool = Pool::new(vec![machine("a"), machine("b")], 1, Vec::new());
        assert!(pool.grant(2).is_empty(), "no machine has been checked yet");
        settle(&mut pool, &["b"]);
        assert_eq!(names(&mut pool, 2), ["a/1"]);
        assert_eq!(
            pool.no_machine_reason(),
            "no machine is available: 1 leased, 0 being cleaned up, 1 quarantined (b: no route)"
        );
        settle(&mut pool, &[]);
        assert_eq!(names(&mut pool, 2), ["b/2"], "the machine recovers");
    }

    #[test]
    fn machine_is_cleaned_up_before_next_lease() {
        let mut pool = pool(&["a"]);
        let id = pool.grant(1).remove(0);
        assert_eq!(pool.due(), [], "a leased machine is left alone");
        assert!(pool.release(&id).is_some());
        assert_eq!(pool.instances(), [(id.clone(), InstanceState::Deleting)]);
        assert!(pool.grant(1).is_empty());
        settle(&mut pool, &["a"]);
        assert_eq!(pool.instances(), [], "the instance is no more, the machine is kept away");
        assert!(pool.grant(1).is_empty());
        assert_eq!(pool.leases().1, [lease("a", 1, true)]);
        settle(&mut pool, &[]);
        assert_eq!(names(&mut pool, 1), ["a/2"], "another lease, another instance");
        assert!(pool.release(&id).is_none(), "the old one ends nothing");
    }

    #[test]
    fn restores_stored_leases() {
        let mut first = pool(&["a", "b", "c"]);
        let ids = first.grant(2);
        first.release(&ids[1]);
        let (next, leases) = first.leases();
        let mut second = Pool::new(vec![machine("a"), machine("b"), machine("c")], next, leases);
        assert_eq!(second.instances(), first.instances());
        settle(&mut second, &[]);
        assert_eq!(names(&mut second, 3), ["b/3", "c/4"]);
    }

    #[test]
    fn machines_follow_the_list() {
        let mut pool = pool(&["a", "b"]);
        let id = pool.grant(1).remove(0);
        pool.set_machines(vec![machine("c")]);
        assert_eq!(pool.instances(), [(id.clone(), InstanceState::Running)], "its job goes on");
        settle(&mut pool, &[]);
        assert_eq!(names(&mut pool, 5), ["c/2"]);
        pool.release(&id);
        settle(&mut pool, &[]);
        assert!(pool.grant(5).is_empty(), "a is gone with its lease");
    }

    #[test]
    fn leased_machine_removed_from_list_is_cleaned_up_after_restart() {
        let mut first = pool(&["a", "b"]);
        let id = first.grant(1).remove(0);
        first.set_machines(vec![machine("b")]);
        let (next, leases) = first.leases();
        let mut second = Pool::new(vec![machine("b")], next, leases);
        assert_eq!(second.instances(), [(id.clone(), InstanceState::Running)]);
        second.release(&id);
        assert_eq!(second.work("a"), Some(MachineTask::Clean(machine("a"))));
        assert!(second.done(&MachineTask::Clean(machine("a")), Ok(())));
        settle(&mut second, &[]);
        assert_eq!(names(&mut second, 5), ["b/2"], "the removed machine is not granted");
    }

    fn lease(name: &str, lease: u64, cleaning: bool) -> MachineLease {
        MachineLease { machine: name.to_owned(), lease, cleaning, details: machine(name) }
    }
}
