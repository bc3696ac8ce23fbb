//! Which machine is in which state. Pure: docker-machine's list comes in, states and what is to be removed go out.

use std::collections::{BTreeMap, BTreeSet};

use muster_fleeting::sdk::{InstanceId, InstanceState};
use tokio_util::sync::CancellationToken;

/// Looks in a row that found a machine in error, or without an answer, until it is given up: a cloud's API fails at times.
const STRIKES_MAX: u32 = 3;

/// The machines, by name.
#[derive(Debug, Default)]
pub(crate) struct Machines {
    known: BTreeMap<String, Phase>,
    /// Those that were removed while a list may have been on its way that still has them.
    removed: BTreeSet<String>,
}

#[derive(Debug)]
enum Phase {
    /// It is being made; cancelled, it is made no further.
    Creating(CancellationToken),
    /// `listed`: docker-machine has listed it since it was made.
    Ready {
        strikes: u32,
        listed: bool,
    },
    Removing,
}

/// What an answer of docker-machine says of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Running,
    Starting,
    /// It does not run, and nobody here will start it.
    Off,
    Unclear,
}

impl Seen {
    fn of(state: &str) -> Self {
        match state {
            "Running" => Self::Running,
            "Starting" => Self::Starting,
            "Stopped" | "Stopping" | "Paused" | "Saved" => Self::Off,
            // Error, Timeout, and what there is no word for.
            _ => Self::Unclear,
        }
    }
}

impl Machines {
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// A machine is to be made.
    pub(crate) fn create(&mut self, name: String) -> CancellationToken {
        let stop = CancellationToken::new();
        self.known.insert(name, Phase::Creating(stop.clone()));
        stop
    }

    /// It was made. Whether it still is wanted.
    pub(crate) fn created(&mut self, name: &str) -> bool {
        match self.known.get_mut(name) {
            Some(phase @ Phase::Creating(_)) => {
                *phase = Phase::Ready { strikes: 0, listed: false };
                true
            }
            _ => false,
        }
    }

    /// It is to be removed. Whether somebody has to begin with that: of one in creation, who creates it.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let Some(phase) = self.known.get_mut(name) else { return false };
        match std::mem::replace(phase, Phase::Removing) {
            Phase::Creating(stop) => {
                stop.cancel();
                false
            }
            Phase::Ready { .. } => true,
            Phase::Removing => false,
        }
    }

    /// One that was left half made, or that could not be made: it is being removed.
    pub(crate) fn removing(&mut self, name: String) {
        self.known.insert(name, Phase::Removing);
    }

    pub(crate) fn gone(&mut self, name: &str) {
        if self.known.remove(name).is_some() {
            self.removed.insert(name.to_owned());
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// What docker-machine lists of this group's machines. Gives the instances, and those that are to be removed now.
    pub(crate) fn look(
        &mut self,
        listed: &BTreeMap<String, String>,
    ) -> (Vec<(InstanceId, InstanceState)>, Vec<String>) {
        // A name never comes back: what was removed is in the list of a moment ago, or in none.
        self.removed.retain(|name| listed.contains_key(name));
        self.known.retain(|name, phase| {
            let stays = listed.contains_key(name) || !matches!(phase, Phase::Ready { listed: true, .. });
            if !stays {
                tracing::warn!(machine = name, "machine is gone: somebody else removed it");
            }
            stays
        });
        for name in listed.keys().filter(|name| !self.removed.contains(*name)) {
            self.known.entry(name.clone()).or_insert(Phase::Ready { strikes: 0, listed: true });
        }
        let (mut instances, mut remove) = (Vec::new(), Vec::new());
        for (name, phase) in &mut self.known {
            let state = match phase {
                Phase::Creating(_) => InstanceState::Creating,
                Phase::Removing => InstanceState::Deleting,
                Phase::Ready { strikes, listed: was_listed } => {
                    let word = listed.get(name).map(String::as_str).unwrap_or_default();
                    *was_listed |= listed.contains_key(name);
                    let seen = Seen::of(word);
                    *strikes = if seen == Seen::Unclear { *strikes + 1 } else { 0 };
                    if seen == Seen::Off || *strikes >= STRIKES_MAX {
                        tracing::warn!(machine = name, state = word, "machine is removed: it does not run");
                        remove.push(name.clone());
                        *phase = Phase::Removing;
                        InstanceState::Deleting
                    } else if seen == Seen::Starting {
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
    fn a_machine_in_creation_is_not_usable_whatever_docker_machine_says() {
        let mut machines = Machines::default();
        machines.create("m".to_owned());
        for listed in [&[][..], &[("m", "")], &[("m", "Running")], &[("m", "Error")]] {
            assert_eq!(look(&mut machines, listed).0, [InstanceState::Creating], "{listed:?}");
        }
        assert!(machines.created("m"));
        assert_eq!(look(&mut machines, &[("m", "Running")]).0, [InstanceState::Running]);
    }

    #[test]
    fn one_that_was_given_back_while_it_was_made_is_not_ready_later() {
        let mut machines = Machines::default();
        let stop = machines.create("m".to_owned());
        assert!(!machines.remove("m"), "who creates it removes it");
        assert!(stop.is_cancelled());
        assert!(!machines.created("m"));
        assert_eq!(look(&mut machines, &[("m", "Running")]).0, [InstanceState::Deleting]);
    }

    #[test]
    fn odd_states_have_three_looks_and_stopped_machines_none() {
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
    fn what_somebody_else_removed_is_gone() {
        let mut machines = Machines::default();
        look(&mut machines, &[("a", "Running"), ("b", "Running")]);
        assert_eq!(look(&mut machines, &[("b", "Running")]).0.len(), 1);
        assert!(!machines.has("a"));
    }

    #[test]
    fn a_list_of_a_moment_ago_brings_nothing_back_and_loses_nothing() {
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
