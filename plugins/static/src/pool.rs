//! Which machine is in which state. Pure: what is to be done is returned, what was done is told.

use std::collections::BTreeMap;

use muster_fleeting::sdk::{InstanceId, InstanceState};
use serde::{Deserialize, Serialize};

use crate::config::Machine;

/// The machines.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    slots: BTreeMap<String, Slot>,
    /// The next lease's number. Numbers never come back: an instance is a lease, not a machine.
    next: u64,
}

/// A machine in the pool.
#[derive(Debug)]
struct Slot {
    machine: Machine,
    phase: Phase,
    health: Health,
    /// It is being checked or cleaned.
    busy: bool,
    /// It is not in the list any more; it goes when its lease ends.
    leaving: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Free,
    Leased(u64),
    /// After a lease. `failed`: the clean-up did not succeed so far, so that the instance is no more, and the machine stays.
    Cleaning {
        lease: u64,
        failed: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Health {
    Unknown,
    Well,
    Ill(String),
}

/// A lease as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) machine: String,
    pub(crate) lease: u64,
    /// The instance was given back; the machine is to be cleaned.
    pub(crate) cleaning: bool,
    /// The machine itself, for when it is in no list any more. Files of before have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) details: Option<Machine>,
}

/// What a machine needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Work {
    Check(Machine),
    Clean(Machine),
}

impl Slot {
    fn new(machine: Machine, phase: Phase) -> Self {
        Self { machine, phase, health: Health::Unknown, busy: false, leaving: false }
    }

    fn is_to_grant(&self) -> bool {
        self.phase == Phase::Free && self.health == Health::Well && !self.leaving
    }

    fn id(&self, lease: u64) -> InstanceId {
        InstanceId::new(format!("{}/{lease}", self.machine.name))
    }
}

impl Pool {
    /// The pool as it was left: machines of leases that are not in the list any more are told.
    pub(crate) fn new(machines: Vec<Machine>, next: u64, leases: Vec<Lease>) -> (Self, Vec<Lease>) {
        let mut pool = Self { slots: BTreeMap::new(), next };
        pool.set_machines(machines);
        let mut unknown = Vec::new();
        for stored in leases {
            pool.next = pool.next.max(stored.lease + 1);
            let phase = match stored.cleaning {
                true => Phase::Cleaning { lease: stored.lease, failed: false },
                false => Phase::Leased(stored.lease),
            };
            match (pool.slots.get_mut(&stored.machine), &stored.details) {
                (Some(slot), _) => slot.phase = phase,
                // Its job goes on, and it is cleaned, as if the list had changed while the plugin ran.
                (None, Some(machine)) => {
                    let slot = Slot { leaving: true, ..Slot::new(machine.clone(), phase) };
                    pool.slots.insert(stored.machine, slot);
                }
                (None, None) => unknown.push(stored),
            }
        }
        (pool, unknown)
    }

    /// The list has changed. What is leased stays until it is given back.
    pub(crate) fn set_machines(&mut self, machines: Vec<Machine>) {
        for slot in self.slots.values_mut() {
            slot.leaving = true;
        }
        for machine in machines {
            let slot =
                self.slots.entry(machine.name.clone()).or_insert_with(|| Slot::new(machine.clone(), Phase::Free));
            slot.leaving = false;
            if slot.machine != machine {
                slot.health = Health::Unknown;
                slot.machine = machine;
            }
        }
        self.slots.retain(|_, slot| !slot.leaving || slot.phase != Phase::Free);
    }

    /// Whether a machine could be leased now.
    pub(crate) fn has_one_to_grant(&self) -> bool {
        self.slots.values().any(Slot::is_to_grant)
    }

    /// Leases up to `n` machines that are free and well.
    pub(crate) fn grant(&mut self, n: u32) -> Vec<InstanceId> {
        let mut granted = Vec::new();
        for slot in self.slots.values_mut().filter(|slot| slot.is_to_grant()).take(n as usize) {
            slot.phase = Phase::Leased(self.next);
            granted.push(slot.id(self.next));
            self.next += 1;
        }
        granted
    }

    /// Ends a lease; its machine is to be cleaned. `None`: there is no such lease.
    pub(crate) fn release(&mut self, id: &InstanceId) -> Option<Machine> {
        let slot = self.slot(id)?;
        if let Phase::Leased(lease) = slot.phase {
            slot.phase = Phase::Cleaning { lease, failed: false };
        }
        Some(slot.machine.clone())
    }

