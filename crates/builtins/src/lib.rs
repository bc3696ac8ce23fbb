//! Built-in steps of Muster, such as checkout, cache and script. [`job`] runs them as the steps of a job.
//!
//! Each step implements `muster_steps::builtin::Builtin` for its inputs, and is listed in [`registry`].
//!
//! Invariant: all output of a job passes through [`trace::Trace`], which masks it (J6 of ARCHITECTURE.md).

mod agent_process;
mod agent_resources;
pub mod artifacts;
mod blocking;
pub mod cache;
mod checkout;
mod context;
mod declared;
mod docker;
mod docker_step;
mod driver;
mod driver_state;
mod extraction;
mod files;
mod git_http;
mod git_mirror;
pub mod job;
mod job_steps;
mod mirrors;
mod named_lock;
mod oci_steps;
mod offer;
mod prepare;
mod private_file;
mod removal;
mod restored_cache;
mod running_service;
mod script;
mod script_legacy;
mod service;
pub mod share;
mod shell_text;
mod step_source;
mod sticky;
mod templates;
pub mod trace;
mod transfer;
mod trash;
mod variables;

use muster_agent_api::builtin::{
    AgentProcess, ArtifactsDownload, ArtifactsList, ArtifactsUploadList, CacheRestore, CacheSave, Checkout, Cleanup,
    DockerContainer, DriverCleanup, DriverPrepare, DriverStage, GitMirror, HostService, Prepare, Script,
    ServiceContainer,
};
use muster_steps::builtin::Registry;

pub use agent_resources::AgentResources;
pub use context::{Context, OnUserCode};
pub use declared::Declared;
pub use docker::prepared::PreparedContainers;
pub use docker::{NoEngine, find_engine};
pub use extraction::{Extraction, LimitsFrom};
pub use files::extract::extract;
pub use files::format::{Format, Level};
pub use files::select::FileSelection;
pub use restored_cache::Restored;
pub use step_source::{CREATED, LAYER_TYPE, NOTICE_TYPE, StepCache, StepFetcher, notice_annotation, registry_notices};
pub use templates::Templates;
pub use transfer::{MessageLevel, Meter, TransferContext};
pub use trash::Trash;
pub use variables::{JobVariable, ResolvedVariable, Variables};

/// Returns the built-in steps.
#[must_use]
pub fn registry() -> Registry<Context> {
    Registry::default()
        .with::<Prepare>()
        .with::<GitMirror>()
        .with::<Checkout>()
        .with::<Script>()
        .with::<CacheRestore>()
        .with::<CacheSave>()
        .with::<ArtifactsDownload>()
        .with::<ArtifactsList>()
        .with::<ArtifactsUploadList>()
        .with::<Cleanup>()
        .with::<DriverPrepare>()
        .with::<DriverStage>()
        .with::<DriverCleanup>()
        .with::<HostService>()
        .with::<ServiceContainer>()
        .with_target::<AgentProcess>()
        .with_target::<DockerContainer>()
}
