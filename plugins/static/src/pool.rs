//! State of each machine, without I/O.

use std::collections::BTreeMap;

use muster_fleeting::sdk::{InstanceId, InstanceState};
use serde::{Deserialize, Serialize};

use crate::config::Machine;

#[derive(Debug, Default)]
pub(crate) struct Pool {
    machines: BTreeMap<String, PooledMachine>,
    /// Number of the next lease. Numbers are never reused, because each lease is a separate instance.
    next_lease: u64,
}

#[derive(Debug)]
struct PooledMachine {
    machine: Machine,
    state: MachineState,
    health: Health,
    /// Whether a check or cleanup is running.
    busy: bool,
    /// Whether the machine is no longer in the list. It is removed once its lease has ended and it is cleaned up.
    removed_from_list: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum MachineState {
    Free,
    Leased(u64),
    /// The lease has ended. `failed` means that the cleanup failed: the instance counts as deleted, but the machine is
    /// not available for a new lease.
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MachineLease {
    pub(crate) machine: String,
    pub(crate) lease: u64,
    /// Whether the lease has ended, so that the machine must be cleaned up.
    pub(crate) cleaning: bool,
    /// Settings of the machine, in case it is no longer in the list when the lease is restored.
    pub(crate) details: Machine,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MachineTask {
    Check(Machine),
    Clean(Machine),
}

impl PooledMachine {
    fn new(machine: Machine, state: MachineState) -> Self {
        Self { machine, state, health: Health::Unknown, busy: false, removed_from_list: false }
    }

    fn is_available(&self) -> bool {
        self.state == MachineState::Free && self.health == Health::Healthy && !self.removed_from_list
    }

    fn id(&self, lease: u64) -> InstanceId {
        InstanceId::new(format!("{}/{lease}", self.machine.name))
    }
}

impl Pool {
    pub(crate) fn new(machines: Vec<Machine>, next_lease: u64, leases: Vec<MachineLease>) -> Self {
        let mut pool = Self { machines: BTreeMap::new(), next_lease };
        pool.set_machines(machines);
        for stored in leases {
            pool.next_lease = pool.next_lease.max(stored.lease + 1);
            let state = match stored.cleaning {
                true => MachineState::Cleaning { lease: stored.lease, failed: false },
                false => MachineState::Leased(stored.lease),
            };
            match pool.machines.get_mut(&stored.machine) {
                Some(pooled) => pooled.state = state,
                // The machine is no longer in the list. Its job continues, and the machine is then cleaned up, as if
                // the list had changed while the plugin was running.
                None => {
                    let pooled = PooledMachine { removed_from_list: true, ..PooledMachine::new(stored.details, state) };
                    pool.machines.insert(stored.machine, pooled);
                }
            }
        }
        pool
    }

    /// Applies a new list of machines. Machines that are no longer in the list are removed; a leased machine is removed
    /// only after its lease has ended and it is cleaned up.
    pub(crate) fn set_machines(&mut self, machines: Vec<Machine>) {
        for pooled in self.machines.values_mut() {
            pooled.removed_from_list = true;
        }
        for machine in machines {
            let pooled = self
                .machines
                .entry(machine.name.clone())
                .or_insert_with(|| PooledMachine::new(machine.clone(), MachineState::Free));
            pooled.removed_from_list = false;
            if pooled.machine != machine {
                pooled.health = Health::Unknown;
                pooled.machine = machine;
            }
        }
        self.machines.retain(|_, pooled| !pooled.removed_from_list || pooled.state != MachineState::Free);
    }

    pub(crate) fn has_available(&self) -> bool {
        self.machines.values().any(PooledMachine::is_available)
    }

    pub(crate) fn lease(&mut self, n: u32) -> Vec<InstanceId> {
        let mut leased = Vec::new();
        for pooled in self.machines.values_mut().filter(|pooled| pooled.is_available()).take(n as usize) {
            pooled.state = MachineState::Leased(self.next_lease);
            leased.push(pooled.id(self.next_lease));
            self.next_lease += 1;
        }
        leased
    }

    /// Ends a lease. Returns the machine to clean up. `None` if there is no such lease.
    pub(crate) fn release(&mut self, id: &InstanceId) -> Option<Machine> {
        let pooled = self.machine_of(id)?;
        if let MachineState::Leased(lease) = pooled.state {
            pooled.state = MachineState::Cleaning { lease, failed: false };
        }
        Some(pooled.machine.clone())
    }

    /// Reverts leases that could not be stored.
    pub(crate) fn revert_leases(&mut self, ids: &[InstanceId]) {
        for id in ids {
            if let Some(pooled) = self.machine_of(id) {
                pooled.state = MachineState::Free;
            }
        }
    }

    fn machine_of(&mut self, id: &InstanceId) -> Option<&mut PooledMachine> {
        let (name, lease) = id.as_str().rsplit_once('/')?;
        let number: u64 = lease.parse().ok()?;
        let pooled = self.machines.get_mut(name)?;
        let is_current = match pooled.state {
            MachineState::Leased(lease) | MachineState::Cleaning { lease, .. } => lease == number,
            MachineState::Free => false,
        };
        is_current.then_some(pooled)
    }

    pub(crate) fn leased_machine(&mut self, id: &InstanceId) -> Option<Machine> {
        self.machine_of(id)
            .filter(|pooled| matches!(pooled.state, MachineState::Leased(_)))
            .map(|pooled| pooled.machine.clone())
    }

    pub(crate) fn instances(&self) -> Vec<(InstanceId, InstanceState)> {
        let instance = |pooled: &PooledMachine| match pooled.state {
            MachineState::Leased(lease) => Some((pooled.id(lease), InstanceState::Running)),
            MachineState::Cleaning { lease, failed: false } => Some((pooled.id(lease), InstanceState::Deleting)),
            MachineState::Cleaning { failed: true, .. } | MachineState::Free => None,
        };
        self.machines.values().filter_map(instance).collect()
    }

    /// Returns the tasks that the caller has to run: one for each machine that is neither leased nor busy. The machines
    /// are busy until the caller calls [`Self::finish_task`].
    pub(crate) fn start_due_tasks(&mut self) -> Vec<MachineTask> {
        let names: Vec<String> = self.machines.keys().cloned().collect();
        names.iter().filter_map(|name| self.start_task(name)).collect()
    }

    pub(crate) fn start_task(&mut self, name: &str) -> Option<MachineTask> {
        let pooled = self.machines.get_mut(name).filter(|pooled| !pooled.busy)?;
        let task = match pooled.state {
            MachineState::Free => MachineTask::Check(pooled.machine.clone()),
            MachineState::Cleaning { .. } => MachineTask::Clean(pooled.machine.clone()),
            MachineState::Leased(_) => return None,
        };
        pooled.busy = true;
        Some(task)
    }

    /// Records the result of a check or cleanup. Returns whether the leases have changed.
    pub(crate) fn finish_task(&mut self, task: &MachineTask, result: Result<(), String>) -> bool {
        let (MachineTask::Check(machine) | MachineTask::Clean(machine)) = task;
        let Some(pooled) = self.machines.get_mut(&machine.name) else { return false };
        pooled.busy = false;
        let health = match result {
            Ok(()) => Health::Healthy,
            Err(cause) => Health::Unhealthy(cause),
        };
        if pooled.health != health {
            match (&pooled.health, &health) {
                (_, Health::Unhealthy(cause)) => {
                    tracing::warn!(machine = machine.name, cause, "machine is unhealthy and was quarantined");
                }
                (Health::Unhealthy(_), _) => tracing::info!(machine = machine.name, "machine is healthy again"),
                _ => {}
            }
        }
        let is_healthy = health == Health::Healthy;
        // If the machine's settings changed during the task, the result does not apply.
        pooled.health = if pooled.machine == *machine { health } else { Health::Unknown };
        let changed = match (&mut pooled.state, task) {
            (state @ MachineState::Cleaning { .. }, MachineTask::Clean(_)) if is_healthy => {
                *state = MachineState::Free;
                true
            }
            (MachineState::Cleaning { failed, .. }, MachineTask::Clean(_)) => {
                *failed = true;
                false
            }
            _ => false,
        };
        self.machines.retain(|_, pooled| !pooled.removed_from_list || pooled.state != MachineState::Free);
        changed
    }

    pub(crate) fn no_machine_reason(&self) -> String {
        let count = |condition: &dyn Fn(&PooledMachine) -> bool| {
            self.machines.values().filter(|pooled| condition(pooled)).count()
        };
        let leased = count(&|pooled| matches!(pooled.state, MachineState::Leased(_)));
        let cleaning = count(&|pooled| matches!(pooled.state, MachineState::Cleaning { .. }));
        let quarantined: Vec<String> = self
            .machines
            .values()
            .filter_map(|pooled| match &pooled.health {
                Health::Unhealthy(cause) if pooled.state == MachineState::Free => {
                    Some(format!("{}: {cause}", pooled.machine.name))
                }
                _ => None,
            })
            .collect();
        let mut text = format!(
            "no machine is available: {leased} leased, {cleaning} being cleaned up, {} quarantined",
            quarantined.len()
        );
        if let Some(first) = quarantined.first() {
            text = format!("{text} ({first})");
        }
        text
    }

    pub(crate) fn leases(&self) -> (u64, Vec<MachineLease>) {
        let lease = |pooled: &PooledMachine| {
            let (lease, cleaning) = match pooled.state {
                MachineState::Leased(lease) => (lease, false),
                MachineState::Cleaning { lease, .. } => (lease, true),
                MachineState::Free => return None,
            };
            Some(MachineLease {
                machine: pooled.machine.name.clone(),
                lease,
                cleaning,
                details: pooled.machine.clone(),
            })
        };
        (self.next_lease, self.machines.values().filter_map(lease).collect())
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
        run_due_tasks(&mut pool, &[]);
        pool
    }

    fn run_due_tasks(pool: &mut Pool, failing: &[&str]) {
        for task in pool.start_due_tasks() {
            let (MachineTask::Check(machine) | MachineTask::Clean(machine)) = &task;
            let result = if failing.contains(&machine.name.as_str()) { Err("no route".to_owned()) } else { Ok(()) };
            pool.finish_task(&task, result);
        }
    }

    fn lease_names(pool: &mut Pool, n: u32) -> Vec<String> {
        pool.lease(n).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_free_and_healthy_machines_are_leased() {
        let mut pool = Pool::new(vec![machine("a"), machine("b")], 1, Vec::new());
        assert!(pool.lease(2).is_empty(), "no machine has been checked yet");
        run_due_tasks(&mut pool, &["b"]);
        assert_eq!(lease_names(&mut pool, 2), ["a/1"]);
        assert_eq!(
            pool.no_machine_reason(),
            "no machine is available: 1 leased, 0 being cleaned up, 1 quarantined (b: no route)"
        );
        run_due_tasks(&mut pool, &[]);
        assert_eq!(lease_names(&mut pool, 2), ["b/2"], "the machine recovers");
    }

    #[test]
    fn machine_is_cleaned_up_before_next_lease() {
        let mut pool = pool(&["a"]);
        let id = pool.lease(1).remove(0);
        assert_eq!(pool.start_due_tasks(), [], "a leased machine has no task");
        assert!(pool.release(&id).is_some());
        assert_eq!(pool.instances(), [(id.clone(), InstanceState::Deleting)]);
        assert!(pool.lease(1).is_empty());
        run_due_tasks(&mut pool, &["a"]);
        assert_eq!(pool.instances(), [], "the instance is deleted, but the machine is not available");
        assert!(pool.lease(1).is_empty());
        assert_eq!(pool.leases().1, [machine_lease("a", 1, true)]);
        run_due_tasks(&mut pool, &[]);
        assert_eq!(lease_names(&mut pool, 1), ["a/2"], "a new lease is a new instance");
        assert!(pool.release(&id).is_none(), "the old lease does not exist anymore");
    }

    #[test]
    fn stored_leases_are_restored() {
        let mut first = pool(&["a", "b", "c"]);
        let ids = first.lease(2);
        first.release(&ids[1]);
        let (next, leases) = first.leases();
        let mut second = Pool::new(vec![machine("a"), machine("b"), machine("c")], next, leases);
        assert_eq!(second.instances(), first.instances());
        run_due_tasks(&mut second, &[]);
        assert_eq!(lease_names(&mut second, 3), ["b/3", "c/4"]);
    }

    #[test]
    fn machines_are_added_and_removed_with_the_list() {
        let mut pool = pool(&["a", "b"]);
        let id = pool.lease(1).remove(0);
        pool.set_machines(vec![machine("c")]);
        assert_eq!(pool.instances(), [(id.clone(), InstanceState::Running)], "the job continues");
        run_due_tasks(&mut pool, &[]);
        assert_eq!(lease_names(&mut pool, 5), ["c/2"]);
        pool.release(&id);
        run_due_tasks(&mut pool, &[]);
        assert!(pool.lease(5).is_empty(), "machine a is removed with its lease");
    }

    #[test]
    fn leased_machine_removed_from_list_is_cleaned_up_after_restart() {
        let mut first = pool(&["a", "b"]);
        let id = first.lease(1).remove(0);
        first.set_machines(vec![machine("b")]);
        let (next, leases) = first.leases();
        let mut second = Pool::new(vec![machine("b")], next, leases);
        assert_eq!(second.instances(), [(id.clone(), InstanceState::Running)]);
        second.release(&id);
        assert_eq!(second.start_task("a"), Some(MachineTask::Clean(machine("a"))));
        assert!(second.finish_task(&MachineTask::Clean(machine("a")), Ok(())));
        run_due_tasks(&mut second, &[]);
        assert_eq!(lease_names(&mut second, 5), ["b/2"], "the removed machine is not leased");
    }

    fn machine_lease(name: &str, lease: u64, cleaning: bool) -> MachineLease {
        MachineLease { machine: name.to_owned(), lease, cleaning, details: machine(name) }
    }
}
