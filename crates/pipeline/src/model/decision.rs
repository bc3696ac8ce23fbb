//! Decisions: the reasons why a job or a pipeline was created or not.

use serde::{Deserialize, Serialize};

/// A job that the pipeline does not contain because rules excluded it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExcludedJob {
    /// Full name, such as `test: [linux, 1]`.
    pub name: String,
    /// Name without the suffix of a parallel job: without ` 1/3` or `: [..]`.
    pub group_name: String,
    /// Name of the stage.
    pub stage: String,
    /// Evaluated rules and the reason for the exclusion.
    pub decisions: Vec<Decision>,
}

impl ExcludedJob {
    /// Returns true if parts of the job, such as rules, are missing because their include was skipped.
    #[must_use]
    pub fn lacks_parts(&self) -> bool {
        lacks_parts(&self.decisions)
    }
}

pub(super) fn lacks_parts(decisions: &[Decision]) -> bool {
    decisions.iter().any(|decision| decision.kind == DecisionKind::LacksParts)
}

/// Human-readable position in a source text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SourceLocation {
    /// Name of the source, such as a path or a URL.
    pub file: String,
    /// Line number, starting at 1.
    pub line: u32,
    /// Column in characters, starting at 1.
    pub column: u32,
}

/// A line of the output of `muster ci explain`: an effect that changed, included or excluded a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Mechanism that had the effect.
    pub kind: DecisionKind,
    /// Human-readable effect, such as `rules[1] matched: if $CI_COMMIT_TAG`.
    pub text: String,
    /// Location of the configuration that had the effect. `None` if the effect has no single location.
    pub location: Option<SourceLocation>,
}

/// Mechanism that changes, includes or excludes a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are keywords or describe the effect")]
pub enum DecisionKind {
    Include,
    /// Parts of the job are missing because their include was skipped.
    LacksParts,
    Extends,
    Default,
    Variables,
    Matrix,
    Workflow,
    RuleMatched,
    RuleNotMatched,
    Only,
    Except,
    Needs,
}

/// Explanation of why a valid configuration creates no pipeline for an event
/// (`docs/spec/pipeline-yaml.md`, section 2.1, items 10 to 12).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotCreated {
    /// Reason why no pipeline was created.
    pub reason: NotCreatedReason,
    /// For [`NotCreatedReason::WorkflowRules`], the evaluated rules. For [`NotCreatedReason::NoJobs`], one decision for each
    /// job in `.pre` and `.post` that would run.
    pub decisions: Vec<Decision>,
    /// Jobs that their own rules or the rules of `workflow` excluded.
    pub excluded: Vec<ExcludedJob>,
}

/// Reason why no pipeline was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NotCreatedReason {
    /// No rule of `workflow:rules` matched, or the matching rule has `when: never`.
    #[error("pipeline filtered out by workflow rules")]
    WorkflowRules,
    /// No job is left, or only jobs in `.pre` and `.post`. Rules excluded the other jobs, if there are any.
    #[error(
        "pipeline will not run for the selected trigger: the rules configuration prevented any jobs from being added \
         to the pipeline"
    )]
    NoJobs,
}
