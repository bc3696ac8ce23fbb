//! Checks the snapshots (lists of all instances) against the instances that the kit created. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::InstanceState;

/// Maximum number of problems, or of instances, that a verdict lists.
const MAX_LISTED: usize = 3;

/// State of an instance in the latest snapshot that lists it, and its history.
#[derive(Debug)]
struct TrackedInstance {
    state: InstanceState,
    /// Whether the instance existed before the kit created any.
    preexisting: bool,
    deletion_requested: bool,
    deleted: bool,
}

/// All instances that appeared in snapshots, and the violations found.
#[derive(Debug, Default)]
pub(super) struct InstanceTracker {
    instances: BTreeMap<String, TrackedInstance>,
    snapshots: usize,
    /// Messages about invalid snapshots.
    pub(super) invalid_snapshots: Vec<String>,
    /// Messages about invalid state changes.
    pub(super) invalid_transitions: Vec<String>,
    /// Messages about instances that were deleted or disappeared without a request.
    pub(super) lost: Vec<String>,
}

impl InstanceTracker {
    pub(super) fn record_snapshot(&mut self, snapshot: &[(String, i32)]) {
        let is_first_snapshot = self.snapshots == 0;
        self.snapshots += 1;
        let mut listed = BTreeSet::new();
        for (id, number) in snapshot {
            let state = InstanceState::from_number(*number);
            if id.is_empty() {
                self.invalid_snapshots.push("an instance has an empty ID".to_owned());
                continue;
            }
            if !listed.insert(id) {
                self.invalid_snapshots.push(format!("{id} is listed twice in one snapshot"));
            }
            if let InstanceState::Unknown(number) = state {
                self.invalid_snapshots.push(format!("{id} has the unknown state {number}"));
            }
            self.record_state(id, state, is_first_snapshot);
        }
        for (id, instance) in &mut self.instances {
            if listed.contains(id) || instance.deleted {
                continue;
            }
            if !instance.deletion_requested && !instance.preexisting {
                self.lost.push(format!(
                    "{id} was {} and is missing from the next snapshot, but its deletion was not requested",
                    instance.state
                ));
            }
            instance.deleted = true;
        }
    }

    fn record_state(&mut self, id: &str, state: InstanceState, is_first_snapshot: bool) {
        let Some(instance) = self.instances.get_mut(id) else {
            if !is_first_snapshot && !matches!(state, InstanceState::Creating | InstanceState::Running) {
                self.invalid_transitions.push(format!("{id} is {state} when it is first listed"));
            }
            let instance = TrackedInstance {
                state,
                preexisting: is_first_snapshot,
                deletion_requested: false,
                deleted: state.is_deleted(),
            };
            self.instances.insert(id.to_owned(), instance);
            return;
        };
        if instance.deleted && !state.is_deleted() && !instance.preexisting {
            self.invalid_transitions.push(format!("{id} was deleted and is {state} again"));
        } else if !can_transition(instance.state, state) {
            self.invalid_transitions.push(format!("{id} changed from {} to {state}", instance.state));
        }
        let is_removed = state.is_deleted() || state == InstanceState::Deleting;
        if is_removed
            && !instance.deletion_requested
            && !instance.preexisting
            && !instance.deleted
            && instance.state != state
        {
            self.lost.push(format!("{id} was {} and is {state}, but its deletion was not requested", instance.state));
        }
        instance.state = state;
        instance.deleted = state.is_deleted();
    }

    pub(super) fn record_deletion_request(&mut self, ids: &[String]) {
        for id in ids {
            if let Some(instance) = self.instances.get_mut(id) {
                instance.deletion_requested = true;
            }
        }
    }

    /// Accepts that instances disappear from now on, because the process that created them was killed.
    pub(super) fn ignore_missing(&mut self) {
        self.instances.values_mut().for_each(|instance| instance.deletion_requested = true);
    }

