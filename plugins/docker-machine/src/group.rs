//! State of each machine. No I/O: takes lists of docker-machine, and returns states and machines to remove.

use std::collections::{BTreeMap, BTreeSet};

use muster_fleeting::sdk::{InstanceId, InstanceState};
use tokio_util::sync::CancellationToken;

/// Number of consecutive lists in which a machine is in error or does not respond, after which it is removed. Cloud
/// APIs fail at times.
const MAX_FAILED_POLLS: u32 = 3;

/// The machines by name.
#[derive(Debug, Default)]
pub(crate) struct Machines {
    known: BTreeMap<String, MachineState>,
    /// Names that were removed. A list that is still in progress may contain them.
    removed: BTreeSet<String>,
}

#[derive(Debug)]
enum MachineState {
    /// The machine is being created. Cancel the token to stop waiting machines from being created.
    Creating(CancellationToken),
    /// The machine was created. `listed` means that docker-machine has listed it since then.
    Ready {
        strikes: u32,
        listed: bool,
    },
    Removing,
}

/// State of a machine as reported by docker-machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObservedState {
    Running,
    Starting,
    /// The machine is stopped, and this plugin does not start machines.
    Off,
    Unclear,
}

impl ObservedState {
    fn of(state: &str) -> Self {
        match state {
            "Running" => Self::Running,
            "Starting" => Self::Starting,
            "Stopped" | "Stopping" | "Paused" | "Saved" => Self::Off,
            // Error, Timeout, and unknown states.
            _ => Self::Unclear,
        }
    }
}

impl Machines {
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Registers a machine that will be created.
    pub(crate) fn create(&mut self, name: String) -> CancellationToken {
        let stop = CancellationToken::new();
        self.known.insert(name, MachineState::Creating(stop.clone()));
        stop
    }

    /// Records that a machine was created. Returns false if it is not needed anymore.
    pub(crate) fn created(&mut self, name: &str) -> bool {
        match self.known.get_mut(name) {
            Some(phase @ MachineState::Creating(_)) => {
                *phase = MachineState::Ready { strikes: 0, listed: false };
                true
            }
            _ => false,
        }
    }

