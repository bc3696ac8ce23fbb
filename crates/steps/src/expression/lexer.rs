//! Splits the text of an expression into tokens.

use super::ExpressionError;
use super::template::{self, Part};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Number(f64),
    /// String. An expression inside double quotes is a separate part.
    Text(Vec<Part>),
    Name(String),
    Symbol(&'static str),
    End,
}

/// Operators, punctuation and brackets. Longer symbols come first: `<=` is not `<` and `=`.
const SYMBOLS: [&str; 26] = [
    "||", "&&", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "!", ".", ",", ":", "(", ")", "[", "]", "{",
    "}", "?", "|", "&",
];

/// Returns the tokens of `text` with their offsets. The last token is [`Token::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<(Token, usize)>, ExpressionError> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        let Some(first) = rest.chars().next() else { break };
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let (token, length) = match first {
            '"' | '\'' => string(rest, at)?,
            '0'..='9' => number(rest, at)?,
            c if c.is_alphabetic() || c == '_' => {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                (Token::Name(rest.get(..end).unwrap_or_default().to_owned()), end)
            }
            other => match SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
                Some(symbol) => (Token::Symbol(symbol), symbol.len()),
                None => return Err(syntax(format!("unexpected {other:?}"), at)),
            },
        };
        tokens.push((token, at));
        at += length;
    }
    tokens.push((Token::End, text.len()));
    Ok(tokens)
}

fn syntax(message: impl Into<String>, offset: usize) -> ExpressionError {
    ExpressionError::Syntax { message: message.into(), offset }
}

fn number(rest: &str, at: usize) -> Result<(Token, usize), ExpressionError> {
    let mut end = 0;
    let bytes = rest.as_bytes();
    let digit = |index: usize| bytes.get(index).is_some_and(u8::is_ascii_digit);
    while digit(end) || (bytes.get(end) == Some(&b'.') && digit(end + 1)) {
        end += 1;
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        if digit(end + 1 + sign) {
            end += 1 + sign;
            while digit(end) {
                end += 1;
            }
        }
    }
    let text = rest.get(..end).unwrap_or_default();
    let value = text.parse().map_err(|_| syntax(format!("{text:?} is not a number"), at))?;
    Ok((Token::Number(value), end))
}

/// Reads a string with its quotes. Inside single quotes, only `\\` and `\'` are escapes.
fn string(rest: &str, at: usize) -> Result<(Token, usize), ExpressionError> {
    let double = rest.starts_with('"');
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut index = 1;
    loop {
        let tail = rest.get(index..).unwrap_or_default();
        let Some(c) = tail.chars().next() else { return Err(syntax("expected the end of the string", at)) };
        if (double && c == '"') || (!double && c == '\'') {
            parts.push(Part::Literal(literal));
            return Ok((Token::Text(parts), index + 1));
        }
        if double && tail.starts_with("${{") {
            let length = template::expression_length(tail).ok_or_else(|| syntax("expected `}}`", at + index))?;
            parts.push(Part::Literal(std::mem::take(&mut literal)));
            parts.push(Part::Expression(tail.get(3..length - 2).unwrap_or_default().to_owned()));
            index += length;
            continue;
        }
        if c != '\\' {
            literal.push(c);
            index += c.len_utf8();
            continue;
        }
        let (text, length) = if double { escape(tail) } else { raw_escape(tail) }
            .ok_or_else(|| syntax("unknown escape in the string", at + index))?;
        literal.push_str(&text);
        index += length;
    }
}

fn raw_escape(tail: &str) -> Option<(String, usize)> {
    match tail.chars().nth(1)? {
        c @ ('\\' | '\'') => Some((c.to_string(), 2)),
        _ => Some(("\\".to_owned(), 1)),
    }
}

fn escape(tail: &str) -> Option<(String, usize)> {
    if tail.starts_with("\\${{") {
        return Some(("${{".to_owned(), 4));
    }
    let c = match tail.chars().nth(1)? {
        c @ ('\\' | '"' | '/') => c,
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'v' => '\u{b}',
        'u' => {
            let code = u32::from_str_radix(tail.get(2..6)?, 16).ok()?;
            return Some((char::from_u32(code)?.to_string(), 6));
        }
        _ => return None,
    };
    Some((c.to_string(), 2))
}
