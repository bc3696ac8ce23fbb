//! `include:rules` (pipeline-yaml 1.1): whether an entry is used at all. The rules are read and evaluated as those of jobs
//! are; they see the variables from outside the configuration only, and `exists` looks where the file with the entry is.

use crate::conditions::clauses::Clauses;
use crate::conditions::scope::{Base, Scope};
use crate::config::parsing::{Path, Problems};
use crate::config::rules::{self, Expressions, RuleWhen, RulesOf};
use crate::context::{Context, Origin, Sources};
use crate::diagnostic::Diagnostic;
use crate::node::Node;
use crate::patterns::Patterns;

/// Whether the first rule that matches lets the entry in; without a match it stays out.
pub(super) fn is_included(
    node: &Node,
    context: &Context,
    sources: &dyn Sources,
    origin: &Origin,
    patterns: &mut Patterns,
    diagnostics: &mut Vec<Diagnostic>,
) -> bool {
    let mut problems = Problems::default();
    problems.patterns = std::mem::take(patterns);
    let at = Path::root("include");
    let rules = rules::rules(node, at.key("rules"), RulesOf::Include, &mut Expressions::default(), &mut problems);
    let base = Base::new(context);
    let scope = Scope::new(&base, &[], None);
    let clauses = Clauses::new(context, sources, origin);
    // Where a rule is wrong, nobody knows what the others were to be compared with.
    let usable = rules.filter(|_| problems.errors() == 0).unwrap_or_default();
    let matched = usable.iter().find(|rule| clauses.hold(rule, &scope, &mut problems));
    let let_in = matched.is_some_and(|rule| rule.when != Some(RuleWhen::Never)) && problems.errors() == 0;
    *patterns = std::mem::take(&mut problems.patterns);
    diagnostics.extend(problems.into_list());
    let_in
}
