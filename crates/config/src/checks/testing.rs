//! Helpers for tests of checks.

use std::path::Path;

use super::super::facts::HostFacts;
use super::super::load::parse;
use super::super::problem::Problem;

fn problems(code: &str, text: &str, facts: &HostFacts) -> Vec<Problem> {
    parse(text, facts).problems.into_iter().filter(|problem| problem.code == code).collect()
}

/// Returns each problem that has this code, as `line:column severity[code]: message` and its help.
///
/// # Panics
/// If there is no such problem.
pub(in super::super) fn found(code: &str, text: &str) -> String {
    found_with(code, text, |_| ())
}

/// Like [`found`], with other facts.
pub(in super::super) fn found_with(code: &str, text: &str, facts: impl FnOnce(&mut HostFacts)) -> String {
    let mut given = HostFacts { exists: true, writable: true, ..HostFacts::default() };
    facts(&mut given);
    let found = problems(code, text, &given);
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

/// Returns the number of problems with the code.
pub(in super::super) fn count(code: &str, text: &str) -> usize {
    problems(code, text, &HostFacts { exists: true, writable: true, ..HostFacts::default() }).len()
}

/// Asserts that there is no problem with the code.
pub(in super::super) fn clean(code: &str, text: &str) {
    clean_with(code, text, |_| ());
}

/// Like [`clean`], with other facts.
pub(in super::super) fn clean_with(code: &str, text: &str, facts: impl FnOnce(&mut HostFacts)) {
    let mut given = HostFacts { exists: true, writable: true, ..HostFacts::default() };
    facts(&mut given);
    let found = problems(code, text, &given);
    assert!(found.is_empty(), "{found:#?} in:\n{text}");
}
