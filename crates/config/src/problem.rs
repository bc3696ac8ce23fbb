//! What is wrong with a configuration: code, severity, place, the line itself, and what to do. No secret is ever in it.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use super::codes::{self, Severity};
use super::source::{Place, Source};

/// Problems that are told one by one; a count stands for the rest.
const PROBLEMS_MAX: usize = 500;

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Its number in the documentation, such as `C013`.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong and why it matters.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
    /// Index and name of the `[[runners]]` entry it concerns.
    pub runner: Option<(usize, String)>,
    /// Where it is; none where it is not about the text.
    pub place: Option<Place>,
    /// It is about what this version of Muster does not do; the file keeps its rules.
    pub not_built: bool,
    span: Option<Range<usize>>,
}

impl Problem {
    /// A problem with that number; its usual severity is that of [`codes::CODES`].
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

    /// Another severity than the usual one.
    #[must_use]
    pub fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    /// About what this version of Muster does not do.
    #[must_use]
    pub fn not_built(mut self) -> Self {
        self.not_built = true;
        self
    }

    /// With what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// At these bytes of the text.
    #[must_use]
    pub fn at(mut self, span: &Range<usize>) -> Self {
        self.span = Some(span.clone());
        self
    }

    /// At a place that is known already.
    pub(super) fn placed(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// Of that entry of `[[runners]]`.
    #[must_use]
    pub fn of(mut self, index: usize, name: &str) -> Self {
        self.runner = Some((index, shown_name(name)));
        self
    }

    /// The problem as people read it, with `path` before line and column.
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

/// Problems while they are collected.
#[derive(Debug, Default)]
pub(super) struct Problems {
    found: Vec<Problem>,
    more: usize,
}

impl Problems {
    /// Takes one up. Past a bound only those that matter most are kept.
    pub(super) fn add(&mut self, problem: Problem) {
        if self.found.len() < PROBLEMS_MAX
            || (problem.severity == Severity::Fatal && self.found.len() < 2 * PROBLEMS_MAX)
        {
            self.found.push(problem);
        } else {
            self.more += 1;
        }
    }

    /// Whether no more of the lesser ones are kept, so that looking for reasons is in vain.
    pub(super) fn full(&self) -> bool {
        self.found.len() >= PROBLEMS_MAX
    }

    /// All of them with their places, in the order of the text; those without a place come first.
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

/// A name from the file as it may be shown: short, without control characters, and masked where it looks like a token.
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

/// Whether the text holds a token of GitLab's, by its prefix.
pub(super) fn holds_token(text: &str) -> bool {
    const PREFIXES: [&str; 9] =
        ["glrt-", "glrtr-", "glpat-", "glcbt-", "glptt-", "gldt-", "glsoat-", "GR1348941", "ghp_"];
    PREFIXES.iter().any(|prefix| text.contains(prefix))
}
