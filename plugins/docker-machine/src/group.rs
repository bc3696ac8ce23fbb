//! State of each machine, without I/O.

use std::collections::{BTreeMap, BTreeSet};

use muster_fleeting::sdk::{InstanceId, InstanceState};
use tokio_util::sync::CancellationToken;

/// A machine is removed after this number of consecutive lists that show an error or no state for it. The number is
/// greater than one, because cloud APIs fail occasionally.
const MAX_FAILED_POLLS: u32 = 3;

#[derive(Debug, Default)]
pub(crate) struct Machines {
    known: BTreeMap<String, MachineState>,
    /// Names of removed machines. A list that is still in progress may contain them.
    removed: BTreeSet<String>,
}

#[derive(Debug)]
enum MachineState {
    /// Canceling the token prevents a creation that has not started.
    Creating(CancellationToken),
    Ready {
        /// Number of consecutive lists, up to the last one, that show an error or no state for the machine.
        failed_polls: u32,
        /// Whether docker-machine has listed the machine since its creation.
        listed: bool,
    },
    Removing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObservedState {
    Running,
    Starting,
    /// The machine is stopped. This plugin does not start machines.
    Off,
    Unknown,
}

impl ObservedState {
    fn parse(state: &str) -> Self {
        match state {
            "Running" => Self::Running,
            "Starting" => Self::Starting,
            "Stopped" | "Stopping" | "Paused" | "Saved" => Self::Off,
            // Error, Timeout, and unknown states.
            _ => Self::Unknown,
        }
    }
}

impl Machines {
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    pub(crate) fn begin_creation(&mut self, name: String) -> CancellationToken {
        let stop = CancellationToken::new();
        self.known.insert(name, MachineState::Creating(stop.clone()));
        stop
    }

    pub(crate) fn is_being_created(&self, name: &str) -> bool {
        matches!(self.known.get(name), Some(MachineState::Creating(_)))
    }

    /// Returns false if the machine is not needed anymore.
    pub(crate) fn mark_created(&mut self, name: &str) -> bool {
        match self.known.get_mut(name) {
            Some(state @ MachineState::Creating(_)) => {
                *state = MachineState::Ready { failed_polls: 0, listed: false };
                true
            }
            _ => false,
        }
    }

    /// Returns whether the caller must remove the machine.
    ///
    /// A machine in creation is removed by the task that creates it.
    pub(crate) fn begin_removal(&mut self, name: &str) -> bool {
        let Some(state) = self.known.get_mut(name) else { return false };
        match std::mem::replace(state, MachineState::Removing) {
            MachineState::Creating(stop) => {
                stop.cancel();
                false
            }
            MachineState::Ready { .. } => true,
            MachineState::Removing => false,
        }
    }

    /// Called after a failed or interrupted creation.
    pub(crate) fn mark_removing(&mut self, name: String) {
        self.known.insert(name, MachineState::Removing);
    }

