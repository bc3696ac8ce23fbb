//! Regular expressions of `.gitlab-ci.yml`: RE2 syntax, optionally between slashes with flags.
//!
//! Like RE2, the `regex` crate takes linear time and has neither look-around nor back-references, but it differs from RE2 in
//! some details. In RE2, a lone brace and a bracket inside a class are literal text. `\d`, `\w`, `\s` and `\b` are
//! ASCII-only. `\Q...\E` quotes text. Patterns are rewritten so that they mean the same as in RE2.

use regex::{Regex, RegexBuilder};

/// Maximum length of a pattern in bytes.
pub const MAX_PATTERN_BYTES: usize = 16 * 1024;

pub(crate) const MAX_COMPILED_BYTES: usize = 4 * 1024 * 1024;

const MAX_NESTING: u32 = 100;

/// Reason why a pattern does not compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid regular expression: {reason}")]
pub struct RegexpError {
    /// Reason why the pattern is invalid.
    pub reason: String,
    /// How to fix the error, for common mistakes.
    pub help: Option<&'static str>,
}

/// Compiles an RE2 pattern without slashes: `rules:changes:regexp`, `spec:inputs:regex`, `coverage`.
///
/// # Errors
/// Returns [`RegexpError`] if the pattern is not valid in RE2, or too large.
pub fn compile(pattern: &str) -> Result<Regex, RegexpError> {
    compile_with_flags(pattern, "")
}

/// Compiles the pattern and flags of `/pattern/flags`. The flags are `i`, `s`, `m` and `U`, as in RE2.
///
/// # Errors
/// Returns [`RegexpError`] if the pattern is not valid in RE2 or too large, or if a flag is unknown.
pub fn compile_with_flags(pattern: &str, flags: &str) -> Result<Regex, RegexpError> {
    compile_within(pattern, flags, MAX_COMPILED_BYTES).unwrap_or_else(|| {
        let reason = format!("it uses more than {MAX_COMPILED_BYTES} bytes when compiled");
        Err(RegexpError { reason, help: Some("reduce its repetitions") })
    })
}

/// Same as [`compile_with_flags`], with `bytes` as the maximum size of the compiled pattern. Returns `None` if the
/// compiled pattern is larger.
pub(crate) fn compile_within(pattern: &str, flags: &str, bytes: usize) -> Option<Result<Regex, RegexpError>> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Some(Err(RegexpError { reason: format!("it is longer than {MAX_PATTERN_BYTES} bytes"), help: None }));
    }
    if let Some(flag) = flags.chars().find(|flag| !is_flag(*flag)) {
        return Some(Err(RegexpError {
            reason: format!("unknown flag `{flag}`"),
            help: Some("the flags are `i`, `s`, `m` and `U`"),
        }));
    }
    let built = RegexBuilder::new(&adapt(pattern))
        .case_insensitive(flags.contains('i'))
        .dot_matches_new_line(flags.contains('s'))
        .multi_line(flags.contains('m'))
        .swap_greed(flags.contains('U'))
        .size_limit(bytes)
        .nest_limit(MAX_NESTING)
        .build();
    match built {
        Err(regex::Error::CompiledTooBig(_)) => None,
        other => Some(other.map_err(|error| explain(&error))),
    }
}

/// Splits `/pattern/flags` into pattern and flags. Returns `None` if the text does not have this form.
///
/// The pattern may be empty and may contain slashes.
#[must_use]
pub fn split_literal(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix('/')?;
    let (pattern, flags) = inner.rsplit_once('/')?;
    (flags.chars().all(is_flag) && !pattern.contains('\n')).then_some((pattern, flags))
}

/// Returns true if `flag` is valid after `/.../`.
#[must_use]
pub fn is_flag(flag: char) -> bool {
    matches!(flag, 'i' | 's' | 'm' | 'U')
}

/// Converts an error of the `regex` crate. The last line of its text contains the reason; the other lines show the
/// pattern.
fn explain(error: &regex::Error) -> RegexpError {
    let text = error.to_string();
    let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let help = if reason.contains("look-around") {
        Some("RE2 does not support look-ahead and look-behind; match both sides, or use two expressions")
    } else if reason.contains("backreferences") {
        Some("RE2 does not support back-references")
    } else {
        None
    };
    RegexpError { reason, help }
}

fn adapt(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern;
    let mut in_class = false;
    let mut class_start = false;
    while let Some(char) = rest.chars().next() {
        let at_class_start = std::mem::take(&mut class_start);
        let mut consumed = char.len_utf8();
        match char {
            '\\' => consumed += escape(&rest[1..], &mut out),
            '[' if !in_class => {
                in_class = true;
                class_start = true;
                consumed += usize::from(rest[1..].starts_with('^'));
                out.push_str(&rest[..consumed]);
            }
            '[' if rest.starts_with("[:") && rest[2..].contains(":]") => {
                consumed = rest.find(":]").map_or(1, |end| end + 2);
                out.push_str(&rest[..consumed]);
            }
            ']' if in_class && at_class_start => out.push_str("\\]"),
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            '[' => out.push_str("\\["),
            // `--`, `&&` and `~~` are set operations of the regex crate.
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(char);
            }
            '-' if in_class && rest.starts_with("--") => out.push_str("\\-"),
            '{' if !in_class && !is_repetition(rest) => out.push_str("\\{"),
            '}' if !in_class && !closes_repetition(&out) => out.push_str("\\}"),
            _ => out.push(char),
        }
        rest = &rest[consumed..];
    }
    out
}

