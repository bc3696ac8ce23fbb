//! The regular expressions of one compile: each compiled once, all of them within one budget.
//!
//! A pattern of a few bytes can stand for megabytes (`(\w{100}){100}`), so what is counted is the size that it compiles to,
//! found by trying limits that grow. That is close to the time it takes as well.

use std::collections::HashMap;

use regex::Regex;

use crate::diagnostic::Diagnostic;
use crate::limits::PATTERNS_BYTES;
use crate::node::Span;
use crate::regexp::{self, MAX_COMPILED_BYTES, RegexpError};

/// The size that is tried first, in bytes; nearly all patterns that people write fit. Each further one is four times as
/// large.
const SMALL: usize = 16 * 1024;

/// Compiled patterns by flags and text, and what they cost so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Patterns {
    known: HashMap<String, Result<Regex, RegexpError>>,
    /// In bytes; more than [`PATTERNS_BYTES`]: there was one too many.
    spent: usize,
}

impl Patterns {
    /// As [`regexp::compile_with_flags`]. Where the budget is spent, every new pattern is one that matches all texts, so
    /// that no other error follows from it: whoever owns the budget tells [`Patterns::problem`].
    pub(crate) fn compile(&mut self, pattern: &str, flags: &str) -> Result<Regex, RegexpError> {
        let key = format!("{flags}/{pattern}");
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let mut size = SMALL;
        while self.spent <= PATTERNS_BYTES {
            self.spent += size;
            let compiled = if size < MAX_COMPILED_BYTES {
                regexp::compile_within(pattern, flags, size)
            } else {
                Some(regexp::compile_with_flags(pattern, flags))
            };
            if let Some(compiled) = compiled {
                self.known.insert(key, compiled.clone());
                return compiled;
            }
            size *= 4;
        }
        regexp::compile("")
    }

    /// The error of a configuration whose patterns are too many or too large together, if they are.
    pub(crate) fn problem(&self, span: Span) -> Option<Diagnostic> {
        let message = format!(
            "the regular expressions of the configuration take more than {} MiB together",
            PATTERNS_BYTES / (1024 * 1024)
        );
        let help = "use fewer or simpler ones; equal ones count once, large repetitions such as `{1000}` count most";
        (self.spent > PATTERNS_BYTES).then(|| Diagnostic::error(span, message).help(help))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_patterns_cost_once_and_large_ones_more() {
        let mut patterns = Patterns::default();
        for _ in 0..3 {
            assert!(patterns.compile("^v[0-9]+$", "i").is_ok_and(|regex| regex.is_match("V1")));
        }
        assert_eq!(patterns.spent, SMALL);
        assert!(patterns.compile("^v[0-9]+$", "").is_ok_and(|regex| !regex.is_match("V1")), "other flags");
        assert_eq!(patterns.spent, 2 * SMALL);
        assert!(patterns.compile("(a{100}){30}", "").is_ok());
        assert!(patterns.spent > 3 * SMALL);
        assert!(patterns.compile("((a{1000}){1000}){1000}", "").is_err(), "each has its own limit still");
    }
}
