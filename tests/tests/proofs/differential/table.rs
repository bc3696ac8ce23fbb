//! The table of differences: every line that only one of the two runners has needs an entry, and every entry a line.

use std::fmt::Write as _;
use std::path::Path;

use regex::Regex;
use serde::Deserialize;
use similar::{ChangeTag, TextDiff};

/// One known difference.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Why it is so, and why it stays.
    reason: String,
    /// The cases in which it may show; all where it names none.
    #[serde(default)]
    cases: Vec<String>,
    /// Lines that only the stock runner has.
    #[serde(default)]
    stock: Vec<String>,
    /// Lines that only Muster has.
    #[serde(default)]
    muster: Vec<String>,
}

#[derive(Deserialize)]
struct File {
    difference: Vec<Entry>,
}

/// A pattern of an entry.
struct Pattern {
    reason: String,
    cases: Vec<String>,
    side: ChangeTag,
    line: Regex,
    used: bool,
}

/// The table, and what comparing has found.
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

    /// Compares what was observed of one case.
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

    /// Lines without an entry, and entries without a line.
    pub(super) fn problems(&self) -> String {
        let mut text = self.found.clone();
        for pattern in self.patterns.iter().filter(|pattern| !pattern.used) {
            writeln!(text, "nothing needs `{}`, listed because {}", pattern.line, pattern.reason).unwrap();
        }
        text
    }
}
