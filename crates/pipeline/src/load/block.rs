//! Parses interpolation blocks: `$[[ inputs.name | function(argument) ]]` (docs/spec/pipeline-yaml.md, section 2.7).

use crate::limits::{MAX_INTERPOLATION_BLOCK_BYTES, MAX_INTERPOLATION_FUNCTIONS};
use crate::suggest::did_you_mean;

pub(super) const OPEN: &str = "$[[";
const CLOSE: &str = "]]";
const FUNCTIONS: &[&str] = &["expand_vars", "truncate", "posix_escape"];

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    Text(&'a str),
    Block(&'a str),
}

/// Splits a text into blocks and the texts around them. A `$[[` without `]]` is literal text.
pub(super) fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, (inner, after))) =
        rest.split_once(OPEN).and_then(|(before, after)| Some((before, after.split_once(CLOSE)?)))
    {
        if !before.is_empty() {
            pieces.push(Piece::Text(before));
        }
        pieces.push(Piece::Block(inner));
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest));
    }
    pieces
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block<'a> {
    pub(super) access: Access<'a>,
    pub(super) functions: Vec<Function>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Access<'a> {
    Input(&'a str),
    Component(&'a str),
    /// `$[[ matrix.X ]]`. Replaced only when `needs:parallel:matrix` is resolved.
    Matrix,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Function {
    ExpandVars,
    /// Position and length in characters.
    Truncate {
        offset: usize,
        length: usize,
    },
    PosixEscape,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct BlockError {
    pub(super) message: String,
    pub(super) help: Option<String>,
}

impl BlockError {
    pub(super) fn new(message: impl Into<String>, help: Option<String>) -> Self {
        Self { message: message.into(), help }
    }
}

pub(super) fn parse(inner: &str) -> Result<Block<'_>, BlockError> {
    if inner.len() > MAX_INTERPOLATION_BLOCK_BYTES {
        let message = format!(
            "interpolation block is too long: {} bytes (maximum is {MAX_INTERPOLATION_BLOCK_BYTES})",
            inner.len()
        );
        return Err(BlockError::new(message, None));
    }
    let mut parts = inner.split('|').map(str::trim);
    let path = parts.next().unwrap_or_default();
    let access = match path.split_once('.') {
        Some(("matrix", _)) => return Ok(Block { access: Access::Matrix, functions: Vec::new() }),
        Some(("inputs", name)) if !name.is_empty() => Access::Input(name),
        Some(("component", field)) if !field.is_empty() => Access::Component(field),
        _ => {
            let help = "a block must start with `inputs.<name>` or `component.<field>`";
            return Err(BlockError::new(format!("unknown interpolation key: `{path}`"), Some(help.to_owned())));
        }
    };
    let calls: Vec<&str> = parts.collect();
    if calls.len() > MAX_INTERPOLATION_FUNCTIONS {
        let message = format!(
            "too many functions in interpolation block: {} (maximum is {MAX_INTERPOLATION_FUNCTIONS})",
            calls.len()
        );
        return Err(BlockError::new(message, None));
    }
    let functions = calls.into_iter().map(parse_function).collect::<Result<Vec<_>, _>>()?;
    let escape = functions.iter().position(|function| *function == Function::PosixEscape);
    let expand = functions.iter().rposition(|function| *function == Function::ExpandVars);
    if let (Some(escape), Some(expand)) = (escape, expand)
        && escape < expand
    {
        let help = "write `expand_vars | posix_escape`, so that the expanded value is escaped".to_owned();
        return Err(BlockError::new("`posix_escape` must follow `expand_vars`", Some(help)));
    }
    Ok(Block { access, functions })
}

fn parse_function(call: &str) -> Result<Function, BlockError> {
    let (name, arguments) = match call.split_once('(') {
        Some((name, rest)) => match rest.strip_suffix(')') {
            Some(arguments) => (name.trim(), Some(arguments)),
            None => return Err(BlockError::new(format!("`{call}` is missing a closing `)`"), None)),
        },
        None => (call, None),
    };
    match (name, arguments) {
        ("expand_vars", None) => Ok(Function::ExpandVars),
        ("posix_escape", None) => Ok(Function::PosixEscape),
        ("truncate", Some(arguments)) => parse_truncate(arguments),
        ("truncate", None) => parse_truncate(""),
        ("expand_vars" | "posix_escape", Some(_)) => Err(BlockError::new(
            format!("`{name}` takes no arguments"),
            Some(format!("write `{name}` without parentheses")),
        )),
        _ => Err(BlockError::new(
            format!("unknown function `{name}`"),
            did_you_mean(name, FUNCTIONS.iter().copied()).or_else(|| {
                Some("the functions are `expand_vars`, `truncate(offset,length)` and `posix_escape`".to_owned())
            }),
        )),
    }
}

fn parse_truncate(arguments: &str) -> Result<Function, BlockError> {
    let numbers: Vec<Option<usize>> = arguments.split(',').map(|number| number.trim().parse().ok()).collect();
    match numbers.as_slice() {
        &[Some(offset), Some(length)] => Ok(Function::Truncate { offset, length }),
        _ => Err(BlockError::new(
            "`truncate` takes two integers",
            Some(
                "write `truncate(offset,length)`, both in characters; the first character has the offset 0".to_owned(),
            ),
        )),
    }
}
