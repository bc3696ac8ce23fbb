//! Creates the decisions that `muster ci explain` shows for a job.

use std::collections::HashMap;

use crate::config::job::JobEntry;
use crate::config::parallel::Cell;
use crate::config::rules::Rule;
use crate::diagnostic::shortened;
use crate::load::{IncludeOutcome, Loaded};
use crate::model::{Decision, DecisionKind, SourceLocation};
use crate::node::{SourceId, Span};
use crate::source_map::SourceMap;

/// Conditions are shortened to this length, because every job stores the conditions of its evaluated rules.
pub(crate) const MAX_CONDITION_CHARS: usize = 1000;
pub(crate) const NO_CLAUSE: &str = "it has no condition";

#[derive(Debug)]
pub(crate) struct DecisionTrace<'a> {
    loaded: &'a Loaded,
    /// Include entry of each included text: description and position.
    includes: HashMap<SourceId, (&'a str, Span)>,
}

impl<'a> DecisionTrace<'a> {
    pub(crate) fn new(loaded: &'a Loaded) -> Self {
        let includes = loaded.includes.iter().filter_map(|record| match record.outcome {
            IncludeOutcome::Merged(source) => Some((source, (record.description.as_str(), record.included_at))),
            IncludeOutcome::ExcludedByRules | IncludeOutcome::Failed | IncludeOutcome::Skipped => None,
        });
        Self { loaded, includes: includes.collect() }
    }

    pub(crate) fn location(&self, span: Span) -> SourceLocation {
        location(&self.loaded.sources, span)
    }

    pub(crate) fn description(&self, job: &str) -> Option<String> {
        self.loaded.descriptions.get(job).cloned()
    }

    pub(crate) fn decision(&self, kind: DecisionKind, text: impl Into<String>, span: Option<Span>) -> Decision {
        Decision { kind, text: text.into(), location: span.map(|span| self.location(span)) }
    }

    /// Returns the decisions that do not depend on rules: about the include of the job, skipped parts, parents,
    /// inherited defaults, and the instance of a parallel job.
    pub(crate) fn initial_decisions(&self, job: &JobEntry, cell: &Cell, node: Option<(u32, u32)>) -> Vec<Decision> {
        let mut all = Vec::new();
        if let Some((include, span)) = self.includes.get(&job.span.source) {
            all.push(self.decision(DecisionKind::Include, format!("comes from the include of {include}"), Some(*span)));
        }
        if job.is_incomplete {
            let text = "lacks parts, because includes were skipped";
            all.push(self.decision(DecisionKind::LacksParts, text, Some(job.span)));
        }
        for parent in self.loaded.parents.get(&*job.name).into_iter().flatten() {
            all.push(self.decision(DecisionKind::Extends, format!("extends `{}`", parent.name), Some(parent.named_at)));
        }
        for (keyword, span) in &job.defaults {
            all.push(self.decision(DecisionKind::Default, format!("inherits `{keyword}` from `default`"), Some(*span)));
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

pub(crate) fn clauses_text(rule: &Rule) -> String {
    let mut parts = Vec::new();
    if let Some(condition) = &rule.condition {
        parts.push(format!("if {}", shortened(&condition.text, MAX_CONDITION_CHARS)));
    }
    if rule.changes.is_some() {
        parts.push("changes".to_owned());
    }
    if rule.exists.is_some() {
        parts.push("exists".to_owned());
    }
    if parts.is_empty() { NO_CLAUSE.to_owned() } else { parts.join(", ") }
}
