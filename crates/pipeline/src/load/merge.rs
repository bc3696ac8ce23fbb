//! The deep merge of `include` and `extends` (pipeline-yaml 2.3, 2.4).

use std::sync::Arc;

use crate::node::{Map, Node, Value};

/// What a load may still spend on copying and walking, counted in values.
#[derive(Debug)]
pub(super) struct Budget {
    left: usize,
}

impl Budget {
    pub(super) fn new(values: usize) -> Self {
        Self { left: values }
    }

    /// Takes `values` from the budget; what is beyond it is lost, and [`Budget::is_spent`] says so from then on.
    pub(super) fn spend(&mut self, values: usize) {
        self.left = self.left.saturating_sub(values);
    }

    /// Whether nothing is left: the caller stops, and the load reports a configuration that is too large.
    pub(super) fn is_spent(&self) -> bool {
        self.left == 0
    }
}

/// Merges `over` into `base`: maps key by key, everything else (also null) replaces what was there.
///
/// Costs the number of entries that are copied or looked at, not their subtrees, which are shared.
pub(super) fn merge_into(base: &mut Map, over: &Map, budget: &mut Budget) {
    budget.spend(over.len());
    for (key, entry) in over.iter() {
        if budget.is_spent() {
            return;
        }
        let below = base.get(key).and_then(Node::as_map);
        let node = match (below, entry.node.as_map()) {
            (Some(below), Some(above)) => {
                budget.spend(below.len());
                let mut merged = below.clone();
                merge_into(&mut merged, above, budget);
                Node::new(Value::Map(Arc::new(merged)), entry.node.span)
            }
            _ => entry.node.clone(),
        };
        base.insert(Arc::clone(key), entry.key_span, node);
    }
}
