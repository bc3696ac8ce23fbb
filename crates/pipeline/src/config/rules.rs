//! `rules` of jobs, of `workflow` and of `include`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use muster_job::Variable;
use regex::Regex;

use crate::config::behavior;
use crate::config::keywords;
use crate::config::needs::{self, Needs, NeedsParent};
use crate::config::parsing::{Fields, Path, Problems, boolean, choice, flat_list, flat_text_list, text};
use crate::config::variables;
use crate::config::workflow::{self, AutoCancelEntry};
use crate::diagnostic::Diagnostic;
use crate::expression::{self, Expression};
use crate::limits::MAX_RULE_PATHS;
use crate::model::When;
use crate::node::{Node, Span, Value};

const MAX_REGEXP: usize = 255;

#[derive(Debug, Clone, Default)]
pub(crate) struct Rule {
    pub(crate) span: Option<Span>,
    pub(crate) condition: Option<Condition>,
    pub(crate) changes: Option<Changes>,
    pub(crate) exists: Option<Exists>,
    pub(crate) when: Option<RuleWhen>,
    pub(crate) start_in: Option<Duration>,
    pub(crate) allow_failure: Option<bool>,
    pub(crate) variables: Vec<Variable>,
    pub(crate) needs: Option<Needs>,
    pub(crate) interruptible: Option<bool>,
    /// `auto_cancel` of an entry of `workflow:rules`.
    pub(crate) auto_cancel: AutoCancelEntry,
}

