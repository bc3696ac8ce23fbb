//! Identifiers of the step language.

/// Returns whether a text can name a step, input, output or environment variable.
#[must_use]
pub fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifier_has_ascii_letters_digits_and_underscores_and_no_leading_digit() {
        assert!(["a", "_", "A_1"].into_iter().all(is_identifier));
        assert!(["", "1a", "a-b", "a b", "\u{e9}"].into_iter().all(|text| !is_identifier(text)));
    }
}
