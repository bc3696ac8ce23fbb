//! Path patterns of `rules:changes`, `rules:exists` (docs/spec/pipeline-yaml.md, sections 3.3 and 3.4) and of
//! `include:local` (docs/spec/pipeline-yaml.md, section 1.1).
//!
//! `rules` use Ruby's `File.fnmatch` with PATHNAME, DOTMATCH and EXTGLOB. `include:local` uses wildcards in which `**`
//! matches any text.

use std::collections::BTreeSet;
use std::ops::Bound;

use regex::{Regex, RegexBuilder};

const MAX_PATTERN_BYTES: usize = 4096;

const MAX_ALTERNATIVES: usize = 1000;

const MAX_COMPILED_BYTES: usize = 4 * 1024 * 1024;

/// Reason why a pattern cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    /// The pattern is longer than 4096 bytes.
    #[error("path pattern is too long: {0} bytes (maximum is {MAX_PATTERN_BYTES})")]
    TooLong(usize),
    /// The braces of the pattern expand to too many alternatives, or its compiled form is too large.
    #[error("path pattern `{0}` is too complex; use fewer alternatives or wildcards")]
    TooLarge(String),
}

/// A compiled path pattern.
#[derive(Debug, Clone)]
pub struct Glob {
    text: String,
    matcher: Matcher,
}

#[derive(Debug, Clone)]
enum Matcher {
    /// A path without special characters.
    Exact,
    Pattern(Regex),
}

impl Glob {
    /// Compiles a pattern of `changes` or `exists`. The pattern must match the whole path.
    ///
    /// `*` and `?` match within one directory, and `**/` matches across directories. `[a-z]`, `[!a]` and `{a,b}` have
    /// their usual meaning. Names with a leading dot match like other names.
    ///
    /// # Errors
    /// Returns [`GlobError`] if the pattern is too large.
    pub fn new(pattern: &str) -> Result<Self, GlobError> {
        if !pattern.contains(['*', '?', '[', '{', '\\']) {
            return Ok(Self { text: pattern.to_owned(), matcher: Matcher::Exact });
        }
        check_length(pattern)?;
        let error = || GlobError::TooLarge(pattern.to_owned());
        let mut alternatives = Vec::new();
        expand_braces(pattern, &mut alternatives).ok_or_else(error)?;
        let parts: Vec<String> = alternatives.iter().map(|pattern| fnmatch_to_regex(pattern)).collect();
        Self::compiled(pattern, &parts.join("|")).ok_or_else(error)
    }

    /// Compiles a pattern of `include:local`. `*` matches within one directory, `**` matches any text.
    ///
    /// # Errors
    /// Returns [`GlobError`] if the pattern is too large.
    pub fn of_include(pattern: &str) -> Result<Self, GlobError> {
        check_length(pattern)?;
        let mut source = String::new();
        let mut rest = pattern;
        while let Some(at) = rest.find('*') {
            source.push_str(&regex::escape(&rest[..at]));
            let is_double = rest[at..].starts_with("**");
            source.push_str(if is_double { ".*" } else { "[^/]*" });
            rest = &rest[at + if is_double { 2 } else { 1 }..];
        }
        source.push_str(&regex::escape(rest));
        Self::compiled(pattern, &source).ok_or_else(|| GlobError::TooLarge(pattern.to_owned()))
    }

    fn compiled(pattern: &str, source: &str) -> Option<Self> {
        let regex = RegexBuilder::new(&format!("^(?:{source})$"))
            .dot_matches_new_line(true)
            .size_limit(MAX_COMPILED_BYTES)
            .build()
            .ok()?;
        Some(Self { text: pattern.to_owned(), matcher: Matcher::Pattern(regex) })
    }

    /// Returns true if the pattern matches `path`, whose components are separated by `/`.
    #[must_use]
    pub fn is_match(&self, path: &str) -> bool {
        match &self.matcher {
            Matcher::Exact => self.text == path,
            Matcher::Pattern(regex) => regex.is_match(path),
        }
    }

    /// Returns true if a pattern of [`Glob::new`] is a plain path without special characters.
    ///
    /// Always false for a pattern of [`Glob::of_include`].
    #[must_use]
    pub fn is_exact(&self) -> bool {
        matches!(self.matcher, Matcher::Exact)
    }

