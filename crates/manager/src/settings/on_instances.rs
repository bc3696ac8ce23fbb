//! What the configuration says of jobs on instances, beside what makes these.

use serde::{Deserialize, Serialize};

/// `[runners.instance]`, and of `vm_isolation` what is about jobs. Stored with a job, so without secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OnInstances {
    /// The image of machines for jobs that name none; variables are put in.
    pub image: String,
    /// Patterns of images that jobs may name; none: any.
    pub allowed_images: Vec<String>,
    /// `use_common_build_dir`.
    pub build_dir: BuildDir,
}

/// Where jobs on instances are checked out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildDir {
    /// Each slot has a directory of its own.
    #[default]
    Own,
    /// All jobs of a project in the same one: no two of them meet there.
    Common,
    /// In the same one, says the configuration; but they could meet there.
    CommonIgnored,
}
