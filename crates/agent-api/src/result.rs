//! Result of a job: the record in the spool, and the tree of `muster ci show`.

use muster_job::{FailureReason, TerminationCause};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::call_record::{BUILTIN_PREFIX, CallRecord, MASKED, masked_value};
use crate::call_record::{cut, json_size_within};

const USAGE_KEY: &str = "used";
const MAX_RECORDS_BYTES: usize = 4 * 1024 * 1024;

/// Maximum size of a result as JSON, in bytes. An agent shortens a larger result, and a client rejects it.
///
/// The client has this limit because a parsed result may need much more memory, and because a job may answer instead of
/// the agent in its container.
pub const MAX_RESULT_BYTES: usize = 2 * MAX_RECORDS_BYTES;
/// Maximum size of a result with [`Development::full_records`], in bytes, enforced like [`MAX_RESULT_BYTES`].
///
/// [`Development::full_records`]: crate::development::Development::full_records
pub const MAX_FULL_RESULT_BYTES: usize = 64 * 1024 * 1024;
const MAX_SHORT_TEXT_BYTES: usize = 1024;

/// Result of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    /// How the job ended.
    pub outcome: Outcome,
    /// Short message in the last line of the trace, such as `exit status 1`.
    #[serde(default)]
    pub message: String,
    /// Final length of the log in bytes. 0 for GitLab's step-runner.
    pub log_bytes: u64,
    /// CRC-32 (IEEE) of the log. 0 for GitLab's step-runner.
    pub log_crc32: u32,
    /// Result tree of the steps, in order of their start.
    pub tree: StepNode,
    /// Resources that the job used. `None` means unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<ResourceUsage>,
}

impl JobResult {
    /// Returns the human-readable tree, with the resource usage at its root.
    #[must_use]
    pub fn to_tree(&self) -> Option<Value> {
        let mut tree = serde_json::to_value(&self.tree).ok()?;
        if let (Some(root), Some(used)) = (tree.as_object_mut(), &self.used) {
            root.insert(USAGE_KEY.to_owned(), serde_json::to_value(used).ok()?);
        }
        Some(tree)
    }

    /// Returns the human-readable tree with at most `max` bytes of JSON, if necessary without call records. `None`
    /// means that it is too large nevertheless.
    #[must_use]
    pub fn to_tree_within(&self, max: usize) -> Option<Value> {
        let fits = |tree: &Value| json_size_within(tree, max).is_some();
        self.to_tree().filter(fits).or_else(|| self.without_records().to_tree().filter(fits))
    }

    /// Returns a result with at most `max` bytes of JSON. Omits call records if the result is too large, and also inner
    /// steps and the ends of long texts if it is then still too large.
    #[must_use]
    pub fn within_limit(self, max: usize) -> Self {
        let fits = |result: &Self| json_size_within(result, max).is_some();
        if fits(&self) {
            return self;
        }
        let mut result = self.without_records();
        if !fits(&result) {
            result.tree.steps = Vec::new();
            cut(&mut result.tree.name, MAX_SHORT_TEXT_BYTES);
            cut(&mut result.tree.message, MAX_SHORT_TEXT_BYTES);
            cut(&mut result.message, MAX_SHORT_TEXT_BYTES);
        }
        result
    }

    /// Returns the result without call records.
    #[must_use]
    pub fn without_records(&self) -> Self {
        let mut result = self.clone();
        remove_calls(&mut result.tree);
        result
    }
}

/// Limits the call records of a job in size. They must be masked first, because a cut may be inside a secret.
pub fn limit_records(tree: &mut StepNode) {
    let mut left = MAX_RECORDS_BYTES;
    limit_within(tree, &mut left);
}

/// Limits the call records of a step and its inner steps to `left` bytes. Removes records whose reference does not fit.
fn limit_within(node: &mut StepNode, left: &mut usize) {
    if node.call.as_mut().is_some_and(|call| !call.limit(left)) {
        node.call = None;
    }
    node.steps.iter_mut().for_each(|step| limit_within(step, left));
}

/// Removes the call records of a step and its inner steps.
pub fn remove_calls(node: &mut StepNode) {
    node.call = None;
    node.steps.iter_mut().for_each(remove_calls);
}

/// Resources that a job used.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceUsage {
    /// Wall-clock time, in milliseconds.
    pub wall_ms: u64,
    /// CPU time, in milliseconds. `None` means not measured.
    pub cpu_ms: Option<u64>,
    /// Peak memory, in bytes. `None` means not measured.
    pub memory_bytes: Option<u64>,
    /// Whether the numbers come from single processes, without a cgroup: the CPU time of all ended processes, and the
    /// memory of the largest process.
    pub counted_by_process: bool,
    /// Bytes read from storage. `None` means not measured.
    pub read_bytes: Option<u64>,
    /// Bytes written to storage, even if not flushed yet. `None` means not measured.
    pub written_bytes: Option<u64>,
    /// Bytes received from the network. `None` means not counted, usually because the job shared its network.
    pub received_bytes: Option<u64>,
    /// Bytes sent to the network. `None` as for [`Self::received_bytes`].
    pub sent_bytes: Option<u64>,
    /// Time for which a process of the job waited for a CPU, in milliseconds. Without a cgroup, this is the time for
    /// which any process of the machine waited. `None` means not measured.
    pub cpu_stalled_ms: Option<u64>,
    /// Time waiting for memory, as for [`Self::cpu_stalled_ms`].
    pub memory_stalled_ms: Option<u64>,
    /// Time waiting for I/O, as for [`Self::cpu_stalled_ms`].
    pub io_stalled_ms: Option<u64>,
    /// Reason why the job had no share of the machine. Empty if it had a share or needed none.
    pub share_error: String,
}