    /// Returns the pattern as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns true if the tree contains a match, as `rules:exists` requires: a file or, if the pattern ends with `/`,
    /// a directory.
    #[must_use]
    pub fn exists_in(&self, tracked: &BTreeSet<String>) -> bool {
        let directory = self.text.ends_with('/');
        match &self.matcher {
            Matcher::Exact if directory => {
                let from = (Bound::Included(self.text.as_str()), Bound::Unbounded);
                tracked.range::<str, _>(from).next().is_some_and(|path| path.starts_with(&self.text))
            }
            Matcher::Exact => tracked.contains(&self.text),
            Matcher::Pattern(regex) if directory => {
                tracked.iter().any(|path| path.match_indices('/').any(|(slash, _)| regex.is_match(&path[..=slash])))
            }
            Matcher::Pattern(regex) => tracked.iter().any(|path| regex.is_match(path)),
        }
    }
}

fn check_length(pattern: &str) -> Result<(), GlobError> {
    if pattern.len() > MAX_PATTERN_BYTES { Err(GlobError::TooLong(pattern.len())) } else { Ok(()) }
}

/// Like Ruby, expands the first balanced pair of braces, then the rest. Returns `None` if there are too many patterns.
fn expand_braces(pattern: &str, out: &mut Vec<String>) -> Option<()> {
    let mut pending = vec![pattern.to_owned()];
    let mut steps = 0;
    while let Some(pattern) = pending.pop() {
        steps += 1;
        if steps > MAX_ALTERNATIVES || out.len() + pending.len() > MAX_ALTERNATIVES {
            return None;
        }
        let Some((open, commas, close)) = first_braces(&pattern) else {
            out.push(pattern);
            continue;
        };
        let mut start = open + 1;
        for end in commas.into_iter().chain([close]) {
            pending.push(format!("{}{}{}", &pattern[..open], &pattern[start..end], &pattern[close + 1..]));
            start = end + 1;
        }
    }
    Some(())
}

