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
    /// All jobs of a project are checked out in the same directory, where the machine is the job's alone: that is the
    /// machine's to say (`Share::is_alone`), since `vm_isolation` and `max_use_count` take effect with
    /// a restart, and this with the next job.
    pub use_common_build_dir: bool,
}
