//! What the values of a configuration weigh once each job has them for itself.
//!
//! Nodes are shared: by aliases, `extends`, `!reference`, `default` and `parallel`. Jobs own their texts. A small file can
//! therefore stand for more than fits into memory, and has to be weighed before its jobs are made.

use crate::config::parsing::Problems;
use crate::diagnostic::Diagnostic;
use crate::limits::JOBS_BYTES;
use crate::node::{Node, Span, Value};

/// What a value takes beside its text, in bytes.
pub(crate) const VALUE_BYTES: usize = 32;

/// The bytes that a value takes, with all that is in it.
pub(crate) fn bytes(node: &Node) -> usize {
    let inner = match &node.value {
        Value::String(text) => text.len(),
        Value::List(items) => items.iter().map(bytes).sum(),
        Value::Map(map) => map.iter().map(|(key, entry)| key.len().saturating_add(bytes(&entry.node))).sum(),
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Reference(_) => 0,
    };
    inner.saturating_add(VALUE_BYTES)
}

/// What all jobs weigh so far.
#[derive(Debug, Default)]
pub(crate) struct SizeBudget {
    bytes: usize,
}

impl SizeBudget {
    /// Adds a weight that is written at `span`. Answers whether all is within the limit; tells where it is passed.
    pub(crate) fn add(&mut self, bytes: usize, span: Span, problems: &mut Problems) -> bool {
        let was_within = self.bytes <= JOBS_BYTES;
        self.bytes = self.bytes.saturating_add(bytes);
        let is_within = self.bytes <= JOBS_BYTES;
        if was_within && !is_within {
            let message = format!("all jobs written out come to more than {} MiB", JOBS_BYTES / 1024 / 1024);
            let help = "use less `default` and fewer global variables, fewer jobs, or files instead of long scripts";
            problems.push(Diagnostic::error(span, message).help(help));
        }
        is_within
    }
}