impl ResourceUsage {
    /// Adds the resources of delegated steps.
    pub fn add_delegated(&mut self, other: &Self) {
        sum(&mut self.cpu_ms, other.cpu_ms);
        self.memory_bytes = self.memory_bytes.max(other.memory_bytes);
        sum(&mut self.read_bytes, other.read_bytes);
        sum(&mut self.written_bytes, other.written_bytes);
        sum(&mut self.received_bytes, other.received_bytes);
        sum(&mut self.sent_bytes, other.sent_bytes);
        self.counted_by_process |= other.counted_by_process;
        sum(&mut self.cpu_stalled_ms, other.cpu_stalled_ms);
        sum(&mut self.memory_stalled_ms, other.memory_stalled_ms);
        sum(&mut self.io_stalled_ms, other.io_stalled_ms);
    }

    /// Returns the resource usage in a tree of [`JobResult::to_tree`].
    #[must_use]
    pub fn from_tree(tree: &Value) -> Option<Self> {
        serde_json::from_value(tree.get(USAGE_KEY)?.clone()).ok()
    }
}

fn sum(own: &mut Option<u64>, other: Option<u64>) {
    *own = match (*own, other) {
        (Some(own), Some(other)) => Some(own.saturating_add(other)),
        (own, other) => own.or(other),
    };
}

/// Resources of a step's processes that ended during the step, with their awaited children. `None` means not measured.
///
/// The root of the result tree has [`ResourceUsage`] instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepUsage {
    /// CPU time, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Peak memory of the largest process, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Bytes read from storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
    /// Bytes written to storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written_bytes: Option<u64>,
    /// Bytes received from the network during the step. `None` means not counted, usually because the job shared its
    /// network or other steps ran at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received_bytes: Option<u64>,
    /// Bytes sent to the network during the step. `None` as for [`Self::received_bytes`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_bytes: Option<u64>,
}

impl StepUsage {
    /// Adds the resources of an inner step.
    pub fn add(&mut self, inner: &Self) {
        sum(&mut self.cpu_ms, inner.cpu_ms);
        self.memory_bytes = self.memory_bytes.max(inner.memory_bytes);
        sum(&mut self.read_bytes, inner.read_bytes);
        sum(&mut self.written_bytes, inner.written_bytes);
        sum(&mut self.received_bytes, inner.received_bytes);
        sum(&mut self.sent_bytes, inner.sent_bytes);
    }
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Outcome {
    /// All required steps succeeded.
    Success,
    /// A step failed, or the job ended early.
    Failed {
        /// GitLab's failure reason.
        reason: FailureReason,
        /// Exit status of the failed step, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        /// Reason for the early end. `None` means that the job did not end early.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<TerminationCause>,
    },
}

/// Step in the result tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepNode {
    /// Name of the step, such as `get_sources`, or the name that the author chose.
    pub name: String,
    /// How the step ended.
    pub status: StepStatus,
    /// Start time in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// Duration in milliseconds.
    pub duration_ms: u64,
    /// Exit status of the step's process, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Reason why the step failed or was skipped.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Reason why the step ended early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<TerminationCause>,
    /// Number of attempts. `None` means one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// Resources of the step and its inner steps. `None` means not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<StepUsage>,
    /// Inner steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepNode>,
    /// Call of the step, if recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<Box<CallRecord>>,
}

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub enum StepStatus {
    Success,
    Failure,
    Cancelled,
    Skipped,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(steps: Vec<StepNode>, message: &str) -> StepNode {
        StepNode {
            name: "step".to_owned(),
            status: StepStatus::Success,
            started_ms: 0,
            duration_ms: 0,
            exit_code: None,
            message: message.to_owned(),
            cause: None,
            attempts: None,
            used: None,
            steps,
            call: None,
        }
    }

    fn result(message: &str, tree: StepNode) -> JobResult {
        let message = message.to_owned();
        JobResult { outcome: Outcome::Success, message, log_bytes: 7, log_crc32: 9, tree, used: None }
    }

    #[test]
    fn large_result_loses_records_before_steps_and_texts() {
        let small = result("done", node(vec![node(Vec::new(), "inner")], ""));
        assert_eq!(small.clone().within_limit(MAX_RESULT_BYTES), small);

        let mut recorded = small.clone();
        let step = "x".repeat(MAX_RESULT_BYTES);
        recorded.tree.steps[0].call = Some(Box::new(CallRecord { step, ..CallRecord::default() }));
        assert_eq!(
            recorded.clone().within_limit(MAX_FULL_RESULT_BYTES),
            recorded,
            "an author of steps gets larger records"
        );
        assert_eq!(recorded.within_limit(MAX_RESULT_BYTES), small);

        let long = "x".repeat(MAX_RESULT_BYTES);
        for large in [
            result(&long, node(Vec::new(), &long)),
            result("done", node(vec![node(Vec::new(), &"x".repeat(1000)); MAX_RESULT_BYTES / 1000], "")),
        ] {
            let short = large.within_limit(MAX_RESULT_BYTES);
            assert!(json_size_within(&short, MAX_RESULT_BYTES).is_some() && short.tree.steps.is_empty());
            assert_eq!((short.log_bytes, short.log_crc32), (7, 9), "the client needs them to find the end of the log");
        }
    }
}
