//! The steps that come with Muster: checkout, cache, artifacts, script; and [`job`], what stands around the steps of a job.
//!
//! Each is an implementation of `muster_steps::builtin::Builtin` for its inputs, and listed in [`registry`].
//!
//! Invariants: whatever a job prints passes [`trace::Trace`], so no masked value reaches the log (J6); a phase that
//! is optional, like a cache, never fails the job.

mod agent_process;
pub mod artifacts;
mod blocking;
pub mod cache;
mod checkout;
mod context;
mod extraction;
mod files;
pub mod job;
mod prepare;
mod removal;
mod script;
pub mod share;
mod site;
mod sticky;
mod templates;
pub mod trace;
mod trash;
mod variables;

use muster_agent_api::builtin::{
    AgentProcess, ArtifactsDownload, ArtifactsUploads, CacheRestore, CacheSave, Checkout, Cleanup, Prepare, Script,
};
use muster_steps::builtin::Registry;

pub use context::{Context, OnUserCode, Shared};
pub use extraction::{Extraction, LimitsFrom};
pub use files::extract::extract;
pub use files::format::{Format, Level};
pub use files::select::Wanted;
pub use site::{Meter, Site, Tone};
pub use templates::Templates;
pub use trash::Trash;
pub use variables::{JobVariable, Resolved, Variables};

/// Returns the built-in steps.
#[must_use]
pub fn registry() -> Registry<Context> {
    Registry::default()
        .with::<Prepare>()
        .with::<Checkout>()
        .with::<Script>()
        .with::<CacheRestore>()
        .with::<CacheSave>()
        .with::<ArtifactsDownload>()
        .with::<ArtifactsUploads>()
        .with::<Cleanup>()
        .with_place::<AgentProcess>()
}
