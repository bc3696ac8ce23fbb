//! Helpers for tests of checks.

use std::path::Path;

use super::super::facts::HostFacts;
use super::super::load::parse;
use super::super::problem::Problem;

fn problems(code: &str, text: &str, facts: &HostFacts) -> Vec<Problem> {
    parse(text, facts).problems.into_iter().filter(|problem| problem.code == code).collect()
}

/// Returns `line:column severity[code]: message` and help. Panics if there is no such problem.
pub(in super::super) fn found(code: &str, text: &str) -> String {
    found_with(code, text, |_| ())
}

/// Like [`found`], with other facts.
pub(in super::super) fn found_with(code: &str, text: &str, change: impl FnOnce(&mut HostFacts)) -> String {
    let mut facts = HostFacts { exists: true, writable: true, ..HostFacts::default() };
    change(&mut facts);
    let found = problems(code, text, &facts);
    assert!(!found.is_empty(), "{code} is not found in:\n{text}");
    let line = |problem: &Problem| {
        // The rendered problem must contain the code, too.
        assert!(problem.render(Path::new("c.toml")).contains(code));
        let location = problem
            .location
            .as_ref()
            .map(|location| format!("{}:{} ", location.line, location.column))
            .unwrap_or_default();
        format!("{location}{problem}; {}\n", problem.help.clone().unwrap_or_default())
    };
    found.iter().map(line).collect()
}

pub(in super::super) fn count(code: &str, text: &str) -> usize {
    problems(code, text, &HostFacts { exists: true, writable: true, ..HostFacts::default() }).len()
}

/// Asserts that there is no problem with the code.
pub(in super::super) fn clean(code: &str, text: &str) {
    clean_with(code, text, |_| ());
}

/// Like [`clean`], with other facts.
pub(in super::super) fn clean_with(code: &str, text: &str, change: impl FnOnce(&mut HostFacts)) {
    let mut facts = HostFacts { exists: true, writable: true, ..HostFacts::default() };
    change(&mut facts);
    let found = problems(code, text, &facts);
    assert!(found.is_empty(), "{found:#?} in:\n{text}");
}
