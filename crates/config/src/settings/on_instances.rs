//! Settings of jobs on instances, apart from the settings that create the instances.

use serde::{Deserialize, Serialize};

/// `[runners.instance]`, and the part of `vm_isolation` that concerns jobs. Stored with a job, so it contains no secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OnInstances {
    /// Image of virtual machines for jobs that do not specify one. Variables are expanded.
    pub image: String,
    /// Patterns of images that jobs may name. Empty allows every image.
    pub allowed_images: Vec<String>,
    /// Whether all jobs of a project use the same checkout directory. Applies only to a job whose machine no other job ever
    /// uses.
    pub use_common_build_dir: bool,
}
