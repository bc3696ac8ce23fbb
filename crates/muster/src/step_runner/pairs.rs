//! Arguments of the form `name=value,name=value`.

use std::str::FromStr;

/// Names and values of one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pairs(pub(super) Vec<(String, String)>);

/// Part of an argument that is not a pair of a name and a value.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is not of the form name=value; separate several pairs with commas, and quote a pair with a comma in its value"
)]
pub(super) struct PairsError(String);

impl FromStr for Pairs {
    type Err = PairsError;

    /// Parses the argument. If it has a single `=`, commas belong to the value.
    fn from_str(text: &str) -> Result<Self, PairsError> {
        let parts = if text.matches('=').count() > 1 { split(text) } else { vec![unquote(text).to_owned()] };
        let pair = |part: String| match part.split_once('=') {
            Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
            None => Err(PairsError(part)),
        };
        parts.into_iter().map(pair).collect::<Result<_, _>>().map(Self)
    }
}

fn unquote(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
}

/// Splits at commas, except within a pair that is quoted. Two quotes in a quoted pair are one quote.
fn split(text: &str) -> Vec<String> {
    let (mut parts, mut part, mut is_quoted) = (Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if is_quoted && chars.peek() == Some(&'"') => part.extend(chars.next()),
            '"' if is_quoted || part.is_empty() => is_quoted = !is_quoted,
            ',' if !is_quoted => parts.push(std::mem::take(&mut part)),
            _ => part.push(c),
        }
    }
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[(&str, &str)]) {
        let expected = expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        assert_eq!(text.parse::<Pairs>().unwrap(), Pairs(expected));
    }

    #[test]
    fn commas_separate_pairs_unless_they_are_quoted() {
        check("a=1", &[("a", "1")]);
        check("a=1,2", &[("a", "1,2")]);
        check("a=1,b=2", &[("a", "1"), ("b", "2")]);
        check("\"a=1,2\",b=say \"\"x\"\"", &[("a", "1,2"), ("b", "say \"\"x\"\"")]);
        check("\"a=say \"\"x\"\",y\",b=", &[("a", "say \"x\",y"), ("b", "")]);
        assert!("a".parse::<Pairs>().unwrap_err().to_string().contains("\"a\" is not of the form name=value"));
        assert!("a=1,b,c=2".parse::<Pairs>().is_err());
    }
}
