//! A problem of a configuration: code, severity, location, the line, and the fix. It never contains a secret.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use super::codes::{self, Severity};
use super::source::{ProblemLocation, Source};

/// Maximum number of problems that are reported individually. Others are only counted.
const MAX_PROBLEMS: usize = 500;

/// A problem of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Code in the documentation, such as `C013`.
    pub code: &'static str,
    /// Severity of the problem.
    pub severity: Severity,
    /// What is wrong, and why it matters.
    pub message: String,
    /// How to fix it.
    pub help: Option<String>,
    /// Index and name of the affected `[[runners]]` entry.
    pub runner: Option<(usize, String)>,
    /// Location in the text. `None` if the problem is not about the text.
    pub place: Option<ProblemLocation>,
    /// Whether the problem is about a feature that this version of Muster does not have. The file itself is correct then.
    pub not_built: bool,
    span: Option<Range<usize>>,
}

impl Problem {
    /// Returns a problem with this code and its default severity from [`codes::CODES`].
    #[must_use]
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        let severity = codes::severity(code);
        Self {
            code,
            severity,
            message: message.into(),
            help: None,
            runner: None,
            place: None,
            not_built: false,
            span: None,
        }
    }

    /// Returns the problem with another severity.
    #[must_use]
    pub fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    /// Returns the problem marked as a feature that this version of Muster does not have.
    #[must_use]
    pub fn not_built(mut self) -> Self {
        self.not_built = true;
        self
    }

    /// Returns the problem with a fix.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Returns the problem with its byte range in the text.
    #[must_use]
    pub fn at(mut self, span: &Range<usize>) -> Self {
        self.span = Some(span.clone());
        self
    }

    /// Returns the problem with a known location.
    pub(super) fn placed(mut self, place: ProblemLocation) -> Self {
        self.place = Some(place);
        self
    }

    /// Returns the problem with its `[[runners]]` entry.
    #[must_use]
    pub fn of(mut self, index: usize, name: &str) -> Self {
        self.runner = Some((index, shown_name(name)));
        self
    }

    /// Returns the problem as text for operators, with `path` before line and column.
    #[must_use]
    pub fn render(&self, path: &Path) -> String {
        let mut text = format!("{self}\n");
        if let Some(place) = &self.place {
            let number = place.line.to_string();
            let gutter = " ".repeat(number.len());
            text.push_str(&format!("{gutter}--> {}:{}:{}\n", path.display(), place.line, place.column));
            text.push_str(&format!("{gutter} |\n{number} | {}\n", place.text));
            text.push_str(&format!("{gutter} | {}{}\n", " ".repeat(place.mark), "^".repeat(place.width)));
        }
        if let Some(help) = &self.help {
            text.push_str(&format!("  = help: {help}\n"));
        }
        text
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]: ", self.severity.word(), self.code)?;
        if let Some((index, name)) = &self.runner {
            match name.as_str() {
                "" => write!(f, "runner {}: ", index + 1)?,
                name => write!(f, "runner {name}: ")?,
            }
        }
        f.write_str(&self.message)
    }
}

/// Collects problems.
#[derive(Debug, Default)]
pub(super) struct Problems {
    found: Vec<Problem>,
    more: usize,
}

impl Problems {
    /// Adds a problem. Beyond the limit only the most severe problems are kept.
    pub(super) fn add(&mut self, problem: Problem) {
        if self.found.len() < MAX_PROBLEMS
            || (problem.severity == Severity::Fatal && self.found.len() < 2 * MAX_PROBLEMS)
        {
            self.found.push(problem);
        } else {
            self.more += 1;
        }
    }

    /// Returns whether minor problems are no longer kept, so that searching for their causes is useless.
    pub(super) fn is_full(&self) -> bool {
        self.found.len() >= MAX_PROBLEMS
    }

    /// Returns all problems with their locations, in the order of the text. Problems without a location come first.
    pub(super) fn finish(mut self, source: &Source<'_>) -> Vec<Problem> {
        for problem in &mut self.found {
            if let Some(span) = &problem.span {
                problem.place = Some(source.place(span));
            }
        }
        self.found.sort_by_key(|problem| problem.span.as_ref().map(|span| span.start));
        if self.more > 0 {
            self.found.push(
                Problem::new("C000", format!("{} more problems are not listed", self.more)).severity(Severity::Warning),
            );
        }
        self.found
    }
}

/// Returns a name from the file for output: shortened, without control characters, and masked if it looks like a token.
pub(super) fn shown_name(name: &str) -> String {
    const LENGTH_MAX: usize = 64;
    if holds_token(name) {
        return "[masked]".to_owned();
    }
    let mut shown: String = name.chars().take(LENGTH_MAX).flat_map(char::escape_debug).collect();
    if name.chars().nth(LENGTH_MAX).is_some() {
        shown.push('…');
    }
    shown
}

/// Returns whether the text contains a GitLab token, by its prefix.
pub(super) fn holds_token(text: &str) -> bool {
    const PREFIXES: [&str; 9] =
        ["glrt-", "glrtr-", "glpat-", "glcbt-", "glptt-", "gldt-", "glsoat-", "GR1348941", "ghp_"];
    PREFIXES.iter().any(|prefix| text.contains(prefix))
}