impl Rule {
    /// Returns true if the rule contains only `when`.
    pub(crate) fn is_bare(&self) -> bool {
        let has_clauses = self.condition.is_some() || self.changes.is_some() || self.exists.is_some();
        let has_effects = self.allow_failure.is_some() || self.interruptible.is_some() || self.needs.is_some();
        self.when.is_some() && !has_clauses && !has_effects && self.start_in.is_none() && self.variables.is_empty()
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Condition {
    pub(crate) text: Arc<str>,
    pub(crate) expression: Arc<Expression>,
    pub(crate) span: Span,
}

#[derive(Debug, Clone)]
pub(crate) struct Changes {
    pub(crate) paths: PathTest,
    pub(crate) compare_to: Option<(String, Span)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Exists {
    pub(crate) paths: PathTest,
    pub(crate) project: Option<String>,
    pub(crate) git_ref: Option<String>,
    pub(crate) span: Span,
}

#[derive(Debug, Clone)]
pub(crate) enum PathTest {
    Globs(Vec<String>),
    Regexp(Regex),
}

/// Value of `when` in a rule.
///
/// The variants describe the effect on a job. A rule of `workflow` has the same effect on the pipeline, and a rule of
/// `include` on the included file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RuleWhen {
    /// The job is part of the pipeline, with this `when`.
    Run(When),
    /// The job is not part of the pipeline.
    Never,
}

/// Cache of parsed expressions by their text, because thousands of jobs may share a rule.
#[derive(Debug, Default)]
pub(crate) struct Expressions {
    by_text: HashMap<Arc<str>, Arc<Expression>>,
}

impl Expressions {
    pub(crate) fn read(&mut self, node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Condition> {
        let Value::String(text) = &node.value else {
            problems.report(node.span, at, "invalid expression syntax: the expression must be a string");
            return None;
        };
        if let Some(expression) = self.by_text.get(text) {
            return Some(Condition { text: text.clone(), expression: expression.clone(), span: node.span });
        }
        match expression::parse_within(text, &mut problems.patterns) {
            Ok(expression) => {
                let expression = Arc::new(expression);
                self.by_text.insert(text.clone(), expression.clone());
                Some(Condition { text: text.clone(), expression, span: node.span })
            }
            Err(error) => {
                let diagnostic = Diagnostic::error(node.span, format!("{at} {error}")).inside(text, error.range());
                problems.push(match error.help {
                    Some(help) => diagnostic.help(help),
                    None => diagnostic,
                });
                None
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RulesParent {
    Job,
    Workflow,
    Include,
}

/// Parses a list of rules. Nested lists, which result from `!reference`, are flattened.
pub(crate) fn rules(
    node: &Node,
    at: Path<'_>,
    parent: RulesParent,
    expressions: &mut Expressions,
    problems: &mut Problems,
) -> Option<Vec<Rule>> {
    let items = flat_list(node, at, problems)?;
    if items.is_empty() {
        problems.report_with_help(node.span, at, "can't be blank", "remove `rules`, or add a rule");
        return None;
    }
    Some(items.into_iter().filter_map(|item| rule(item, at, parent, expressions, problems)).collect())
}

fn rule(
    node: &Node,
    at: Path<'_>,
    parent: RulesParent,
    expressions: &mut Expressions,
    problems: &mut Problems,
) -> Option<Rule> {
    let at = at.key("rule");
    let allowed = match parent {
        RulesParent::Job => keywords::JOB_RULE,
        RulesParent::Workflow => keywords::WORKFLOW_RULE,
        RulesParent::Include => keywords::INCLUDE_RULE,
    };
    let fields = Fields::parse(node, at, allowed, problems)?;
    if node.as_map().is_some_and(crate::node::Map::is_empty) {
        problems.report(node.span, at, "can't be blank");
        return None;
    }
    let before = problems.error_count();
    let mut rule = Rule {
        span: Some(node.span),
        condition: fields.get("if").and_then(|node| expressions.read(node, at.key("if"), problems)),
        changes: fields.get("changes").and_then(|node| changes(node, at.key("changes"), problems)),
        exists: fields.get("exists").and_then(|node| exists(node, at.key("exists"), problems)),
        when: fields.get("when").and_then(|node| when(node, at.key("when"), parent, problems)),
        variables: fields
            .get("variables")
            .map(|node| variables::of_rule(node, at.key("variables"), problems))
            .unwrap_or_default(),
        ..Rule::default()
    };
    if parent == RulesParent::Workflow {
        rule.auto_cancel = fields
            .get("auto_cancel")
            .map(|node| workflow::auto_cancel(node, at.key("auto_cancel"), problems))
            .unwrap_or_default();
    }
    if parent == RulesParent::Job {
        rule.allow_failure =
            fields.get("allow_failure").and_then(|node| boolean(node, at.key("allow_failure"), problems));
        rule.interruptible =
            fields.get("interruptible").and_then(|node| boolean(node, at.key("interruptible"), problems));
        rule.needs =
            fields.get("needs").and_then(|node| needs::needs(node, at.key("needs"), NeedsParent::Rule, problems));
        rule.start_in = behavior::start_in(&fields, rule.when == Some(RuleWhen::Run(When::Delayed)), problems);
    }
    // A rule with an invalid clause is ignored. Without the clause, the rule would match too many events.
    (problems.error_count() == before).then_some(rule)
}

fn when(node: &Node, at: Path<'_>, parent: RulesParent, problems: &mut Problems) -> Option<RuleWhen> {
    let allowed: &[&str] = match parent {
        RulesParent::Job => &["on_success", "on_failure", "always", "never", "manual", "delayed"],
        RulesParent::Workflow | RulesParent::Include => &["always", "never"],
    };
    let word = choice(node, at, allowed, problems)?;
    Some(behavior::parse_when_value(&word).map_or(RuleWhen::Never, RuleWhen::Run))
}

/// Parses `changes`: a list of path patterns, or a map with `paths` or `regexp`.
///
/// The parsers of `only` and `except` call this function only for a value that is not a map.
pub(crate) fn changes(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Changes> {
    if node.as_map().is_none() {
        let paths = PathTest::Globs(patterns(node, at, problems)?);
        return Some(Changes { paths, compare_to: None });
    }
    let before = problems.error_count();
    let fields = Fields::parse(node, at, &["paths", "regexp", "compare_to"], problems)?;
    let paths = path_test(&fields, before, problems)?;
    let compare_to = fields.text("compare_to", problems).map(|text| (text, fields.key_span("compare_to")));
    Some(Changes { paths, compare_to })
}

fn exists(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Exists> {
    if node.as_map().is_none() {
        let paths = PathTest::Globs(patterns(node, at, problems)?);
        return Some(Exists { paths, project: None, git_ref: None, span: node.span });
    }
    let before = problems.error_count();
    let fields = Fields::parse(node, at, &["paths", "regexp", "project", "ref"], problems)?;
    let paths = path_test(&fields, before, problems);
    let project = fields.text("project", problems);
    let git_ref = fields.text("ref", problems);
    if git_ref.is_some() && project.is_none() {
        problems.report(node.span, at, "config has `ref` without `project`");
    }
    Some(Exists { paths: paths?, project, git_ref, span: node.span })
}

/// Parses `paths` or `regexp`, and reports an error if not exactly one of them is set.
///
/// `before` is the number of errors before the keys were checked. If an unknown key was reported, missing keys are not
/// reported, because the unknown key is probably a misspelling.
fn path_test(fields: &Fields<'_>, before: usize, problems: &mut Problems) -> Option<PathTest> {
    let at = fields.at();
    match (fields.get("paths"), fields.get("regexp")) {
        (None, None) if problems.error_count() > before => None,
        (Some(node), None) => patterns(node, at.key("paths"), problems).map(PathTest::Globs),
        (None, Some(node)) => path_regexp(node, at.key("regexp"), problems).map(PathTest::Regexp),
        _ => {
            problems.report(fields.span(), at, "config should have exactly one of: paths, regexp");
            None
        }
    }
}

fn patterns(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<String>> {
    let patterns = flat_text_list(node, at, problems)?;
    if patterns.len() > MAX_RULE_PATHS {
        problems.report(node.span, at, format_args!("is too long (maximum is {MAX_RULE_PATHS})"));
        return None;
    }
    Some(patterns)
}

fn path_regexp(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Regex> {
    let pattern = text(node, at, problems)?;
    if pattern.chars().count() > MAX_REGEXP {
        problems.report(node.span, at, format_args!("is too long (maximum is {MAX_REGEXP} characters)"));
        return None;
    }
    problems.patterns.compile(&pattern, "").map_err(|error| problems.report(node.span, at, error)).ok()
}
