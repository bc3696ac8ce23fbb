//! Share of a machine that several jobs use.

use serde::{Deserialize, Serialize};

/// Share of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceShare {
    /// Cgroup of the job's slot, relative to the root of each hierarchy. Empty means no cgroup.
    pub cgroup: String,
    /// Number of slots that the job occupies, which is its weight.
    pub slots: u32,
    /// Memory protected from reclaim, in bytes. 0 means none.
    pub memory_bytes: u64,
    /// Whether to measure how long the job waited for resources.
    pub measure: bool,
    /// Directory shared with other jobs of the project.
    pub context: Option<StickyContext>,
}

/// Directory that jobs of one project and protection level share on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StickyContext {
    /// Directory of all contexts on the machine.
    pub root: String,
    /// Name of this context's directory in `root`.
    pub name: String,
    /// Maximum size of all contexts in bytes. 0 means no limit.
    ///
    /// After a job, the least recently used contexts are deleted down to this size.
    pub max_size_bytes: u64,
    /// Time without use after which a context is deleted, in seconds. 0 means no limit.
    pub max_age_s: u64,
}
