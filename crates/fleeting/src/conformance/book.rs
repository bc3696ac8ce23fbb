//! Checks the snapshots against the instances that the kit created. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::InstanceState;

/// Number of problems of each kind that a verdict lists.
const SHOWN: usize = 3;

/// What is known of one instance.
#[derive(Debug)]
struct Known {
    state: InstanceState,
    /// Whether the instance existed before the kit created any.
    foreign: bool,
    asked_to_go: bool,
    gone: bool,
}

/// All instances that appeared in snapshots, and the violations found.
#[derive(Debug, Default)]
pub(super) struct Book {
    instances: BTreeMap<String, Known>,
    snapshots: usize,
    /// Invalid snapshots.
    pub(super) odd: Vec<String>,
    /// Invalid state changes.
    pub(super) moves: Vec<String>,
    /// Instances that disappeared without a request to delete them.
    pub(super) lost: Vec<String>,
}

impl Book {
    /// Records a complete snapshot.
    pub(super) fn enter(&mut self, snapshot: &[(String, i32)]) {
        let first = self.snapshots == 0;
        self.snapshots += 1;
        let mut seen = BTreeSet::new();
        for (id, number) in snapshot {
            let state = InstanceState::from_number(*number);
            if id.is_empty() {
                self.odd.push("an instance has an empty id".to_owned());
                continue;
            }
            if !seen.insert(id) {
                self.odd.push(format!("{id} stands twice in one snapshot"));
            }
            if let InstanceState::Unknown(number) = state {
                self.odd.push(format!("{id} has the state {number}, which the protocol does not know"));
            }
            self.moved(id, state, first);
        }
        for (id, known) in &mut self.instances {
            if seen.contains(id) || known.gone {
                continue;
            }
            if !known.asked_to_go && !known.foreign {
                self.lost.push(format!(
                    "{id} was {} and is missing from the next snapshot, though nobody asked to remove it",
                    known.state
                ));
            }
            known.gone = true;
        }
    }

    fn moved(&mut self, id: &str, state: InstanceState, first: bool) {
        let Some(known) = self.instances.get_mut(id) else {
            if !first && !matches!(state, InstanceState::Creating | InstanceState::Running) {
                self.moves.push(format!("{id} is {state} when it is first seen"));
            }
            let known = Known { state, foreign: first, asked_to_go: false, gone: state.is_gone() };
            self.instances.insert(id.to_owned(), known);
            return;
        };
        if known.gone && !state.is_gone() && !known.foreign {
            self.moves.push(format!("{id} was gone and is {state} again"));
        } else if !may_move(known.state, state) {
            self.moves.push(format!("{id} moved from {} to {state}", known.state));
        }
        let leaves = state.is_gone() || state == InstanceState::Deleting;
        if leaves && !known.asked_to_go && !known.foreign && !known.gone && known.state != state {
            self.lost.push(format!("{id} was {} and is {state}, though nobody asked to remove it", known.state));
        }
        known.state = state;
        known.gone = state.is_gone();
    }

    /// Records a request to delete instances.
    pub(super) fn ask_to_go(&mut self, ids: &[String]) {
        for id in ids {
            if let Some(known) = self.instances.get_mut(id) {
                known.asked_to_go = true;
            }
        }
    }

    /// Accepts that instances are missing from now on, because the process that created them was killed.
    pub(super) fn excuse(&mut self) {
        self.instances.values_mut().for_each(|known| known.asked_to_go = true);
    }

    /// Returns the existing instances that the kit created.
    pub(super) fn made(&self) -> Vec<String> {
        self.instances.iter().filter(|(_, known)| !known.foreign && !known.gone).map(|(id, _)| id.clone()).collect()
    }

    /// Lists the existing instances that the kit did not create, shortened for a message. `None` if there are none.
    pub(super) fn others(&self) -> Option<String> {
        let others: Vec<&str> = self
            .instances
            .iter()
            .filter(|(_, known)| known.foreign && !known.gone)
            .map(|(id, _)| id.as_str())
            .collect();
        let more = others.len().saturating_sub(SHOWN);
        let shown = others.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
        match (others.is_empty(), more) {
            (true, _) => None,
            (false, 0) => Some(shown),
            (false, more) => Some(format!("{shown} and {more} more")),
        }
    }

    /// Returns the number of instances that the kit has created.
    pub(super) fn made_ever(&self) -> usize {
        self.instances.values().filter(|known| !known.foreign).count()
    }

    /// Returns whether the instance exists.
    pub(super) fn is_there(&self, id: &str) -> bool {
        self.instances.get(id).is_some_and(|known| !known.gone)
    }

    pub(super) fn state(&self, id: &str) -> Option<InstanceState> {
        self.instances.get(id).filter(|known| !known.gone).map(|known| known.state)
    }
}

fn may_move(from: InstanceState, to: InstanceState) -> bool {
    use InstanceState as S;
    from == to
        || match from {
            S::Creating => !matches!(to, S::Resuming),
            S::Running | S::Suspending | S::Suspended | S::Resuming => to != S::Creating,
            S::Deleting => to.is_gone(),
            S::Deleted | S::Timeout => to.is_gone(),
            S::Unknown(_) => true,
        }
}

/// Returns an error that lists the problems, if there are any.
pub(super) fn told(problems: &[String]) -> Result<(), String> {
    if problems.is_empty() {
        return Ok(());
    }
    let mut shown: Vec<&str> = problems.iter().map(String::as_str).collect();
    shown.dedup();
    let more = shown.len().saturating_sub(SHOWN);
    let text = shown.into_iter().take(SHOWN).collect::<Vec<_>>().join("; ");
    Err(if more == 0 { text } else { format!("{text}; and {more} more") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(snapshots: &[&[(&str, i32)]]) -> Book {
        let mut book = Book::default();
        for snapshot in snapshots {
            book.enter(&snapshot.iter().map(|(id, state)| ((*id).to_owned(), *state)).collect::<Vec<_>>());
        }
        book
    }

    #[test]
    fn an_ordinary_life_raises_no_question() {
        let mut book = book(&[&[("old", 1)], &[("old", 1), ("a", 0)], &[("old", 1), ("a", 1)]]);
        assert_eq!(book.made(), ["a"]);
        book.ask_to_go(&["a".to_owned()]);
        book.enter(&[("a".to_owned(), 2)]);
        book.enter(&[("a".to_owned(), 3)]);
        book.enter(&[]);
        assert!(
            book.made().is_empty() && book.odd.is_empty() && book.moves.is_empty() && book.lost.is_empty(),
            "{book:?}"
        );
    }

    #[test]
    fn what_cannot_be_is_noted() {
        assert_eq!(book(&[&[], &[("a", 1)], &[]]).lost.len(), 1, "forgotten");
        assert_eq!(book(&[&[], &[("a", 1)], &[("a", 4)]]).lost.len(), 1, "lost");
        assert_eq!(book(&[&[], &[("a", 1)], &[("a", 0)]]).moves.len(), 1, "running to creating");
        assert_eq!(book(&[&[], &[("a", 2)]]).moves.len(), 1, "deleting at first sight");
        assert_eq!(book(&[&[], &[("a", 1)], &[("a", 3)], &[("a", 1)]]).moves.len(), 1, "back from the dead");
        assert_eq!(book(&[&[("", 1)], &[("a", 9)], &[("a", 9), ("a", 9)]]).odd.len(), 5);
    }
}
