//! Output of the engine since its driver last collected it: actions, decisions, and ledger rows to write.

use std::collections::BTreeSet;

use crate::decision::{Decision, DecisionKind};
use crate::event::Action;
use crate::ledger::RowKey;
use crate::time::Now;

/// Output of the engine that its driver has not collected yet.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    actions: Vec<Action>,
    decisions: Vec<Decision>,
    dirty: BTreeSet<RowKey>,
}

impl Outbox {
    /// Adds an action for the driver to perform.
    pub(super) fn push_action(&mut self, action: Action) {
        self.actions.push(action);
    }

    /// Adds a decision to the history.
    pub(super) fn record_decision(&mut self, now: Now, kind: DecisionKind) {
        self.decisions.push(Decision { unix: now.unix, kind });
    }

    /// Marks rows of the ledger whose value may have changed.
    pub(super) fn mark_dirty(&mut self, rows: impl IntoIterator<Item = RowKey>) {
        self.dirty.extend(rows);
    }

    /// Returns the actions since the last call, in the order in which they were decided.
    pub(super) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// Returns the decisions since the last call, the oldest first.
    pub(super) fn take_decisions(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.decisions)
    }

    /// Returns the rows that were marked since the last call.
    pub(super) fn take_dirty(&mut self) -> BTreeSet<RowKey> {
        std::mem::take(&mut self.dirty)
    }
}