/// Returns the offsets of the first opening brace, of the commas at its level, and of the matching closing brace.
fn first_braces(pattern: &str) -> Option<(usize, Vec<usize>, usize)> {
    let mut open = None;
    let mut depth = 0usize;
    let mut commas = Vec::new();
    let mut escaped = false;
    for (at, char) in pattern.char_indices() {
        if std::mem::take(&mut escaped) {
            continue;
        }
        match char {
            '\\' => escaped = true,
            '{' => {
                open.get_or_insert(at);
                depth += 1;
            }
            ',' if depth == 1 => commas.push(at),
            '}' if depth == 1 => return open.map(|open| (open, commas, at)),
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

fn fnmatch_to_regex(pattern: &str) -> String {
    let mut out = String::new();
    let mut rest = pattern;
    let mut segment_start = true;
    while let Some(char) = rest.chars().next() {
        if segment_start && let Some(after) = rest.strip_prefix("**/") {
            if !out.ends_with("(?:.*/)?") {
                out.push_str("(?:.*/)?");
            }
            rest = after;
            continue;
        }
        segment_start = char == '/';
        let mut consumed = char.len_utf8();
        match char {
            '*' => {
                if !out.ends_with("[^/]*") {
                    out.push_str("[^/]*");
                }
            }
            '?' => out.push_str("[^/]"),
            '[' => match class(rest) {
                Some((class, length)) => {
                    out.push_str(&class);
                    consumed = length;
                }
                // A pattern with an unclosed class matches nothing.
                None => return "[^\\s\\S]".to_owned(),
            },
            '\\' => {
                if let Some(escaped) = rest[1..].chars().next() {
                    out.push_str(&regex::escape(escaped.encode_utf8(&mut [0; 4])));
                    consumed += escaped.len_utf8();
                    segment_start = escaped == '/';
                } else {
                    out.push_str("\\\\");
                }
            }
            _ => out.push_str(&regex::escape(char.encode_utf8(&mut [0; 4]))),
        }
        rest = &rest[consumed..];
    }
    out
}

/// Converts the character class at the start of `text` to a class of the `regex` crate. Also returns the length of the
/// class in `text`, in bytes. Returns `None` if the class is not closed.
fn class(text: &str) -> Option<(String, usize)> {
    let mut chars = text.char_indices().skip(1).peekable();
    let negated = chars.next_if(|(_, char)| matches!(char, '!' | '^')).is_some();
    let mut ranges: Vec<(char, char)> = Vec::new();
    loop {
        let (at, mut low) = chars.next()?;
        if low == ']' {
            return Some((class_regex(negated, &ranges), at + 1));
        }
        if low == '\\' {
            low = chars.next()?.1;
        }
        let mut high = low;
        let mut ahead = chars.clone();
        if ahead.next().is_some_and(|(_, char)| char == '-')
            && let Some((_, mut end)) = ahead.next()
            && end != ']'
        {
            if end == '\\' {
                end = ahead.next()?.1;
            }
            high = end;
            chars = ahead;
        }
        ranges.push((low, high));
    }
}

/// Builds a class that never matches `/`.
fn class_regex(negated: bool, ranges: &[(char, char)]) -> String {
    let hex = |char: char| format!("\\x{{{:X}}}", u32::from(char));
    let members: String = ranges
        .iter()
        .filter(|(low, high)| low <= high)
        .map(|(low, high)| format!("{}-{}", hex(*low), hex(*high)))
        .collect();
    match (members.is_empty(), negated) {
        (true, false) => "[^\\s\\S]".to_owned(),
        (true, true) => "[^/]".to_owned(),
        (false, false) => format!("[[{members}]--[/]]"),
        (false, true) => format!("[^/{members}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn matches(pattern: &str, path: &str) -> bool {
        Glob::new(pattern).unwrap_or_else(|error| panic!("{error}")).is_match(path)
    }

    #[test]
    fn c140_change_patterns_match_paths() {
        let changed = "src/a.rb";
        for (pattern, expected) in [
            ("src/*", true),
            ("docs/*", false),
            ("src/**/*", true),
            ("src", false),
            ("**/*.rb", true),
            ("*.rb", false),
            ("src/*.{rb,py}", true),
        ] {
            assert_eq!(matches(pattern, changed), expected, "{pattern}");
        }
    }

    #[test]
    fn c143_and_c144_exists_patterns_match_paths() {
        let tracked: BTreeSet<String> =
            ["Dockerfile", "src/a.rb", "src/lib/b.rb", "docs/x.md"].map(str::to_owned).into();
        for (pattern, expected) in [
            ("Dockerfile", true),
            ("**/b.rb", true),
            ("src", false),
            ("src/", true),
            ("src/li", false),
            ("src/lib/", true),
            ("**/lib/", true),
            ("li*/", false),
            ("sr/", false),
            ("*.rb", false),
            ("$UNDEF/x", false),
            ("", false),
        ] {
            assert_eq!(Glob::new(pattern).unwrap().exists_in(&tracked), expected, "{pattern}");
        }
    }

    #[test]
    fn c084_include_patterns_match_paths() {
        for (pattern, expected) in
            [("ci/*.yml", [true, false]), ("ci/**.yml", [true, true]), ("ci/**/*.yml", [false, true])]
        {
            let glob = Glob::of_include(pattern).unwrap();
            assert_eq!(["ci/a.yml", "ci/sub/b.yml"].map(|path| glob.is_match(path)), expected, "{pattern}");
        }
        assert!(!Glob::of_include("ci/*.yml").unwrap().is_match("ci/axyml"));
    }

    #[test]
    fn matches_like_ruby_fnmatch() {
        for (pattern, path, expected) in [
            ("*", ".hidden", true),
            ("**/*", ".a/.b", true),
            ("**/x", "x", true),
            ("**/**/x", "a/b/x", true),
            ("a/**/b", "a/b", true),
            ("a/**/b", "a/x/y/b", true),
            ("a**/b", "a/x/b", false),
            ("a**/b", "axx/b", true),
            ("**", "a/b", false),
            ("**", "a", true),
            ("src/**", "src/a/b", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[!a-c]x", "/x", false),
            ("[^a]x", "bx", true),
            ("a[/]b", "a/b", false),
            ("[]", "a", false),
            ("[!]", "a", true),
            ("[a", "[a", false),
            ("[\\]]", "]", true),
            ("[z-a]", "m", false),
            ("a?c", "a/c", false),
            ("a?c", "aéc", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("{a,b{c,d}}e", "bde", true),
            ("{a,b{c,d}}e", "be", false),
            ("{,x/}y", "y", true),
            ("{**/,}y", "a/b/y", true),
            ("{a", "{a", true),
            ("{a}", "a", true),
            ("A*", "ab", false),
            ("a+b(c)*", "a+b(c)d", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn rejects_patterns_with_too_many_alternatives_or_bytes() {
        // The braces expand to 2^8 and to 2^40 alternatives.
        assert!(Glob::new(&"{a,b}".repeat(8)).is_ok());
        assert!(Glob::new(&"{a,b}".repeat(40)).is_err());
        // Braces that are not closed are literal text.
        assert!(Glob::new(&"{".repeat(4000)).is_ok());
        assert!(matches!(Glob::new(&"*".repeat(10_000)), Err(GlobError::TooLong(10_000))));
    }
}