    /// Takes back what could not be stored.
    pub(crate) fn ungrant(&mut self, granted: &[InstanceId]) {
        for id in granted {
            if let Some(slot) = self.slot(id) {
                slot.phase = Phase::Free;
            }
        }
    }

    fn slot(&mut self, id: &InstanceId) -> Option<&mut Slot> {
        let (name, lease) = id.as_str().rsplit_once('/')?;
        let number: u64 = lease.parse().ok()?;
        let slot = self.slots.get_mut(name)?;
        let is_it = match slot.phase {
            Phase::Leased(lease) | Phase::Cleaning { lease, .. } => lease == number,
            Phase::Free => false,
        };
        is_it.then_some(slot)
    }

    /// The machine of a lease that was not given back.
    pub(crate) fn leased(&mut self, id: &InstanceId) -> Option<Machine> {
        self.slot(id).filter(|slot| matches!(slot.phase, Phase::Leased(_))).map(|slot| slot.machine.clone())
    }

    /// The instances, as the protocol sees them.
    pub(crate) fn instances(&self) -> Vec<(InstanceId, InstanceState)> {
        let instance = |slot: &Slot| match slot.phase {
            Phase::Leased(lease) => Some((slot.id(lease), InstanceState::Running)),
            Phase::Cleaning { lease, failed: false } => Some((slot.id(lease), InstanceState::Deleting)),
            Phase::Cleaning { failed: true, .. } | Phase::Free => None,
        };
        self.slots.values().filter_map(instance).collect()
    }

    /// What every machine that nobody uses needs now; each is busy until it is told of.
    pub(crate) fn due(&mut self) -> Vec<Work> {
        let names: Vec<String> = self.slots.keys().cloned().collect();
        names.iter().filter_map(|name| self.work(name)).collect()
    }

    /// What one machine needs now.
    pub(crate) fn work(&mut self, name: &str) -> Option<Work> {
        let slot = self.slots.get_mut(name).filter(|slot| !slot.busy)?;
        let work = match slot.phase {
            Phase::Free => Work::Check(slot.machine.clone()),
            Phase::Cleaning { .. } => Work::Clean(slot.machine.clone()),
            Phase::Leased(_) => return None,
        };
        slot.busy = true;
        Some(work)
    }

    /// A check or a clean-up has ended. Whether the leases have changed.
    pub(crate) fn done(&mut self, work: &Work, result: Result<(), String>) -> bool {
        let (Work::Check(machine) | Work::Clean(machine)) = work;
        let Some(slot) = self.slots.get_mut(&machine.name) else { return false };
        slot.busy = false;
        let health = match result {
            Ok(()) => Health::Well,
            Err(cause) => Health::Ill(cause),
        };
        if slot.health != health {
            match (&slot.health, &health) {
                (_, Health::Ill(cause)) => {
                    tracing::warn!(machine = machine.name, cause, "machine is in quarantine until it is well again");
                }
                (Health::Ill(_), _) => tracing::info!(machine = machine.name, "machine is back"),
                _ => {}
            }
        }
        let well = health == Health::Well;
        // It was another machine when the check began: the next one tells.
        slot.health = if slot.machine == *machine { health } else { Health::Unknown };
        let changed = match (&mut slot.phase, work) {
            (phase @ Phase::Cleaning { .. }, Work::Clean(_)) if well => {
                *phase = Phase::Free;
                true
            }
            (Phase::Cleaning { failed, .. }, Work::Clean(_)) => {
                *failed = true;
                false
            }
            _ => false,
        };
        self.slots.retain(|_, slot| !slot.leaving || slot.phase != Phase::Free);
        changed
    }

    /// Why there is no machine.
    pub(crate) fn shortage(&self) -> String {
        let count = |test: &dyn Fn(&Slot) -> bool| self.slots.values().filter(|slot| test(slot)).count();
        let leased = count(&|slot| matches!(slot.phase, Phase::Leased(_)));
        let cleaning = count(&|slot| matches!(slot.phase, Phase::Cleaning { .. }));
        let ill: Vec<String> = self
            .slots
            .values()
            .filter_map(|slot| match &slot.health {
                Health::Ill(cause) if slot.phase == Phase::Free => Some(format!("{}: {cause}", slot.machine.name)),
                _ => None,
            })
            .collect();
        let mut text =
            format!("no machine is free: {leased} leased, {cleaning} being cleaned, {} in quarantine", ill.len());
        if let Some(first) = ill.first() {
            text = format!("{text} ({first})");
        }
        text
    }

