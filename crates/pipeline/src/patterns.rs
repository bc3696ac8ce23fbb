//! Cache of the regular expressions of one compilation, with a budget for their total size.
//!
//! A pattern of a few bytes can compile to megabytes (`(\w{100}){100}`). Therefore, a pattern is compiled with increasing size
//! limits until it fits. Each tried limit counts against the budget.

use std::collections::HashMap;

use regex::Regex;

use crate::diagnostic::Diagnostic;
use crate::limits::MAX_PATTERNS_BYTES;
use crate::node::Span;
use crate::regexp::{self, MAX_COMPILED_BYTES, RegexpError};

/// First size limit in bytes. Each further attempt quadruples the limit.
const FIRST_SIZE_LIMIT: usize = 16 * 1024;

#[derive(Debug, Clone, Default)]
pub(crate) struct Patterns {
    compiled: HashMap<String, Result<Regex, RegexpError>>,
    /// Total cost in bytes. More than [`MAX_PATTERNS_BYTES`] means that the budget is exceeded.
    spent: usize,
}

impl Patterns {
    /// Compiles a pattern as [`regexp::compile_with_flags`] does.
    ///
    /// Once the budget is exceeded, every new pattern matches all texts, so that no further errors follow. The owner of
    /// the budget must report [`Patterns::budget_error`].
    pub(crate) fn compile(&mut self, pattern: &str, flags: &str) -> Result<Regex, RegexpError> {
        let key = format!("{flags}/{pattern}");
        if let Some(known) = self.compiled.get(&key) {
            return known.clone();
        }
        let mut size = FIRST_SIZE_LIMIT;
        while self.spent <= MAX_PATTERNS_BYTES {
            self.spent += size;
            let compiled = if size < MAX_COMPILED_BYTES {
                regexp::compile_within(pattern, flags, size)
            } else {
                Some(regexp::compile_with_flags(pattern, flags))
            };
            if let Some(compiled) = compiled {
                self.compiled.insert(key, compiled.clone());
                return compiled;
            }
            size *= 4;
        }
        regexp::compile("")
    }

    /// Returns the error to report if the budget is exceeded.
    pub(crate) fn budget_error(&self, span: Span) -> Option<Diagnostic> {
        let message = format!(
            "the regular expressions of the configuration exceed {} MiB in total",
            MAX_PATTERNS_BYTES / (1024 * 1024)
        );
        let help = "use fewer or simpler expressions; equal expressions count once, and large repetitions such as `{1000}` count most";
        (self.spent > MAX_PATTERNS_BYTES).then(|| Diagnostic::error(span, message).help(help))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_patterns_count_once_and_large_ones_more() {
        let mut patterns = Patterns::default();
        for _ in 0..3 {
            assert!(patterns.compile("^v[0-9]+$", "i").is_ok_and(|regex| regex.is_match("V1")));
        }
        assert_eq!(patterns.spent, FIRST_SIZE_LIMIT);
        assert!(patterns.compile("^v[0-9]+$", "").is_ok_and(|regex| !regex.is_match("V1")));
        assert_eq!(patterns.spent, 2 * FIRST_SIZE_LIMIT);
        assert!(patterns.compile("(a{100}){30}", "").is_ok());
        assert!(patterns.spent > 3 * FIRST_SIZE_LIMIT);
        assert!(patterns.compile("((a{1000}){1000}){1000}", "").is_err(), "a single pattern must have a limit");
    }
}
