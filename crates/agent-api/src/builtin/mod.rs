//! Inputs of the built-in steps.

mod docker;
mod driver;
mod git_mirror;
mod inputs;
mod record;
mod resource_share;
mod service;
mod unpack;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use docker::{
    ContainerSpec, DockerContainer, DockerEngine, DockerNetwork, DockerVolume, ImageSpec, LogLine, PreparedPolicy,
    RegistryCredentials, ServiceContainer,
};
pub use driver::{
    BUILDS_DIR as DRIVER_BUILDS_DIR, CACHE_DIR as DRIVER_CACHE_DIR, Driver, DriverCleanup, DriverDirectories,
    DriverPrepare, DriverProgram, DriverStage, LAYOUT as DRIVER_LAYOUT,
};
pub use git_mirror::GitMirror;
pub(crate) use inputs::is_zero;
pub use inputs::{
    AgentProcess, ArtifactSource, ArtifactsDownload, ArtifactsList, ArtifactsUpload, ArtifactsUploadList, CacheEntry,
    CacheObject, CacheRestore, CacheSave, Checkout, ChunkCache, ChunkStore, ChunkUpload, Cleanup, Prepare,
    ProvenanceInfo, Rewrite, Script, Tls,
};
pub use resource_share::{ResourceShare, StickyContext};
pub use service::HostService;
pub use unpack::UnpackLimits;

/// Global git configuration in the job's temporary directory, for jobs with [`Checkout::credential_helper`].
pub const GLOBAL_GIT_CONFIG: &str = ".glr.gconf";

/// Inputs of one built-in step.
pub trait Inputs: Serialize + DeserializeOwned {
    /// Name of the step without `builtin://`.
    const BUILTIN: &'static str;

    /// Returns the inputs that the result of the job shows.
    ///
    /// By default, the result shows no inputs, because they may contain signed URLs, tokens and texts of the operator.
    fn record(&self) -> Map<String, Value> {
        Map::new()
    }
}
