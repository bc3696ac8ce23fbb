//! A job's share of a machine that it uses together with other jobs.

use serde::{Deserialize, Serialize};

/// A job's share of its machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceShare {
    /// Cgroup of the job's slot, relative to the root of each hierarchy. Empty means no cgroup.
    pub cgroup: String,
    /// Number of slots that the job occupies, which is its weight among other jobs.
    pub slots: u32,
    /// Memory that is protected from reclaim, in bytes. 0 means that none is protected.
    pub memory_bytes: u64,
    /// Whether to measure how long the job waited for resources, in addition to what it used.
    pub measure: bool,
    /// Directory that is shared with other jobs of the project.
    pub context: Option<StickyContext>,
}

/// A directory that jobs of one project and protection level share on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StickyContext {
    /// Directory of all contexts on the machine.
    pub root: String,
    /// Name of this context's directory in `root`. One path segment.
    pub name: String,
    /// Maximum size of all contexts together, in bytes. 0 means no limit.
    ///
    /// After the job, the least recently used contexts are deleted until the limit holds.
    pub max_size_bytes: u64,
    /// Time without use after which a context is deleted, in seconds. 0 means no limit.
    pub max_age_s: u64,
}