    /// What is to be stored: the next number and the leases.
    pub(crate) fn leases(&self) -> (u64, Vec<Lease>) {
        let lease = |slot: &Slot| {
            let (lease, cleaning) = match slot.phase {
                Phase::Leased(lease) => (lease, false),
                Phase::Cleaning { lease, .. } => (lease, true),
                Phase::Free => return None,
            };
            Some(Lease { machine: slot.machine.name.clone(), lease, cleaning, details: Some(slot.machine.clone()) })
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
        let (mut pool, _) = Pool::new(names.iter().map(|name| machine(name)).collect(), 1, Vec::new());
        settle(&mut pool, &[]);
        pool
    }

    /// All work is done; what is named fails.
    fn settle(pool: &mut Pool, ill: &[&str]) {
        for work in pool.due() {
            let (Work::Check(machine) | Work::Clean(machine)) = &work;
            let result = if ill.contains(&machine.name.as_str()) { Err("no route".to_owned()) } else { Ok(()) };
            pool.done(&work, result);
        }
    }

    fn names(pool: &mut Pool, n: u32) -> Vec<String> {
        pool.grant(n).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_machines_that_are_free_and_well_are_granted() {
        let (mut pool, _) = Pool::new(vec![machine("a"), machine("b")], 1, Vec::new());
        assert!(pool.grant(2).is_empty(), "nobody has looked yet");
        settle(&mut pool, &["b"]);
        assert_eq!(names(&mut pool, 2), ["a/1"]);
        assert_eq!(pool.shortage(), "no machine is free: 1 leased, 0 being cleaned, 1 in quarantine (b: no route)");
        settle(&mut pool, &[]);
        assert_eq!(names(&mut pool, 2), ["b/2"], "it comes back by itself");
    }

    #[test]
    fn a_machine_is_cleaned_before_it_is_lent_again() {
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
    fn what_is_stored_is_found_again() {
        let mut first = pool(&["a", "b", "c"]);
        let ids = first.grant(2);
        first.release(&ids[1]);
        let (next, leases) = first.leases();
        let (mut second, unknown) = Pool::new(vec![machine("a"), machine("b"), machine("c")], next, leases);
        assert_eq!(unknown, []);
        assert_eq!(second.instances(), first.instances());
        settle(&mut second, &[]);
        assert_eq!(names(&mut second, 3), ["b/3", "c/4"]);
    }

    #[test]
    fn machines_come_and_go_with_the_list() {
        let mut pool = pool(&["a", "b"]);
        let id = pool.grant(1).remove(0);
        pool.set_machines(vec![machine("c")]);
        assert_eq!(pool.instances(), [(id.clone(), InstanceState::Running)], "its job goes on");
        settle(&mut pool, &[]);
        assert_eq!(names(&mut pool, 5), ["c/2"]);
        pool.release(&id);
        settle(&mut pool, &[]);
        assert!(pool.grant(5).is_empty(), "a is gone with its lease");
        let (_, lost) = Pool::new(Vec::new(), 1, vec![Lease { details: None, ..lease("x", 4, false) }]);
        assert_eq!(lost.len(), 1, "a file of before does not say what it was");
    }

    #[test]
    fn a_leased_machine_that_left_the_list_is_found_after_a_restart_and_cleaned() {
        let mut first = pool(&["a", "b"]);
        let id = first.grant(1).remove(0);
        first.set_machines(vec![machine("b")]);
        let (next, leases) = first.leases();
        let (mut second, lost) = Pool::new(vec![machine("b")], next, leases);
        assert_eq!((second.instances(), lost), (vec![(id.clone(), InstanceState::Running)], vec![]));
        second.release(&id);
        assert_eq!(second.work("a"), Some(Work::Clean(machine("a"))));
        assert!(second.done(&Work::Clean(machine("a")), Ok(())));
        settle(&mut second, &[]);
        assert_eq!(names(&mut second, 5), ["b/2"], "then it is gone");
    }

    fn lease(name: &str, lease: u64, cleaning: bool) -> Lease {
        Lease { machine: name.to_owned(), lease, cleaning, details: Some(machine(name)) }
    }
}
