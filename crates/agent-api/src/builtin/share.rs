//! A job's part of a machine that it shares with other jobs.

use serde::{Deserialize, Serialize};

/// What the job gets there.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Share {
    /// The cgroup of its slot, below the root of each hierarchy; empty: none.
    pub cgroup: String,
    /// How many slots it has: its weight among the others.
    pub slots: u32,
    /// Memory that is taken from it last, in bytes; 0: no such promise.
    pub memory_bytes: u64,
    /// Say how long it waited for the machine, beside what it used.
    pub measure: bool,
    /// What jobs of its project leave for each other.
    pub context: Option<StickyContext>,
}

/// A directory that jobs of one project and protection level find again on the same machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StickyContext {
    /// Where all contexts of the machine are kept.
    pub root: String,
    /// Its own name there: one path segment.
    pub name: String,
    /// All contexts together are brought below this after the job, those first that were used longest ago, in bytes;
    /// 0: no limit.
    pub size_max_bytes: u64,
    /// One that was not used for so long is removed, in seconds; 0: no limit.
    pub age_max_s: u64,
}
