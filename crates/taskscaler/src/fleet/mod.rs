//! What operators are told of a fleet: how it is, and why.
//!
//! ```text
//! running manager: engine --Status--> Report  \
//!                                              explain(subject) --> Explained: an answer, and the decisions behind it
//! stopped one:     books  ----------> Report  /        ^
//!                                        history ------+
//! ```

mod explain;
mod offline;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::Status;
use crate::history::Told;

pub use explain::{Recall, Subject, explain};
pub use offline::{OfflineFleet, offline};

/// The version of [`Reports`] and [`Explanations`] as JSON: fields are added within it, never changed.
pub const VERSION: u32 = 1;

/// Where an answer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A manager at work.
    Manager,
    /// What a manager has on disk.
    Store,
}

/// How all fleets of a manager are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reports {
    /// [`VERSION`].
    pub version: u32,
    /// When, in seconds since 1970.
    pub unix: i64,
    /// By whom.
    pub source: Source,
    /// The fleets.
    pub fleets: Vec<Report>,
}

/// How the instances of one runner are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The runner.
    pub runner: String,
    /// Why its scaler does not run, or, from the store, why it says less than a manager would; none where it runs.
    pub down: Option<String>,
    /// Why no more jobs are requested for it now; none where they are.
    pub no_requests: Option<String>,
    /// Everything that is known.
    pub status: Option<Status>,
    /// What instances use, where the plugin says: by their names, as [`name_among`] all groups they are.
    #[serde(default)]
    pub resources: BTreeMap<String, Used>,
}

impl Report {
    /// Its books cannot be read, so that nothing is known of its instances.
    #[must_use]
    pub fn is_unread(&self, source: Source) -> bool {
        source == Source::Store && self.status.is_none()
    }

    /// What an instance uses, where that is known.
    #[must_use]
    pub fn used_by(&self, group: &str, id: &str) -> Option<&Used> {
        let groups = self.status.as_ref().map_or(0, |status| status.groups.len());
        self.resources.get(&name_among(groups, group, id))
    }
}

/// An instance's name among those of so many groups. Its id is unique only in its group.
#[must_use]
pub fn name_among(groups: usize, group: &str, id: &str) -> String {
    if groups > 1 { format!("{group}/{id}") } else { id.to_owned() }
}

/// What an instance used when it was looked at last.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Used {
    /// Seconds of processors since its start.
    pub cpu_seconds: f64,
    /// Memory.
    pub memory_bytes: u64,
    /// The most memory that it may use; none: not known, or no limit.
    pub memory_limit_bytes: Option<u64>,
    /// Processes.
    pub processes: u32,
}

/// The answers to one question, of all fleets that can answer it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanations {
    /// [`VERSION`].
    pub version: u32,
    /// When, in seconds since 1970.
    pub unix: i64,
    /// By whom.
    pub source: Source,
    /// The answers.
    pub fleets: Vec<Explained>,
}

/// The answer of one fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// The runner.
    pub runner: String,
    /// The fleet knows what was asked about.
    pub known: bool,
    /// The answer, a sentence each.
    pub answer: Vec<String>,
    /// The decisions behind it, the latest last.
    pub decisions: Vec<Told>,
    /// Older ones of the last day are left out: there are more than an answer has.
    #[serde(default)]
    pub is_cut: bool,
    /// Its books cannot be read: the answer says why, and what there is besides is from its history alone.
    #[serde(default)]
    pub is_unread: bool,
}
