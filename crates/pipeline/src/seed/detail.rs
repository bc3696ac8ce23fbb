//! Describes the comparisons of a rule for `muster ci explain`: each clause with the values that it used.

use crate::conditions::clauses::Clauses;
use crate::conditions::scope::Scope;
use crate::config::parsing::Problems;
use crate::config::rules::{Changes, Condition, Exists, PathTest, Rule};
use crate::diagnostic::shortened;
use crate::expand::Unknown;
use crate::seed::decision_trace::{MAX_CONDITION_CHARS, NO_CLAUSE};

const MAX_VALUE_CHARS: usize = 80;
const MAX_LISTED: usize = 5;

/// Returns the clauses with the values that they used, or only the first false clause if the rule does not match. Hides
/// masked values.
pub(crate) fn detail(
    clauses: &Clauses<'_>,
    rule: &Rule,
    rule_matches: bool,
    scope: &Scope<'_>,
    problems: &mut Problems,
) -> String {
    let mut parts = Vec::new();
    if let Some(found) = &rule.condition
        && (rule_matches || !clauses.condition(found, scope, problems))
    {
        parts.push(condition(found, scope));
    }
    if let Some(found) = &rule.changes
        && (rule_matches || parts.is_empty() && !clauses.changes(found, scope, problems))
    {
        parts.push(changes(clauses, found, scope, problems));
    }
    if let Some(found) = &rule.exists
        && (rule_matches || parts.is_empty() && !clauses.exists(found, scope, problems))
    {
        parts.push(exists(found, rule_matches, scope));
    }
    if parts.is_empty() { NO_CLAUSE.to_owned() } else { scope.hide(&parts.join(", ")) }
}

/// Describes an `if` with the values of its variables, such as `if $A == $B (A is "c", B is not set)`.
fn condition(condition: &Condition, scope: &Scope<'_>) -> String {
    let values = condition.expression.variables().into_iter().map(|name| match scope.shown_value(name) {
        Some(value) => format!("{name} is {value:?}", value = shortened(&value, MAX_VALUE_CHARS)),
        None => format!("{name} is not set"),
    });
    let values: Vec<String> = values.collect();
    let text = shortened(&condition.text, MAX_CONDITION_CHARS);
    if values.is_empty() { format!("if {text}") } else { format!("if {text} ({})", values.join(", ")) }
}

/// Describes `changes` with the files that differ, such as
/// ``changes src/** (1 file differs from 1a2b3c4d, the merge base with `main`: docs/x.md)``.
fn changes(clauses: &Clauses<'_>, changes: &Changes, scope: &Scope<'_>, problems: &mut Problems) -> String {
    let patterns = patterns_text(&changes.paths, scope);
    let context = clauses.context();
    let (paths, since) = match &changes.compare_to {
        None => match &context.changed_paths {
            None => return format!("changes {patterns} (matches, because the changed files are unknown)"),
            Some(paths) => (paths.clone(), context.changed_since.clone()),
        },
        Some((git_ref, span)) => {
            let git_ref = scope.expand(git_ref, Unknown::Empty);
            match clauses.changes_since(&git_ref, *span, problems) {
                None => return format!("changes {patterns} (`{git_ref}` does not exist)"),
                Some(found) => (found.paths.clone(), Some(found.since.clone())),
            }
        }
    };
    let files = match paths.len() {
        0 => "no file differs".to_owned(),
        1 => "1 file differs".to_owned(),
        count => format!("{count} files differ"),
    };
    let since = since.map(|since| format!(" from {since}")).unwrap_or_default();
    let names = if paths.is_empty() { String::new() } else { format!(": {}", join_first(&paths)) };
    format!("changes {patterns} ({files}{since}{names})")
}

fn exists(exists: &Exists, rule_matches: bool, scope: &Scope<'_>) -> String {
    let project = exists.project.as_ref().map(|project| scope.expand(project, Unknown::Empty));
    let project_suffix = project.map(|project| format!(" of {project}")).unwrap_or_default();
    let found = if rule_matches { "a tracked file" } else { "no tracked file" };
    format!("exists {} ({found}{project_suffix} matches)", patterns_text(&exists.paths, scope))
}

fn patterns_text(test: &PathTest, scope: &Scope<'_>) -> String {
    match test {
        PathTest::Regexp(regexp) => format!("/{}/", regexp.as_str()),
        PathTest::Globs(globs) => {
            let globs: Vec<String> = globs.iter().map(|glob| scope.expand(glob, Unknown::Keep)).collect();
            join_first(&globs)
        }
    }
}

fn join_first(texts: &[String]) -> String {
    let listed: Vec<&str> = texts.iter().take(MAX_LISTED).map(String::as_str).collect();
    let more = texts.len().saturating_sub(MAX_LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", listed.join(", "))
}
