//! Status and explanations of a fleet for operators.
//!
//! ```text
//! running manager:  Engine --ScalerStatus--> Report --\
//!                                                      +--> explain(subject) --> Explanation: summary and decisions
//! stopped manager:  ledger ----------------> Report --/        ^
//!                                                              |
//!                                                  history ----/
//! ```

mod explain;
mod from_disk;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::ScalerStatus;
use crate::history::HistoryEntry;

pub use explain::{HistoryReader, MAX_DECISIONS, Subject, explain};
pub use from_disk::{FleetFromDisk, read_fleets};

/// Version of the JSON format of [`Reports`] and [`ExplanationSet`]. Within a version, fields are only added.
pub const VERSION: u32 = 1;

/// Source of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportSource {
    /// A running manager.
    Manager,
    /// The ledgers and histories on disk.
    Disk,
}

/// Status of all fleets of a manager.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reports {
    /// [`VERSION`].
    pub version: u32,
    /// Time of the answer, in seconds since 1970.
    pub unix: i64,
    /// Source of the answer.
    pub source: ReportSource,
    /// One report per runner.
    pub fleets: Vec<Report>,
}

/// Status of the instances of one runner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the runner.
    pub runner: String,
    /// Why the scaler is not running, or why the report is incomplete. `None` if the scaler is running.
    pub unavailable_reason: Option<String>,
    /// Why the manager requests no jobs at the moment. `None` if it requests jobs.
    pub requests_paused_reason: Option<String>,
    /// `None` if the status is unknown.
    pub status: Option<ScalerStatus>,
    /// Resource usage of the instances, by the names that [`name_among`] returns.
    #[serde(default)]
    pub resources: BTreeMap<String, InstanceUsage>,
}

impl Report {
    /// Whether the ledger is unreadable, so that nothing is known about the instances.
    #[must_use]
    pub fn is_ledger_unreadable(&self, source: ReportSource) -> bool {
        source == ReportSource::Disk && self.status.is_none()
    }

    /// Returns the resource usage of an instance, if it is known.
    #[must_use]
    pub fn usage_of(&self, group: &str, id: &str) -> Option<&InstanceUsage> {
        let groups = self.status.as_ref().map_or(0, |status| status.groups.len());
        self.resources.get(&name_among(groups, group, id))
    }
}

/// Returns a unique name of an instance: its ID, with the name of its group if there are several groups.
#[must_use]
pub fn name_among(groups: usize, group: &str, id: &str) -> String {
    if groups > 1 { format!("{group}/{id}") } else { id.to_owned() }
}

/// Resource usage of an instance at the last sample.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct InstanceUsage {
    /// CPU time since the start of the instance, in seconds.
    pub cpu_seconds: f64,
    /// Used memory, in bytes.
    pub memory_bytes: u64,
    /// Memory limit, in bytes. `None` means unknown or no limit.
    pub memory_limit_bytes: Option<u64>,
    /// Number of processes.
    pub processes: u32,
}

/// Explanations of a subject by the fleets that know it, or by all fleets if no fleet knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExplanationSet {
    /// [`VERSION`].
    pub version: u32,
    /// Time of the answer, in seconds since 1970.
    pub unix: i64,
    /// Source of the answer.
    pub source: ReportSource,
    /// One explanation per runner.
    pub fleets: Vec<Explanation>,
}

/// Explanation by one fleet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// Name of the runner.
    pub runner: String,
    /// Whether the fleet knows the subject.
    pub found: bool,
    /// Summary, one sentence per item.
    pub summary: Vec<String>,
    /// Decisions that led to the current state, the latest last.
    pub decisions: Vec<HistoryEntry>,
    /// Whether older decisions of the last day were omitted.
    #[serde(default)]
    pub truncated: bool,
    /// Whether the ledger is unreadable, so that only the history was used.
    #[serde(default)]
    pub ledger_unreadable: bool,
}
