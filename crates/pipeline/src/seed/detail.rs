//! What a rule compared, for `muster ci explain`: each clause with the values that it saw.

use crate::conditions::clauses::Clauses;
use crate::conditions::scope::Scope;
use crate::config::parsing::Problems;
use crate::config::rules::{Changes, Condition, Exists, PathTest, Rule};
use crate::diagnostic::shortened;
use crate::expand::Unknown;
use crate::seed::decision_trace::{LONGEST_CONDITION, NO_CLAUSE};

/// The longest value that is shown, in characters.
const LONGEST_VALUE: usize = 80;
/// Most paths and patterns that are shown.
const MOST_SHOWN: usize = 5;

/// The clauses of a rule with what they saw: all of one that holds, else the first that does not.
pub(crate) fn detail(
    clauses: &Clauses<'_>,
    rule: &Rule,
    holds: bool,
    scope: &Scope<'_>,
    problems: &mut Problems,
) -> String {
    let mut parts = Vec::new();
    if let Some(found) = &rule.condition
        && (holds || !clauses.condition(found, scope, problems))
    {
        parts.push(condition(found, scope));
    }
    if let Some(found) = &rule.changes
        && (holds || parts.is_empty() && !clauses.changes(found, scope, problems))
    {
        parts.push(changes(clauses, found, scope, problems));
    }
    if let Some(found) = &rule.exists
        && (holds || parts.is_empty() && !clauses.exists(found, scope, problems))
    {
        parts.push(exists(found, holds, scope));
    }
    if parts.is_empty() { NO_CLAUSE.to_owned() } else { parts.join(", ") }
}

/// `if $A == "b" (A is "c", B is not set)`.
fn condition(condition: &Condition, scope: &Scope<'_>) -> String {
    let values = condition.expression.variables().into_iter().map(|name| match scope.shown(name) {
        Some(value) => format!("{name} is {value:?}", value = shortened(&value, LONGEST_VALUE)),
        None => format!("{name} is not set"),
    });
    let values: Vec<String> = values.collect();
    let text = shortened(&condition.text, LONGEST_CONDITION);
    if values.is_empty() { format!("if {text}") } else { format!("if {text} ({})", values.join(", ")) }
}

/// `changes src/** (1 file differs from 1a2b3c4d, where it left `main`: docs/x.md)`.
fn changes(clauses: &Clauses<'_>, changes: &Changes, scope: &Scope<'_>, problems: &mut Problems) -> String {
    let tests = patterns(&changes.paths, scope);
    let context = clauses.context();
    let (paths, since) = match &changes.compare_to {
        None => match &context.changed_paths {
            None => return format!("changes {tests} (what changed is unknown, so that it matches)"),
            Some(paths) => (paths.clone(), context.changed_since.clone()),
        },
        Some((git_ref, span)) => {
            let git_ref = scope.expand(git_ref, Unknown::Empty);
            match clauses.compared(&git_ref, *span, problems) {
                None => return format!("changes {tests} (there is no `{git_ref}` to compare with)"),
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
    let names = if paths.is_empty() { String::new() } else { format!(": {}", some_of(&paths)) };
    format!("changes {tests} ({files}{since}{names})")
}

fn exists(exists: &Exists, holds: bool, scope: &Scope<'_>) -> String {
    let project = exists.project.as_ref().map(|project| scope.expand(project, Unknown::Empty));
    let place = project.map(|project| format!(" of {project}")).unwrap_or_default();
    let found = if holds { "a tracked file" } else { "no tracked file" };
    format!("exists {} ({found}{place})", patterns(&exists.paths, scope))
}

fn patterns(test: &PathTest, scope: &Scope<'_>) -> String {
    match test {
        PathTest::Regexp(regexp) => format!("/{}/", regexp.as_str()),
        PathTest::Globs(globs) => {
            let globs: Vec<String> = globs.iter().map(|glob| scope.expand(glob, Unknown::Keep)).collect();
            some_of(&globs)
        }
    }
}

fn some_of(texts: &[String]) -> String {
    let shown: Vec<&str> = texts.iter().take(MOST_SHOWN).map(String::as_str).collect();
    let more = texts.len().saturating_sub(MOST_SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", shown.join(", "))
}