/// Writes the escape sequence whose backslash precedes `after`. Returns its length in `after`.
fn escape(after: &str, out: &mut String) -> usize {
    let Some(first) = after.chars().next() else {
        out.push('\\');
        return 0;
    };
    let mut consumed = first.len_utf8();
    let rewritten = match first {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        'w' => "[0-9A-Za-z_]",
        'W' => "[^0-9A-Za-z_]",
        's' => "[\\t\\n\\f\\r ]",
        'S' => "[^\\t\\n\\f\\r ]",
        'b' => "(?-u:\\b)",
        '<' => "<",
        '>' => ">",
        'Q' => {
            let (quoted, end) =
                after[consumed..].split_once("\\E").map_or((&after[consumed..], 0), |(text, _)| (text, 2));
            out.push_str(&regex::escape(quoted));
            return consumed + quoted.len() + end;
        }
        _ => {
            // `\p{Greek}` and `\x{10FFFF}` keep their braces.
            if matches!(first, 'p' | 'P' | 'x') && after[consumed..].starts_with('{') {
                consumed = after.find('}').map_or(consumed, |end| end + 1);
            }
            out.push('\\');
            &after[..consumed]
        }
    };
    out.push_str(rewritten);
    consumed
}

fn is_repetition(text: &str) -> bool {
    let Some((inner, _)) = text[1..].split_once('}') else { return false };
    let (low, high) = inner.split_once(',').unwrap_or((inner, ""));
    !low.is_empty() && low.bytes().chain(high.bytes()).all(|byte| byte.is_ascii_digit())
}

fn closes_repetition(out: &str) -> bool {
    out.rfind('{').is_some_and(|open| {
        !out[..open].ends_with('\\')
            && !out[open + 1..].is_empty()
            && out[open + 1..].bytes().all(|byte| byte.is_ascii_digit() || byte == b',')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_the_same_as_in_re2() {
        for (pattern, text) in [
            ("^a{$", "a{"),
            ("^{x}$", "{x}"),
            ("^a{2}$", "aa"),
            ("^a{1,}}$", "aa}"),
            ("^[[]$", "["),
            ("^[]a]+$", "]a"),
            ("^[^]]$", "a"),
            ("^[a&&b]+$", "a&b"),
            ("^[[:alpha:]-]+$", "a-"),
            (r"^\p{Greek}\x{41}$", "αA"),
            (r"^a\/b\-c$", "a/b-c"),
            ("^[a--]+$", "a-"),
            (r"^\w+[\d.-]+\s?$", "ab_1.2- "),
            (r"^[^\W]+\b$", "ab"),
            (r"^\Qa+(\E.$", "a+(b"),
            (r"^\<\>a\b{x}$", "<>a{x}"),
        ] {
            let regex = compile(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            assert!(regex.is_match(text), "{pattern} {text}");
        }
    }

    #[test]
    fn character_classes_are_ascii() {
        for (pattern, text) in [(r"^\d$", "٣"), (r"^\w$", "é"), (r"^\s$", "\u{a0}")] {
            assert!(compile(pattern).is_ok_and(|regex| !regex.is_match(text)), "{pattern} {text}");
        }
    }

    #[test]
    fn flags_mean_the_same_as_in_re2() {
        assert!(compile_with_flags("^AB", "i").is_ok_and(|regex| regex.is_match("abc")));
        assert!(compile_with_flags("a.b", "s").is_ok_and(|regex| regex.is_match("a\nb")));
        assert!(compile_with_flags("^b", "m").is_ok_and(|regex| regex.is_match("a\nb")));
        let ungreedy = compile_with_flags("a+", "U").unwrap();
        assert_eq!(ungreedy.find("aaa").map(|found| found.as_str()), Some("a"));
        assert!(compile_with_flags("ab", "x").is_err());
    }

    #[test]
    fn rejects_unsupported_and_oversized_patterns() {
        let error = compile("(?=x)").unwrap_err();
        assert!(error.reason.contains("look-around"), "{error}");
        assert!(error.help.is_some());
        assert!(compile(r"(a)\1").is_err());
        assert!(compile(&"a".repeat(MAX_PATTERN_BYTES + 1)).is_err());
        assert!(compile("((a{1000}){1000}){1000}").is_err());
        assert!(compile(&"(".repeat(5000)).is_err());
    }

    #[test]
    fn split_literal_requires_slashes_and_known_flags() {
        assert_eq!(split_literal("/^ab.*/"), Some(("^ab.*", "")));
        assert_eq!(split_literal("/a/b/im"), Some(("a/b", "im")));
        assert_eq!(split_literal("/a/x"), None);
        assert_eq!(split_literal("a/b"), None);
        assert_eq!(split_literal("/"), None);
    }
}
