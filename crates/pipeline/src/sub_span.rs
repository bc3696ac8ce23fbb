//! Locates a part of a scalar in the source file, for errors inside expressions.

use std::sync::Arc;

use crate::node::Span;
use crate::source_map::SourceMap;
use crate::source_map::span_inside;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SubSpan {
    /// Value of the scalar, after quotes and escapes have been resolved.
    pub(crate) text: Arc<str>,
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

impl SubSpan {
    /// Returns the position of the part in the file. `whole` is the span of the scalar. Returns `None` if the file does
    /// not contain the value literally: in a block or multi-line scalar, after interpolation, or with escapes of other
    /// characters than quotes, `\` and `/`.
    pub(crate) fn find(&self, whole: Span, sources: &SourceMap) -> Option<Span> {
        let source = sources.get(whole.source)?;
        let written = source.text.get(usize::try_from(whole.start).ok()?..usize::try_from(whole.end).ok()?)?;
        let start = written_offset(written, &self.text, self.offset)?;
        let end = written_offset(written, &self.text, self.offset + self.length)?;
        Some(span_inside(whole, written, start, end.saturating_sub(start)))
    }
}

/// Converts the offset `at` in the value `text` of a scalar to an offset in `written`, the source text of the scalar.
/// Returns `None` if `written` is not a plain or quoted scalar on one line, or does not contain the value literally.
fn written_offset(written: &str, text: &str, at: usize) -> Option<usize> {
    if written.contains('\n') || !text.is_char_boundary(at) {
        return None;
    }
    if written.trim_end() == text {
        return Some(at);
    }
    let quote = written.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    let mut rest = written.get(1..)?.strip_suffix(quote)?;
    let mut found = None;
    for (index, char) in text.char_indices() {
        if index == at {
            found = Some(written.len() - 1 - rest.len());
        }
        rest = match (quote, char) {
            ('\'', '\'') => rest.strip_prefix("''")?,
            ('"', '"' | '\\') => rest.strip_prefix('\\')?.strip_prefix(char)?,
            ('"', '/') => rest.strip_prefix('\\').unwrap_or(rest).strip_prefix('/')?,
            _ => rest.strip_prefix(char)?,
        };
    }
    rest.is_empty().then(|| found.unwrap_or(written.len() - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_value_offsets_to_source_offsets() {
        for (written, text, at, expected) in [
            ("$A = b", "$A = b", 3, Some(3)),
            ("$A = b  ", "$A = b", 6, Some(6)),
            ("'$A = ''b'", "$A = 'b", 6, Some(8)),
            (r#""ü\"\\\/ b""#, r#"ü"\/ b"#, 6, Some(10)),
            ("\"$A ==\"", "$A ==", 5, Some(6)),
            ("\"\\x41 = b\"", "A = b", 2, None),
            ("|\n  $A = b\n", "$A = b\n", 3, None),
            ("'$[[ inputs.a ]] = b'", "x = b", 2, None),
            ("'", "'", 2, None),
            ("ü", "ü", 1, None),
        ] {
            assert_eq!(written_offset(written, text, at), expected, "{written}");
        }
    }
}
