//! Limits the total size of all jobs.
//!
//! Nodes are shared by aliases, `extends`, `!reference`, `default` and `parallel`, but each job owns copies of its
//! texts. A small file can therefore expand to more than the available memory.

use crate::config::parsing::Problems;
use crate::diagnostic::Diagnostic;
use crate::limits::MAX_JOBS_BYTES;
use crate::node::{Node, Span, Value};

pub(crate) const VALUE_BYTES: usize = 32;

pub(crate) fn bytes(node: &Node) -> usize {
    let inner = match &node.value {
        Value::String(text) => text.len(),
        Value::List(items) => items.iter().map(bytes).sum(),
        Value::Map(map) => map.iter().map(|(key, entry)| key.len().saturating_add(bytes(&entry.node))).sum(),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Reference(_) => 0,
    };
    inner.saturating_add(VALUE_BYTES)
}

#[derive(Debug, Default)]
pub(crate) struct SizeBudget {
    bytes: usize,
}

impl SizeBudget {
    /// Adds `bytes` to the total. Returns true if the total is within the limit. Reports an error only the first time
    /// that the total exceeds it.
    pub(crate) fn add(&mut self, bytes: usize, span: Span, problems: &mut Problems) -> bool {
        let was_within = self.bytes <= MAX_JOBS_BYTES;
        self.bytes = self.bytes.saturating_add(bytes);
        let is_within = self.bytes <= MAX_JOBS_BYTES;
        if was_within && !is_within {
            let message = format!("the total size of all jobs exceeds {} MiB", MAX_JOBS_BYTES / 1024 / 1024);
            let help = "use fewer defaults, global variables or jobs, or move long scripts into files";
            problems.push(Diagnostic::error(span, message).help(help));
        }
        is_within
    }
}
