//! A problem of a configuration: code, severity, location, the line, and the fix. It never contains a secret.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use super::codes::{self, Severity};
use super::source::{ProblemLocation, Source};

/// Maximum number of listed problems. Others are only counted, but fatal ones are listed up to twice this number.
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
    /// How to fix the problem.
    pub help: Option<String>,
    /// Index and name of the affected `[[runners]]` entry, if any.
    pub runner: Option<(usize, String)>,
    /// Location in the text. `None` if the problem is not about the text.
    pub location: Option<ProblemLocation>,
    /// Whether the problem is about a feature that this version of Muster does not have.
    pub unsupported: bool,
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
            location: None,
            unsupported: false,
            span: None,
        }
    }

    /// Returns the problem with another severity.
    #[must_use]
    pub fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    /// Returns the problem marked as being about a feature that this version of Muster does not have.
    #[must_use]
    pub fn unsupported(mut self) -> Self {
        self.unsupported = true;
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

    pub(super) fn with_location(mut self, location: ProblemLocation) -> Self {
        self.location = Some(location);
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
        if let Some(location) = &self.location {
            let number = location.line.to_string();
            let gutter = " ".repeat(number.len());
            text.push_str(&format!("{gutter}--> {}:{}:{}\n", path.display(), location.line, location.column));
            text.push_str(&format!("{gutter} |\n{number} | {}\n", location.text));
            text.push_str(&format!("{gutter} | {}{}\n", " ".repeat(location.mark), "^".repeat(location.width)));
        }
        if let Some(help) = &self.help {
            text.push_str(&format!("  = help: {help}\n"));
        }
        text
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]: ", self.severity.as_str(), self.code)?;
        if let Some((index, name)) = &self.runner {
            match name.as_str() {
                "" => write!(f, "runner {}: ", index + 1)?,
                name => write!(f, "runner {name}: ")?,
            }
        }
        f.write_str(&self.message)
    }
}

#[derive(Debug, Default)]
pub(super) struct Problems {
    found: Vec<Problem>,
    unlisted: usize,
}

impl Problems {
    /// Adds a problem. Beyond the limit, a problem that is not fatal is only counted.
    pub(super) fn add(&mut self, problem: Problem) {
        if self.found.len() < MAX_PROBLEMS
            || (problem.severity == Severity::Fatal && self.found.len() < 2 * MAX_PROBLEMS)
        {
            self.found.push(problem);
        } else {
            self.unlisted += 1;
        }
    }

    /// Returns whether the limit is reached, after which only fatal problems are added.
    ///
    /// A check may then omit help that is expensive to compute.
    pub(super) fn is_full(&self) -> bool {
        self.found.len() >= MAX_PROBLEMS
    }

    /// Returns the problems in the order of the text. Those without a location come first.
    pub(super) fn finish(mut self, source: &Source<'_>) -> Vec<Problem> {
        for problem in &mut self.found {
            if let Some(span) = &problem.span {
                problem.location = Some(source.location_of(span));
            }
        }
        self.found.sort_by_key(|problem| problem.span.as_ref().map(|span| span.start));
        if self.unlisted > 0 {
            let problems = if self.unlisted == 1 { "problem is" } else { "problems are" };
            self.found.push(
                Problem::new("C000", format!("{} more {problems} not listed", self.unlisted))
                    .severity(Severity::Warning),
            );
        }
        self.found
    }
}

/// Returns the name as messages show it: shortened, without control characters, and masked if it looks like a token.
pub(super) fn shown_name(name: &str) -> String {
    const MAX_LENGTH: usize = 64;
    if contains_token(name) {
        return "[masked]".to_owned();
    }
    let mut shown: String = name.chars().take(MAX_LENGTH).flat_map(char::escape_debug).collect();
    if name.chars().nth(MAX_LENGTH).is_some() {
        shown.push('…');
    }
    shown
}

/// Returns whether the text contains the prefix of a GitLab token.
pub(super) fn contains_token(text: &str) -> bool {
    const PREFIXES: [&str; 9] =
        ["glrt-", "glrtr-", "glpat-", "glcbt-", "glptt-", "gldt-", "glsoat-", "GR1348941", "ghp_"];
    PREFIXES.iter().any(|prefix| text.contains(prefix))
}
