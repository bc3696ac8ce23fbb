//! The steps that come with Muster: checkout, cache, artifacts, script; and `builtin://job`, which strings them
//! together to what GitLab calls a job.
//!
//! Invariants: whatever a job prints passes [`trace::Trace`], so no masked value reaches the log (J6); a phase that
//! is optional, like a cache, never fails the job.

pub mod artifacts;
mod author_steps;
mod blocking;
pub mod cache;
mod checkout;
mod context;
mod failure;
mod files;
pub mod job;
mod script;
pub mod share;
mod site;
mod sticky;
pub mod trace;
mod trash;
mod variables;

pub use checkout::Templates;
pub use context::{Context, OnUserCode, Shared};
pub use failure::Failure;
pub use files::extract::{Extraction, LimitsFrom, extract};
pub use files::format::{Format, Level};
pub use files::select::Wanted;
pub use site::{Meter, Site, Tone};
pub use trash::Trash;
pub use variables::{JobVariable, Resolved, Variables};
