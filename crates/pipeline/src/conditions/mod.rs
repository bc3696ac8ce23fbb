//! Evaluates the conditions of rules for an event. The rules can belong to jobs, `workflow` or `include`.

pub(crate) mod clauses;
pub(crate) mod scope;