    pub(crate) fn mark_removed(&mut self, name: &str) {
        if self.known.remove(name).is_some() {
            self.removed.insert(name.to_owned());
        }
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// Processes docker-machine's list of this group's machines. Returns the instances, and the machines to remove.
    pub(crate) fn process_list(
        &mut self,
        listed: &BTreeMap<String, String>,
    ) -> (Vec<(InstanceId, InstanceState)>, Vec<String>) {
        // Forget removed machines that are no longer listed: names are never reused, so no later list contains them.
        self.removed.retain(|name| listed.contains_key(name));
        self.known.retain(|name, state| {
            let exists = listed.contains_key(name) || !matches!(state, MachineState::Ready { listed: true, .. });
            if !exists {
                tracing::warn!(machine = name, "machine was removed by another process");
            }
            exists
        });
        for name in listed.keys().filter(|name| !self.removed.contains(*name)) {
            self.known.entry(name.clone()).or_insert(MachineState::Ready { failed_polls: 0, listed: true });
        }
        let (mut instances, mut remove) = (Vec::new(), Vec::new());
        for (name, machine) in &mut self.known {
            let state = match machine {
                MachineState::Creating(_) => InstanceState::Creating,
                MachineState::Removing => InstanceState::Deleting,
                MachineState::Ready { failed_polls, listed: was_listed } => {
                    let reported = listed.get(name).map(String::as_str).unwrap_or_default();
                    *was_listed |= listed.contains_key(name);
                    let observed = ObservedState::parse(reported);
                    *failed_polls = if observed == ObservedState::Unknown { *failed_polls + 1 } else { 0 };
                    if observed == ObservedState::Off || *failed_polls >= MAX_FAILED_POLLS {
                        tracing::warn!(machine = name, state = reported, "removing machine that is not running");
                        remove.push(name.clone());
                        *machine = MachineState::Removing;
                        InstanceState::Deleting
                    } else if observed == ObservedState::Starting {
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

    fn process_list(machines: &mut Machines, listed: &[(&str, &str)]) -> (Vec<InstanceState>, Vec<String>) {
        let listed = listed.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect();
        let (instances, remove) = machines.process_list(&listed);
        (instances.into_iter().map(|(_, state)| state).collect(), remove)
    }

    #[test]
    fn machine_in_creation_is_not_running() {
        let mut machines = Machines::default();
        machines.begin_creation("m".to_owned());
        for listed in [&[][..], &[("m", "")], &[("m", "Running")], &[("m", "Error")]] {
            assert_eq!(process_list(&mut machines, listed).0, [InstanceState::Creating], "{listed:?}");
        }
        assert!(machines.mark_created("m"));
        assert_eq!(process_list(&mut machines, &[("m", "Running")]).0, [InstanceState::Running]);
    }

    #[test]
    fn machine_removed_during_creation_never_becomes_ready() {
        let mut machines = Machines::default();
        let stop = machines.begin_creation("m".to_owned());
        assert!(!machines.begin_removal("m"), "the task that creates the machine removes it");
        assert!(stop.is_cancelled());
        assert!(!machines.mark_created("m"));
        assert_eq!(process_list(&mut machines, &[("m", "Running")]).0, [InstanceState::Deleting]);
    }

    #[test]
    fn failing_machine_is_removed_after_three_lists() {
        let mut machines = Machines::default();
        for state in ["Running", "Timeout", "Error", "Running", "", "Other"] {
            assert_eq!(process_list(&mut machines, &[("m", state)]), (vec![InstanceState::Running], vec![]), "{state}");
        }
        assert_eq!(
            process_list(&mut machines, &[("m", "Error")]),
            (vec![InstanceState::Deleting], vec!["m".to_owned()])
        );
        assert_eq!(
            process_list(&mut machines, &[("m", "Error")]).1,
            Vec::<String>::new(),
            "the removal must be requested once"
        );
        machines.mark_removed("m");
        for state in ["Stopped", "Paused", "Saved", "Stopping"] {
            let mut machines = Machines::default();
            assert_eq!(process_list(&mut machines, &[("m", state)]).1, ["m"], "{state}");
        }
        let mut machines = Machines::default();
        assert_eq!(process_list(&mut machines, &[("m", "Starting")]).0, [InstanceState::Creating]);
    }

    #[test]
    fn machine_removed_by_another_process_is_no_longer_an_instance() {
        let mut machines = Machines::default();
        process_list(&mut machines, &[("a", "Running"), ("b", "Running")]);
        assert_eq!(process_list(&mut machines, &[("b", "Running")]).0.len(), 1);
        assert!(!machines.contains("a"));
    }

    #[test]
    fn outdated_list_neither_restores_nor_loses_machines() {
        let mut machines = Machines::default();
        process_list(&mut machines, &[("a", "Running")]);
        machines.begin_removal("a");
        machines.mark_removed("a");
        assert_eq!(process_list(&mut machines, &[("a", "Running")]).0, [], "removed while it was listed");
        process_list(&mut machines, &[]);
        machines.begin_creation("b".to_owned());
        machines.mark_created("b");
        assert_eq!(process_list(&mut machines, &[]).0, [InstanceState::Running], "created while it was listed");
        assert_eq!(process_list(&mut machines, &[("b", "Running")]).0, [InstanceState::Running]);
        assert_eq!(process_list(&mut machines, &[]).0, []);
    }
}
