//! Helpers for tests of checks.

use std::path::Path;

use super::super::facts::HostFacts;
use super::super::load::parse;
use super::super::problem::Problem;

fn problems(code: &str, text: &str, facts: &HostFacts) -> Vec<Problem> {
    parse(text, facts).problems.into_iter().filter(|problem| problem.code == code).collect()
}

/// Returns a line `line:column severity[code]: message; help` for each problem with the code. Panics if there are none.
pub(in super::super) fn found(code: &str, text: &str) -> String {
    found_with(code, text, |_| ())
}

/// Like [`found`], with the host facts that `change` makes of the usual ones.
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

/// Like [`clean`], with the host facts that `change` makes of the usual ones.
pub(in super::super) fn clean_with(code: &str, text: &str, change: impl FnOnce(&mut HostFacts)) {
    let mut facts = HostFacts { exists: true, writable: true, ..HostFacts::default() };
    change(&mut facts);
    let found = problems(code, text, &facts);
    assert!(found.is_empty(), "{found:#?} in:\n{text}");
}
