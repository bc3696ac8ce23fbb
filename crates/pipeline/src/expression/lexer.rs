//! Splits an expression into tokens.

use regex::Regex;

use super::MAX_TOKENS;
use super::error::{ExpressionError, ExpressionErrorKind};
use crate::patterns::Patterns;
use crate::regexp;

/// Set of operands that an expression may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// `rules:if` and `only:variables`
    Variables,
    /// `spec:inputs:rules`. The expression may also use `$[[ inputs.id ]]`.
    Inputs,
}

#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) offset: usize,
    pub(super) text: String,
}

#[derive(Debug, Clone)]
pub(super) enum TokenKind {
    Open,
    Close,
    Input(String),
    Variable(String),
    Text(String),
    Pattern(Box<Regex>),
    Null,
    Bool(bool),
    Equal,
    NotEqual,
    Match,
    NotMatch,
    And,
    Or,
}

/// Maximum length in characters of the excerpt that an error shows.
const EXCERPT_CHARS: usize = 20;

pub(super) fn tokens(text: &str, mode: Mode, patterns: &mut Patterns) -> Result<Vec<Token>, ExpressionError> {
    let mut tokens = Vec::new();
    let mut offset = 0;
    loop {
        let rest = text.get(offset..).unwrap_or_default();
        let trimmed = rest.trim_start_matches(|char: char| char.is_ascii_whitespace());
        offset += rest.len() - trimmed.len();
        if trimmed.is_empty() {
            return Ok(tokens);
        }
        if tokens.len() == MAX_TOKENS {
            let help = "split the expression over several `rules` entries".to_owned();
            return Err(ExpressionError::new(ExpressionErrorKind::TooManyTokens, offset).with_help(help));
        }
        let Some((kind, length)) = token(trimmed, mode, offset, patterns)? else {
            return Err(unknown_lexeme(trimmed, mode, offset));
        };
        tokens.push(Token { kind, offset, text: trimmed[..length].to_owned() });
        offset += length;
    }
}

fn token(
    text: &str,
    mode: Mode,
    offset: usize,
    patterns: &mut Patterns,
) -> Result<Option<(TokenKind, usize)>, ExpressionError> {
    const FIXED: [(&str, TokenKind); 8] = [
        ("(", TokenKind::Open),
        (")", TokenKind::Close),
        ("==", TokenKind::Equal),
        ("=~", TokenKind::Match),
        ("!=", TokenKind::NotEqual),
        ("!~", TokenKind::NotMatch),
        ("&&", TokenKind::And),
        ("||", TokenKind::Or),
    ];
    const WORDS: [(&str, TokenKind); 3] =
        [("null", TokenKind::Null), ("true", TokenKind::Bool(true)), ("false", TokenKind::Bool(false))];

    for (fixed, kind) in FIXED {
        if text.starts_with(fixed) {
            return Ok(Some((kind, fixed.len())));
        }
    }
    for (word, kind) in WORDS {
        if text.strip_prefix(word).is_some_and(|after| !after.starts_with(is_name_char)) {
            return Ok(Some((kind, word.len())));
        }
    }
    match text.as_bytes().first() {
        Some(b'$') if mode == Mode::Inputs && text.starts_with("$[[") => Ok(input(text)),
        Some(b'$') => {
            let name: String = text[1..].chars().take_while(|char| is_name_char(*char)).collect();
            let length = 1 + name.len();
            Ok((!name.is_empty()).then_some((TokenKind::Variable(name), length)))
        }
        Some(&quote @ (b'"' | b'\'')) => Ok(text[1..].find(char::from(quote)).map(|end| {
            // There are no escapes: the next quote of the same kind ends the text.
            (TokenKind::Text(text[1..=end].to_owned()), end + 2)
        })),
        Some(b'/') => pattern(text, offset, patterns),
        _ => Ok(None),
    }
}

fn is_name_char(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_'
}

