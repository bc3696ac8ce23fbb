//! Masks text that looks like a credential, as the last step before a log line is written.

use std::borrow::Cow;

const MASK: &str = "[MASKED]";
/// Prefixes of GitLab's tokens. The secret part follows them.
const PREFIXES: [&str; 8] = ["glrt-", "glrtr-", "glcbt-", "glpat-", "gldt-", "glptt-", "glsoat-", "GR1348941"];
/// Minimum number of characters after a prefix. Shorter words are not tokens.
const MIN_TOKEN_CHARS: usize = 6;

/// Masks GitLab's tokens, and the text between `://` and `@` in URLs.
#[must_use]
pub fn scrub(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    for prefix in PREFIXES {
        text = replace(text, prefix, |rest| {
            let length = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "_-.".contains(c))).unwrap_or(rest.len());
            (length >= MIN_TOKEN_CHARS).then_some(length)
        });
    }
    replace(text, "://", |rest| {
        let end =
            rest.find(|c: char| c.is_whitespace() || c.is_control() || "/?#\"'".contains(c)).unwrap_or(rest.len());
        rest.get(..end)?.rfind('@')
    })
}

/// Masks the text after each `start`. `length` returns the number of bytes to mask, or `None` for no mask.
fn replace<'a>(text: Cow<'a, str>, start: &str, length: impl Fn(&str) -> Option<usize>) -> Cow<'a, str> {
    if !text.contains(start) {
        return text;
    }
    let mut masked = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some((before, after)) = rest.split_once(start) {
        masked.push_str(before);
        masked.push_str(start);
        rest = after;
        if let Some((_, remaining)) = length(after).and_then(|length| after.split_at_checked(length)) {
            masked.push_str(MASK);
            rest = remaining;
        }
    }
    masked.push_str(rest);
    Cow::Owned(masked)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn masks_tokens_and_credentials_in_urls() {
        let scrubbed = |text: &str| scrub(text).into_owned();
        assert_eq!(scrubbed("token=glrt-t1_abcDEF-123 next"), "token=glrt-[MASKED] next");
        assert_eq!(scrubbed("\"glcbt-64_xyzxyz\""), "\"glcbt-[MASKED]\"");
        assert_eq!(scrubbed("glrtr-aaaaaaaaaa,glpat-bbbbbbbbbb"), "glrtr-[MASKED],glpat-[MASKED]");
        assert_eq!(scrubbed("https://ci:se/cret"), "https://ci:se/cret");
        assert_eq!(scrubbed("repo_url=https://gitlab-ci-token:pw@host/a.git"), "repo_url=https://[MASKED]@host/a.git");
        assert_eq!(scrubbed("http://user@host and http://host/@x"), "http://[MASKED]@host and http://host/@x");
        assert!(matches!(scrub("Added job to processing list runner=abcdefghi"), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn masks_tokens_at_any_position(before in "\\PC{0,20}", token in "[A-Za-z0-9_-]{20}", after in "[ ,\"']\\PC{0,20}") {
            let line = format!("{before}glrt-{token}{after}");
            prop_assert!(!scrub(&line).contains(&token), "{}", scrub(&line));
        }
    }
}
