//! Deep merge for `include` and `extends` (docs/spec/pipeline-yaml.md, sections 2.3 and 2.4).

use std::sync::Arc;

use crate::node::{Map, Node, Value};

/// Number of values that loading may still copy or visit.
#[derive(Debug)]
pub(super) struct Budget {
    remaining: usize,
}

impl Budget {
    pub(super) fn new(values: usize) -> Self {
        Self { remaining: values }
    }

    pub(super) fn spend(&mut self, values: usize) {
        self.remaining = self.remaining.saturating_sub(values);
    }

    /// Returns true if no more values may be copied or visited. The caller must then stop, and the loader reports that
    /// the configuration is too large.
    pub(super) fn is_spent(&self) -> bool {
        self.remaining == 0
    }
}

/// Merges `over` into `base`. Maps are merged by key. Any other value of `over`, including null, replaces the value in
/// `base`. Spends the number of entries that are copied or visited.
pub(super) fn merge_into(base: &mut Map, over: &Map, budget: &mut Budget) {
    budget.spend(over.len());
    for (key, entry) in over.iter() {
        if budget.is_spent() {
            return;
        }
        let base_map = base.get(key).and_then(Node::as_map);
        let node = match (base_map, entry.node.as_map()) {
            (Some(base_map), Some(over_map)) => {
                budget.spend(base_map.len());
                let mut merged = base_map.clone();
                merge_into(&mut merged, over_map, budget);
                Node::new(Value::Map(Arc::new(merged)), entry.node.span)
            }
            _ => entry.node.clone(),
        };
        base.insert(Arc::clone(key), entry.key_span, node);
    }
}
