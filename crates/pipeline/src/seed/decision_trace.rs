//! What `muster ci explain` tells of a job: decisions with their places.

use std::collections::HashMap;

use crate::config::job::JobEntry;
use crate::config::parallel::Cell;
use crate::config::rules::Rule;
use crate::diagnostic::shortened;
use crate::load::{IncludeOutcome, Loaded};
use crate::model::{Decision, DecisionKind, SourceLocation};
use crate::node::{SourceId, Span};
use crate::source_map::SourceMap;

/// The longest text of a condition that a decision shows, in characters: every job keeps it for each of its rules.
pub(crate) const LONGEST_CONDITION: usize = 1000;
/// What stands for the clauses of a rule that has none.
pub(crate) const NO_CLAUSE: &str = "no clause";

/// Turns spans into places and the history of a job into decisions.
#[derive(Debug)]
pub(crate) struct DecisionTrace<'a> {
    loaded: &'a Loaded,
    /// Where each included text was asked for, and by what.
    includes: HashMap<SourceId, (&'a str, Span)>,
}

impl<'a> DecisionTrace<'a> {
    /// For a configuration.
    pub(crate) fn new(loaded: &'a Loaded) -> Self {
        let includes = loaded.includes.iter().filter_map(|record| match record.outcome {
            IncludeOutcome::Merged(source) => Some((source, (record.what.as_str(), record.included_at))),
            IncludeOutcome::KeptOutByRules | IncludeOutcome::Failed | IncludeOutcome::LeftOut => None,
        });
        Self { loaded, includes: includes.collect() }
    }

    /// The place of a span.
    pub(crate) fn location(&self, span: Span) -> SourceLocation {
        location(&self.loaded.sources, span)
    }

    /// The `# @Description` of a job.
    pub(crate) fn description(&self, job: &str) -> Option<String> {
        self.loaded.descriptions.get(job).cloned()
    }

    /// One decision.
    pub(crate) fn decision(&self, kind: DecisionKind, text: impl Into<String>, span: Option<Span>) -> Decision {
        Decision { kind, text: text.into(), location: span.map(|span| self.location(span)) }
    }

    /// Where the job comes from and what it took from elsewhere, before any rule.
    pub(crate) fn origins(&self, job: &JobEntry, cell: &Cell, node: Option<(u32, u32)>) -> Vec<Decision> {
        let mut all = Vec::new();
        if let Some((what, span)) = self.includes.get(&job.span.source) {
            all.push(self.decision(DecisionKind::Include, format!("comes from the include of {what}"), Some(*span)));
        }
        if job.lacks_parts {
            let text = "lacks parts, which come from includes that were left out";
            all.push(self.decision(DecisionKind::LacksParts, text, Some(job.span)));
        }
        for parent in self.loaded.parents.get(&*job.name).into_iter().flatten() {
            all.push(self.decision(DecisionKind::Extends, format!("extends `{}`", parent.name), Some(parent.named_at)));
        }
        for (keyword, span) in &job.defaults {
            all.push(self.decision(DecisionKind::Default, format!("takes `{keyword}` from `default`"), Some(*span)));
        }
        if let Some((index, total)) = node {
            let values: Vec<String> = cell.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let text = if values.is_empty() {
                format!("is instance {index} of {total} of `{}`", job.name)
            } else {
                format!("is cell {index} of {total} of the matrix of `{}`: {}", job.name, values.join(", "))
            };
            all.push(self.decision(DecisionKind::Matrix, text, Some(job.span)));
        }
        all
    }
}

fn location(sources: &SourceMap, span: Span) -> SourceLocation {
    let file = sources.get(span.source).map(|source| source.name.to_string()).unwrap_or_default();
    SourceLocation { file, line: span.line, column: span.column }
}

/// The clauses of a rule, for people.
pub(crate) fn clauses(rule: &Rule) -> String {
    let mut parts = Vec::new();
    if let Some(condition) = &rule.condition {
        parts.push(format!("if {}", shortened(&condition.text, LONGEST_CONDITION)));
    }
    if rule.changes.is_some() {
        parts.push("changes".to_owned());
    }
    if rule.exists.is_some() {
        parts.push("exists".to_owned());
    }
    if parts.is_empty() { NO_CLAUSE.to_owned() } else { parts.join(", ") }
}
