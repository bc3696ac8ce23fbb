//! Evaluates the conditions of rules against an event: those of jobs, of `workflow` and of `include`.

pub(crate) mod clauses;
pub(crate) mod scope;