    /// Returns the existing instances that the kit created.
    pub(super) fn existing_created(&self) -> Vec<String> {
        self.instances
            .iter()
            .filter(|(_, instance)| !instance.preexisting && !instance.deleted)
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Lists the existing instances that the kit did not create, shortened for a message.
    /// `None` if there are none.
    pub(super) fn preexisting(&self) -> Option<String> {
        let preexisting: Vec<&str> = self
            .instances
            .iter()
            .filter(|(_, instance)| instance.preexisting && !instance.deleted)
            .map(|(id, _)| id.as_str())
            .collect();
        let more = preexisting.len().saturating_sub(MAX_LISTED);
        let shown = preexisting.iter().take(MAX_LISTED).copied().collect::<Vec<_>>().join(", ");
        match (preexisting.is_empty(), more) {
            (true, _) => None,
            (false, 0) => Some(shown),
            (false, more) => Some(format!("{shown} and {more} more")),
        }
    }

    /// Returns the number of instances that the kit has created, including those that were deleted since.
    pub(super) fn created_count(&self) -> usize {
        self.instances.values().filter(|instance| !instance.preexisting).count()
    }

    pub(super) fn exists(&self, id: &str) -> bool {
        self.instances.get(id).is_some_and(|instance| !instance.deleted)
    }

    pub(super) fn state(&self, id: &str) -> Option<InstanceState> {
        self.instances.get(id).filter(|instance| !instance.deleted).map(|instance| instance.state)
    }
}

fn can_transition(from: InstanceState, to: InstanceState) -> bool {
    use InstanceState as S;
    from == to
        || match from {
            S::Creating => !matches!(to, S::Resuming),
            S::Running | S::Suspending | S::Suspended | S::Resuming => to != S::Creating,
            S::Deleting => to.is_deleted(),
            S::Deleted | S::Timeout => to.is_deleted(),
            S::Unknown(_) => true,
        }
}

pub(super) fn problems_to_result(problems: &[String]) -> Result<(), String> {
    if problems.is_empty() {
        return Ok(());
    }
    let mut shown: Vec<&str> = problems.iter().map(String::as_str).collect();
    shown.dedup();
    let more = shown.len().saturating_sub(MAX_LISTED);
    let text = shown.into_iter().take(MAX_LISTED).collect::<Vec<_>>().join("; ");
    Err(if more == 0 { text } else { format!("{text}; and {more} more") })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a tracker that has recorded these snapshots.
    ///
    /// The states are 0 (creating), 1 (running), 2 (deleting), 3 (deleted) and 4 (timeout).
    fn tracker(snapshots: &[&[(&str, i32)]]) -> InstanceTracker {
        let mut tracker = InstanceTracker::default();
        for snapshot in snapshots {
            tracker.record_snapshot(&snapshot.iter().map(|(id, state)| ((*id).to_owned(), *state)).collect::<Vec<_>>());
        }
        tracker
    }

    #[test]
    fn normal_lifecycle_has_no_problems() {
        let mut tracker = tracker(&[&[("old", 1)], &[("old", 1), ("a", 0)], &[("old", 1), ("a", 1)]]);
        assert_eq!(tracker.existing_created(), ["a"]);
        tracker.record_deletion_request(&["a".to_owned()]);
        tracker.record_snapshot(&[("a".to_owned(), 2)]);
        tracker.record_snapshot(&[("a".to_owned(), 3)]);
        tracker.record_snapshot(&[]);
        assert!(
            tracker.existing_created().is_empty()
                && tracker.invalid_snapshots.is_empty()
                && tracker.invalid_transitions.is_empty()
                && tracker.lost.is_empty(),
            "{tracker:?}"
        );
    }

    #[test]
    fn inconsistent_snapshots_are_reported() {
        assert_eq!(tracker(&[&[], &[("a", 1)], &[]]).lost.len(), 1, "a missing instance must be reported");
        assert_eq!(
            tracker(&[&[], &[("a", 1)], &[("a", 4)]]).lost.len(),
            1,
            "the state timeout counts as deleted, and must be reported without a deletion request"
        );
        assert_eq!(
            tracker(&[&[], &[("a", 1)], &[("a", 0)]]).invalid_transitions.len(),
            1,
            "running to creating must be reported"
        );
        assert_eq!(
            tracker(&[&[], &[("a", 2)]]).invalid_transitions.len(),
            1,
            "a first listing as deleting must be reported"
        );
        assert_eq!(
            tracker(&[&[], &[("a", 1)], &[("a", 3)], &[("a", 1)]]).invalid_transitions.len(),
            1,
            "deleted to running must be reported"
        );
        assert_eq!(
            tracker(&[&[("", 1)], &[("a", 9)], &[("a", 9), ("a", 9)]]).invalid_snapshots.len(),
            5,
            "expected an empty ID, an unknown state three times, and an instance that is listed twice"
        );
    }
}
