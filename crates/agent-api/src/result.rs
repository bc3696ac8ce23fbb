//! What a job ended with: the durable result in the agent's spool, and the tree that `muster ci show` prints.

use muster_job::{FailureReason, TerminationCause};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a job used, in its tree for people.
const USED: &str = "used";

/// The result of one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    /// The outcome.
    pub outcome: Outcome,
    /// One short sentence, as in the last line of the trace: `exit status 1`.
    #[serde(default)]
    pub message: String,
    /// The log's length in bytes, when the job had ended.
    pub log_bytes: u64,
    /// The log's CRC-32 (IEEE).
    pub log_crc32: u32,
    /// Every step, in the order in which they started.
    pub tree: StepNode,
    /// What the job used; `None` if no process of it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Used>,
}

impl JobResult {
    /// The tree for people to look at, with what the job used at its root.
    #[must_use]
    pub fn to_tree(&self) -> Option<Value> {
        let mut tree = serde_json::to_value(&self.tree).ok()?;
        if let (Some(root), Some(used)) = (tree.as_object_mut(), &self.used) {
            root.insert(USED.to_owned(), serde_json::to_value(used).ok()?);
        }
        Some(tree)
    }
}

/// What a job used of its machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Used {
    /// From its start to its end, in milliseconds.
    pub wall_ms: u64,
    /// CPU time, in milliseconds; none: it was not counted.
    pub cpu_ms: Option<u64>,
    /// The most memory at once, in bytes; none: it was not counted.
    pub memory_bytes: Option<u64>,
    /// No cgroup counted: the CPU time is that of the processes that were waited for or had to be ended, the memory that of the
    /// largest of them.
    pub by_processes: bool,
    /// How long something in its cgroup, or without one on the machine, waited for a CPU, in milliseconds.
    pub cpu_stalled_ms: Option<u64>,
    /// The same for memory.
    pub memory_stalled_ms: Option<u64>,
    /// The same for I/O.
    pub io_stalled_ms: Option<u64>,
    /// Why it ran without its share of the machine; empty: it had it, or none was wanted.
    pub no_share: String,
}

impl Used {
    /// What a tree of [`JobResult::to_tree`] says at its root.
    #[must_use]
    pub fn of_tree(tree: &Value) -> Option<Self> {
        serde_json::from_value(tree.get(USED)?.clone()).ok()
    }
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Outcome {
    /// Everything that had to pass did.
    Success,
    /// Something failed.
    Failed {
        /// GitLab's reason.
        reason: FailureReason,
        /// The exit status of the user's script, where that is what failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// What ended the job early, if something did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<TerminationCause>,
    },
}

/// One step of the result tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepNode {
    /// The step's name: `get_sources`, `step_script`, or the author's.
    pub name: String,
    /// How it ended.
    pub status: StepStatus,
    /// Milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// Milliseconds.
    pub duration_ms: u64,
    /// The exit status of the process, for a step that is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why it failed or was skipped.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What ended it before its time, if something did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<TerminationCause>,
    /// Steps inside it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepNode>,
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum StepStatus {
    Success,
    Failure,
    Cancelled,
    Skipped,
}
