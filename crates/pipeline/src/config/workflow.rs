//! `workflow`.

use crate::config::keywords;
use crate::config::parsing::{Fields, Path, Problems};
use crate::config::rules::{self, Expressions, Rule, RulesParent};
use crate::model::{AutoCancel, OnNewCommit};
use crate::node::Node;

const MAX_NAME: usize = 255;

#[derive(Debug, Clone, Default)]
pub(crate) struct Workflow {
    /// `name`. Its variables are not expanded yet.
    pub(crate) name: Option<String>,
    /// `rules`. `None` means that no event is excluded.
    pub(crate) rules: Option<Vec<Rule>>,
    pub(crate) auto_cancel: AutoCancelEntry,
}

/// `auto_cancel` as written. The keys of a rule override the keys of `workflow`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AutoCancelEntry {
    on_new_commit: Option<OnNewCommit>,
    /// True for `all`: the first failed job cancels the others. False for `none`.
    on_job_failure: Option<bool>,
}

impl AutoCancelEntry {
    /// Returns the settings of the matched rule (`self`). If the rule does not set a key, the value of `workflow`
    /// (`fallback`) is used.
    pub(crate) fn with_fallback(self, fallback: Self) -> AutoCancel {
        AutoCancel {
            on_new_commit: self.on_new_commit.or(fallback.on_new_commit).unwrap_or_default(),
            on_job_failure: self.on_job_failure.or(fallback.on_job_failure).unwrap_or_default(),
        }
    }
}

pub(crate) fn workflow(
    node: &Node,
    at: Path<'_>,
    expressions: &mut Expressions,
    problems: &mut Problems,
) -> Option<Workflow> {
    let fields = Fields::parse(node, at, keywords::WORKFLOW, problems)?;
    let name = fields.text("name", problems);
    if let Some(length) = name.as_ref().map(|name| name.chars().count())
        && !(1..=MAX_NAME).contains(&length)
    {
        let message = format!("should have 1 to {MAX_NAME} characters, but it has {length}");
        problems.report(fields.key_span("name"), at.key("name"), message);
    }
    let rules = fields
        .get("rules")
        .and_then(|node| rules::rules(node, at.key("rules"), RulesParent::Workflow, expressions, problems));
    let auto_cancel =
        fields.get("auto_cancel").map(|node| auto_cancel(node, at.key("auto_cancel"), problems)).unwrap_or_default();
    Some(Workflow { name, rules, auto_cancel })
}

pub(crate) fn auto_cancel(node: &Node, at: Path<'_>, problems: &mut Problems) -> AutoCancelEntry {
    let Some(fields) = Fields::parse(node, at, &["on_new_commit", "on_job_failure"], problems) else {
        return AutoCancelEntry::default();
    };
    let on_new_commit = fields.choice("on_new_commit", &["conservative", "interruptible", "none"], problems);
    let on_job_failure = fields.choice("on_job_failure", &["none", "all"], problems);
    AutoCancelEntry {
        on_new_commit: on_new_commit.map(|word| match word.as_str() {
            "interruptible" => OnNewCommit::Interruptible,
            "none" => OnNewCommit::None,
            _ => OnNewCommit::Conservative,
        }),
        on_job_failure: on_job_failure.map(|word| word == "all"),
    }
}