    /// Records that a machine must be removed. Returns true if the caller must remove it: a machine in creation is
    /// removed by the task that creates it.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let Some(phase) = self.known.get_mut(name) else { return false };
        match std::mem::replace(phase, MachineState::Removing) {
            MachineState::Creating(stop) => {
                stop.cancel();
                false
            }
            MachineState::Ready { .. } => true,
            MachineState::Removing => false,
        }
    }

    /// Records that a machine is being removed because its creation failed or was interrupted.
    pub(crate) fn removing(&mut self, name: String) {
        self.known.insert(name, MachineState::Removing);
    }

    pub(crate) fn gone(&mut self, name: &str) {
        if self.known.remove(name).is_some() {
            self.removed.insert(name.to_owned());
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// Processes docker-machine's list of this group's machines. Returns the instances, and the machines to remove.
    pub(crate) fn look(
        &mut self,
        listed: &BTreeMap<String, String>,
    ) -> (Vec<(InstanceId, InstanceState)>, Vec<String>) {
        // Names are never reused: a removed machine appears at most in a list that was in progress.
        self.removed.retain(|name| listed.contains_key(name));
        self.known.retain(|name, phase| {
            let stays = listed.contains_key(name) || !matches!(phase, MachineState::Ready { listed: true, .. });
            if !stays {
                tracing::warn!(machine = name, "machine was removed by another process");
            }
            stays
        });
        for name in listed.keys().filter(|name| !self.removed.contains(*name)) {
            self.known.entry(name.clone()).or_insert(MachineState::Ready { strikes: 0, listed: true });
        }
        let (mut instances, mut remove) = (Vec::new(), Vec::new());
        for (name, phase) in &mut self.known {
            let state = match phase {
                MachineState::Creating(_) => InstanceState::Creating,
                MachineState::Removing => InstanceState::Deleting,
                MachineState::Ready { strikes, listed: was_listed } => {
                    let word = listed.get(name).map(String::as_str).unwrap_or_default();
                    *was_listed |= listed.contains_key(name);
                    let seen = ObservedState::of(word);
                    *strikes = if seen == ObservedState::Unclear { *strikes + 1 } else { 0 };
                    if seen == ObservedState::Off || *strikes >= MAX_FAILED_POLLS {
                        tracing::warn!(machine = name, state = word, "removing machine that is not running");
                        remove.push(name.clone());
                        *phase = MachineState::Removing;
                        InstanceState::Deleting
                    } else if seen == ObservedState::Starting {
                        InstanceState::Creating
                    } else {
                        InstanceState::Running
                    }
                }
            };
            instances.push((InstanceId::new(name.clone()), state));
        }
        (instances, remove)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(machines: &mut Machines, listed: &[(&str, &str)]) -> (Vec<InstanceState>, Vec<String>) {
        let listed = listed.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect();
        let (instances, remove) = machines.look(&listed);
        (instances.into_iter().map(|(_, state)| state).collect(), remove)
    }

    #[test]
    fn machine_in_creation_is_not_running() {
        let mut machines = Machines::default();
        machines.create("m".to_owned());
        for listed in [&[][..], &[("m", "")], &[("m", "Running")], &[("m", "Error")]] {
            assert_eq!(look(&mut machines, listed).0, [InstanceState::Creating], "{listed:?}");
        }
        assert!(machines.created("m"));
        assert_eq!(look(&mut machines, &[("m", "Running")]).0, [InstanceState::Running]);
    }

    #[test]
    fn machine_removed_during_creation_never_becomes_ready() {
        let mut machines = Machines::default();
        let stop = machines.create("m".to_owned());
        assert!(!machines.remove("m"), "who creates it removes it");
        assert!(stop.is_cancelled());
        assert!(!machines.created("m"));
        assert_eq!(look(&mut machines, &[("m", "Running")]).0, [InstanceState::Deleting]);
    }

    #[test]
    fn failing_machine_is_removed_after_three_lists() {
        let mut machines = Machines::default();
        for state in ["Running", "Timeout", "Error", "Running", "", "Weird"] {
            assert_eq!(look(&mut machines, &[("m", state)]), (vec![InstanceState::Running], vec![]), "{state}");
        }
        assert_eq!(look(&mut machines, &[("m", "Error")]), (vec![InstanceState::Deleting], vec!["m".to_owned()]));
        assert_eq!(look(&mut machines, &[("m", "Error")]).1, Vec::<String>::new(), "asked for once");
        machines.gone("m");
        for state in ["Stopped", "Paused", "Saved", "Stopping"] {
            let mut machines = Machines::default();
            assert_eq!(look(&mut machines, &[("m", state)]).1, ["m"], "{state}");
        }
        let mut machines = Machines::default();
        assert_eq!(look(&mut machines, &[("m", "Starting")]).0, [InstanceState::Creating]);
    }

    #[test]
    fn machine_removed_by_others_is_deleted() {
        let mut machines = Machines::default();
        look(&mut machines, &[("a", "Running"), ("b", "Running")]);
        assert_eq!(look(&mut machines, &[("b", "Running")]).0.len(), 1);
        assert!(!machines.has("a"));
    }

    #[test]
    fn outdated_list_neither_restores_nor_loses_machines() {
        let mut machines = Machines::default();
        look(&mut machines, &[("a", "Running")]);
        machines.remove("a");
        machines.gone("a");
        assert_eq!(look(&mut machines, &[("a", "Running")]).0, [], "removed while it was listed");
        look(&mut machines, &[]);
        machines.create("b".to_owned());
        machines.created("b");
        assert_eq!(look(&mut machines, &[]).0, [InstanceState::Running], "created while it was listed");
        assert_eq!(look(&mut machines, &[("b", "Running")]).0, [InstanceState::Running]);
        assert_eq!(look(&mut machines, &[]).0, []);
    }
}
