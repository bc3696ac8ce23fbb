//! The rules of an include entry (docs/spec/pipeline-yaml.md, section 1.1).
//!
//! These rules can use only variables from outside the configuration, and `exists` searches the tree of the including file.

use crate::conditions::clauses::Clauses;
use crate::conditions::scope::{Base, Scope};
use crate::config::parsing::{Path, Problems};
use crate::config::rules::{self, Expressions, RuleWhen, RulesParent};
use crate::context::{Origin, Sources};
use crate::diagnostic::Diagnostic;
use crate::node::Node;
use crate::patterns::Patterns;

/// Returns true if the rules include the file: a rule matches, and the first matching rule does not have `when: never`.
/// Returns false after an error.
pub(super) fn is_included(
    node: &Node,
    base: &Base<'_>,
    sources: &dyn Sources,
    origin: &Origin,
    patterns: &mut Patterns,
    diagnostics: &mut Vec<Diagnostic>,
) -> bool {
    let mut problems = Problems::default();
    problems.patterns = std::mem::take(patterns);
    let at = Path::root("include");
    let rules = rules::rules(node, at.key("rules"), RulesParent::Include, &mut Expressions::default(), &mut problems);
    let scope = Scope::new(base, &[], None);
    let clauses = Clauses::new(base.context(), sources, origin);
    // If a rule is invalid, no rule is evaluated, because the invalid rule could have been the first match.
    let usable = rules.filter(|_| problems.error_count() == 0).unwrap_or_default();
    let matched = usable.iter().find(|rule| clauses.matches(rule, &scope, &mut problems));
    let included = matched.is_some_and(|rule| rule.when != Some(RuleWhen::Never)) && problems.error_count() == 0;
    *patterns = std::mem::take(&mut problems.patterns);
    diagnostics.extend(problems.into_list());
    included
}