fn input(text: &str) -> Option<(TokenKind, usize)> {
    let end = text.find("]]")?;
    let id = text.get(3..end)?.trim().strip_prefix("inputs.")?;
    let valid = !id.is_empty() && id.chars().all(|char| is_name_char(char) || char == '-');
    valid.then(|| (TokenKind::Input(id.to_owned()), end + 2))
}

/// Reads the pattern at the start of `text`. Returns `None` if it has no closing slash, or fewer than two characters
/// between its slashes. `\/` is not a closing slash.
fn pattern(text: &str, offset: usize, patterns: &mut Patterns) -> Result<Option<(TokenKind, usize)>, ExpressionError> {
    let Some(body) = pattern_body(text) else { return Ok(None) };
    if body.chars().nth(1).is_none() {
        return Ok(None);
    }
    let after = &text[body.len() + 2..];
    let flags: &str = &after[..after.len() - after.trim_start_matches(regexp::is_flag).len()];
    let regex = patterns.compile(&body.replace("\\/", "/"), flags).map_err(|error| {
        let help = error.help.map(str::to_owned);
        ExpressionError::new(ExpressionErrorKind::Regexp(error), offset).with_help(help)
    })?;
    Ok(Some((TokenKind::Pattern(Box::new(regex)), body.len() + 2 + flags.len())))
}

fn pattern_body(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('/')?;
    let end = inner.match_indices('/').map(|(at, _)| at).find(|at| !inner[..*at].ends_with('\\'))?;
    Some(&inner[..end])
}

fn unknown_lexeme(text: &str, mode: Mode, offset: usize) -> ExpressionError {
    let end = text.find(|char: char| char.is_ascii_whitespace()).unwrap_or(text.len());
    let excerpt: String = text[..end].chars().take(EXCERPT_CHARS).collect();
    let help = help_for(text, mode);
    ExpressionError::new(ExpressionErrorKind::UnknownLexeme(excerpt), offset).with_help(help)
}

fn help_for(text: &str, mode: Mode) -> Option<String> {
    let word: String = text.chars().take_while(|char| is_name_char(*char) || matches!(char, '-' | '.')).collect();
    let help = if text.starts_with("${") || text.starts_with('%') {
        let name: String = text.trim_start_matches(['$', '{', '%']).chars().take_while(|c| is_name_char(*c)).collect();
        format!("variables are written `${name}` in expressions, without braces or percent signs")
    } else if text.starts_with("$[[") && mode == Mode::Inputs {
        "inputs are written `$[[ inputs.name ]]`, without functions".to_owned()
    } else if text.starts_with("$[[") {
        "inputs can be used only in files whose header declares them with `spec:inputs`".to_owned()
    } else if text.starts_with('$') {
        "names of variables contain only letters, digits and underscores; put text into quotes".to_owned()
    } else if text.starts_with('!') {
        "there is no operator `!`: write `$NAME == null` for \"not defined\", or use `!=` or `!~`".to_owned()
    } else if text.starts_with('=') {
        "a comparison is written `==`".to_owned()
    } else if text.starts_with('&') {
        "\"and\" is written `&&`".to_owned()
    } else if text.starts_with('|') {
        "\"or\" is written `||`".to_owned()
    } else if text.starts_with(['<', '>']) {
        "values have no order: compare with `==` and `!=`, or match a pattern with `=~`".to_owned()
    } else if text.starts_with('/') && pattern_body(text).is_some() {
        "a pattern needs at least two characters between its slashes; `/^.$/` matches one character".to_owned()
    } else if text.starts_with('/') {
        "the pattern has no closing `/`; a slash inside it is written `\\/`".to_owned()
    } else if text.starts_with(['"', '\'']) {
        "the closing quote is missing".to_owned()
    } else if !word.is_empty() {
        format!("put text into quotes: `\"{word}\"`; variables begin with `$`")
    } else {
        return None;
    };
    Some(help)
}
