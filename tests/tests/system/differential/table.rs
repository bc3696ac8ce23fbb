//! Known differences. Each line that only one runner prints needs an entry, and each entry must match a line.

use std::fmt::Write as _;
use std::path::Path;

use regex::Regex;
use serde::Deserialize;
use similar::{ChangeTag, TextDiff};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    reason: String,
    /// If empty, the entry applies to all cases.
    #[serde(default)]
    cases: Vec<String>,
    /// Whether the difference depends on time, such as the order of lines from two streams. Such an entry may be
    /// unused.
    #[serde(default)]
    depends_on_time: bool,
    /// Patterns of lines that only gitlab-runner prints.
    #[serde(default)]
    stock: Vec<String>,
    /// Patterns of lines that only Muster prints.
    #[serde(default)]
    muster: Vec<String>,
}

#[derive(Deserialize)]
struct File {
    difference: Vec<Entry>,
}

struct Pattern {
    reason: String,
    cases: Vec<String>,
    side: ChangeTag,
    line: Regex,
    is_used: bool,
}

/// Known differences, and the unknown differences that the comparison found.
pub(super) struct Differences {
    patterns: Vec<Pattern>,
    unknown: String,
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
                    patterns.push(Pattern { reason, cases, side, line, is_used: entry.depends_on_time });
                }
            }
        }
        Self { patterns, unknown: String::new() }
    }

    pub(super) fn compare(&mut self, case: &str, stock: &str, muster: &str) {
        let mut unknown = String::new();
        for change in TextDiff::from_lines(stock, muster).iter_all_changes() {
            let side = change.tag();
            if side != ChangeTag::Equal && !self.is_known(case, side, change.value().trim_end_matches('\n')) {
                let label = if side == ChangeTag::Delete { "stock " } else { "muster" };
                writeln!(unknown, "  {label} {}", change.value().trim_end_matches('\n')).unwrap();
            }
        }
        if !unknown.is_empty() {
            writeln!(self.unknown, "{case}:\n{unknown}").unwrap();
        }
    }

    /// Returns whether an entry matches the line, and marks it as used.
    fn is_known(&mut self, case: &str, side: ChangeTag, line: &str) -> bool {
        let matching = self.patterns.iter_mut().filter(|pattern| {
            pattern.side == side
                && (pattern.cases.is_empty() || pattern.cases.iter().any(|name| name == case))
                && pattern.line.is_match(line)
        });
        matching.map(|pattern| pattern.is_used = true).count() > 0
    }

    /// Returns the lines that match no entry, and the entries that match no line.
    pub(super) fn problems(&self) -> String {
        let mut text = self.unknown.clone();
        for pattern in self.patterns.iter().filter(|pattern| !pattern.is_used) {
            writeln!(
                text,
                "differences.toml: `{}` matches no line; remove it (reason: {})",
                pattern.line, pattern.reason
            )
            .unwrap();
        }
        text
    }
}
