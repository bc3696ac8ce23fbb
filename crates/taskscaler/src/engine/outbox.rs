//! Output of the engine that its driver has not collected yet.

use std::collections::BTreeSet;

use crate::decision::{Decision, DecisionKind};
use crate::event::Action;
use crate::ledger::RowKey;
use crate::time::Now;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    actions: Vec<Action>,
    decisions: Vec<Decision>,
    dirty: BTreeSet<RowKey>,
}

impl Outbox {
    pub(super) fn push_action(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(super) fn record_decision(&mut self, now: Now, kind: DecisionKind) {
        self.decisions.push(Decision { unix: now.unix, kind });
    }

    pub(super) fn mark_dirty(&mut self, rows: impl IntoIterator<Item = RowKey>) {
        self.dirty.extend(rows);
    }

    pub(super) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    pub(super) fn take_decisions(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.decisions)
    }

    pub(super) fn take_dirty(&mut self) -> BTreeSet<RowKey> {
        std::mem::take(&mut self.dirty)
    }
}
