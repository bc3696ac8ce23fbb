//! Table of differences. Every line that only one of the two runners has needs an entry, and every entry must match a line.

use std::fmt::Write as _;
use std::path::Path;

use regex::Regex;
use serde::Deserialize;
use similar::{ChangeTag, TextDiff};

/// Known difference.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Reason for the difference.
    reason: String,
    /// Names of the cases with the difference. If empty, it is permitted in all cases.
    #[serde(default)]
    cases: Vec<String>,
    /// Lines that only gitlab-runner prints.
    #[serde(default)]
    stock: Vec<String>,
    /// Lines that only Muster prints.
    #[serde(default)]
    muster: Vec<String>,
}

#[derive(Deserialize)]
struct File {
    difference: Vec<Entry>,
}

/// Pattern of an entry.
struct Pattern {
    reason: String,
    cases: Vec<String>,
    side: ChangeTag,
    line: Regex,
    used: bool,
}

/// Table of differences, and the findings of the comparison.
pub(super) struct Differences {
    patterns: Vec<Pattern>,
    found: String,
}

impl Differences {
    pub(super) fn read(path: &Path) -> Self {
        let file: File = toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let mut patterns = Vec::new();
        for entry in file.difference {
            for (side, lines) in [(ChangeTag::Delete, &entry.stock), (ChangeTag::Insert, &entry.muster)] {
                for line in lines {
                    let line = Regex::new(&format!("^(?:{line})$")).unwrap();
                    let (reason, cases) = (entry.reason.clone(), entry.cases.clone());
                    patterns.push(Pattern { reason, cases, side, line, used: false });
                }
            }
        }
        Self { patterns, found: String::new() }
    }

    /// Compares the results of one case.
    pub(super) fn compare(&mut self, case: &str, stock: &str, muster: &str) {
        let mut unknown = String::new();
        for change in TextDiff::from_lines(stock, muster).iter_all_changes() {
            let side = change.tag();
            if side != ChangeTag::Equal && !self.explains(case, side, change.value().trim_end_matches('\n')) {
                let sign = if side == ChangeTag::Delete { "stock " } else { "muster" };
                writeln!(unknown, "  {sign} {}", change.value().trim_end_matches('\n')).unwrap();
            }
        }
        if !unknown.is_empty() {
            writeln!(self.found, "{case}:\n{unknown}").unwrap();
        }
    }

    fn explains(&mut self, case: &str, side: ChangeTag, line: &str) -> bool {
        let found = self.patterns.iter_mut().filter(|pattern| {
            pattern.side == side
                && (pattern.cases.is_empty() || pattern.cases.iter().any(|name| name == case))
                && pattern.line.is_match(line)
        });
        found.map(|pattern| pattern.used = true).count() > 0
    }

    /// Returns the lines without an entry, and the entries without a line.
    pub(super) fn problems(&self) -> String {
        let mut text = self.found.clone();
        for pattern in self.patterns.iter().filter(|pattern| !pattern.used) {
            writeln!(text, "nothing needs `{}`, listed because {}", pattern.line, pattern.reason).unwrap();
        }
        text
    }
}
