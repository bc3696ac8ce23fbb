//! Expands `$NAME` and `${NAME}` by the rules of Go's `os.Expand`, which gitlab-runner uses.

/// Replaces each reference with the result of `lookup`. Inserted values are not expanded.
///
/// `$$` is a dollar sign. Special names (`*`, `#`, `@`, `!`, `?`, `-`, digits) expand to empty text. A dollar sign without a name is kept.
/// `${}` and an unclosed `${` are removed.
#[must_use]
pub fn expand(text: &str, lookup: impl Fn(&str) -> String) -> String {
    expand_within(text, usize::MAX, lookup).unwrap_or_default()
}

/// Same as [`expand`]. `None` means that the result would exceed `limit` bytes.
#[must_use]
pub fn expand_within(text: &str, limit: usize, lookup: impl Fn(&str) -> String) -> Option<String> {
    let mut expanded = String::new();
    let mut rest = text;
    // False once no closing brace follows, so that many open braces do not take quadratic time.
    let mut may_close = true;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        if after.is_empty() {
            expanded.push('$');
        }
        let (name, length) = parse_name(after, &mut may_close);
        match name {
            Some("$") => expanded.push('$'),
            Some(name) if is_special(name) => {}
            Some(name) => expanded.push_str(&lookup(name)),
            None if length == 0 && !after.is_empty() => expanded.push('$'),
            None => {}
        }
        if expanded.len() > limit {
            return None;
        }
        rest = after.get(length..).unwrap_or_default();
    }
    expanded.push_str(rest);
    (expanded.len() <= limit).then_some(expanded)
}

/// Parses the text after a `$`. Returns the name, and the number of bytes of `text` that belong to the reference.
fn parse_name<'a>(text: &'a str, may_close: &mut bool) -> (Option<&'a str>, usize) {
    if let Some(inner) = text.strip_prefix('{') {
        let end = if *may_close { inner.find('}') } else { None };
        *may_close = end.is_some();
        return match end {
            Some(0) => (None, 2),
            Some(end) => (inner.get(..end), end + 2),
            None => (None, 1),
        };
    }
    if text.get(..1).is_some_and(is_special) {
        return (text.get(..1), 1);
    }
    let length = text.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
    (text.get(..length).filter(|name| !name.is_empty()), length)
}

fn is_special(name: &str) -> bool {
    matches!(name.as_bytes(), [b'*' | b'#' | b'$' | b'@' | b'!' | b'?' | b'-' | b'0'..=b'9'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expands_references_like_go() {
        let lookup = |name: &str| match name {
            "A" => "1".to_owned(),
            "B_2" => "$A".to_owned(),
            "ä" => "umlaut".to_owned(),
            _ => String::new(),
        };
        for (text, expanded) in [
            ("", ""),
            ("plain", "plain"),
            ("$A", "1"),
            ("${A}x$A.", "1x1."),
            ("$B_2", "$A"),
            ("$$A", "$A"),
            ("${$}A", "$A"),
            ("$$$A", "$1"),
            ("$unknown!", "!"),
            ("${A:-x}", ""),
            ("$1$*$?$-end", "end"),
            ("100$", "100$"),
            ("$ A", "$ A"),
            ("a$.b", "a$.b"),
            ("${}x", "x"),
            ("${A", "A"),
            ("%A%", "%A%"),
            ("$ä${ä}", "$äumlaut"),
        ] {
            assert_eq!(expand(text, lookup), expanded, "{text}");
        }
    }
}
