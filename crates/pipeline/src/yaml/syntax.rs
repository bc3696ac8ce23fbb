//! Syntax errors with helpful messages.

use granit_parser::{ErrorKind, ScanError};

use super::position::Positions;
use crate::diagnostic::Diagnostic;
use crate::limits::Limits;
use crate::node::Span;

pub(super) fn forbidden_character(text: &str, positions: &Positions) -> Option<Diagnostic> {
    let is_forbidden = |byte: &u8| matches!(byte, 0..=8 | 0x0b | 0x0c | 0x0e..=0x1f | 0x7f);
    let offset = text.as_bytes().iter().position(is_forbidden)?;
    let code = text.as_bytes().get(offset).copied().unwrap_or_default();
    let problem = Diagnostic::error(
        positions.at_byte(text, offset, 1),
        format!("invalid YAML: control character U+{code:04X} is not allowed"),
    );
    Some(match code {
        0 => problem.help("the file seems to be binary or UTF-16; save the configuration as UTF-8 text"),
        _ => problem.help(format!("inside double quotes it can be written as `\\x{code:02x}`")),
    })
}

pub(super) fn explain(text: &str, positions: &Positions, limits: &Limits, error: &ScanError) -> Diagnostic {
    let span = positions.between(error.marker(), error.marker());
    let line = line_around(text, span.start as usize);
    if let Some(problem) = indented_by_tab(line, span, error) {
        return problem;
    }
    match error.kind() {
        ErrorKind::RecursionLimitExceeded => return too_deep(span, limits),
        ErrorKind::UnknownAnchor => {
            let name = alias_at(text, span.start as usize);
            return Diagnostic::error(with_length(span, name.len() + 1), format!("unknown alias `{name}`")).help(
                "define the anchor earlier in the same file; to reuse keys of an included file, use `extends` or \
                 `!reference`",
            );
        }
        _ => {}
    }
    let problem = Diagnostic::error(span, format!("invalid YAML: {}", error.info()));
    match help_for(error.kind(), line) {
        Some(help) => problem.help(help),
        None => problem,
    }
}

pub(super) fn too_deep(span: Span, limits: &Limits) -> Diagnostic {
    Diagnostic::error(span, format!("lists and maps are nested more than {} levels deep", limits.depth))
        .help("flatten the configuration; no keyword needs such depth")
}

fn indented_by_tab(line: &str, span: Span, error: &ScanError) -> Option<Diagnostic> {
    let indentation = line.get(..line.len() - line.trim_start().len()).unwrap_or_default();
    let is_about_tabs = matches!(
        error.kind(),
        ErrorKind::TabNotAllowed
            | ErrorKind::TabInBlockIndentation
            | ErrorKind::TabInIndentation
            | ErrorKind::TabAtBlockScalarStart
            | ErrorKind::TabInPlainScalar
    );
    (indentation.contains('\t') || is_about_tabs).then(|| {
        Diagnostic::error(span, format!("invalid YAML: a tab is used as indentation ({})", error.info()))
            .help("indent with spaces; YAML does not allow tabs")
    })
}

fn help_for(kind: &ErrorKind, line: &str) -> Option<&'static str> {
    match kind {
        ErrorKind::MappingValueNotAllowed
        | ErrorKind::MappingKeyNotAllowed
        | ErrorKind::SimpleKeyExpected
        | ErrorKind::InvalidSimpleKey
        | ErrorKind::InvalidColonPlacement => {
            Some("put text that contains `: ` into quotes, and check the indentation of this line and the one before")
        }
        ErrorKind::UnexpectedCharacter { .. } => Some("put text that starts with `@`, `` ` `` or `%` into quotes"),
        ErrorKind::ExpectedFlowSequenceSeparator
        | ErrorKind::ExpectedFlowMappingSeparator
        | ErrorKind::UnclosedFlowCollection { .. }
        | ErrorKind::MismatchedFlowCollectionEnd { .. }
        | ErrorKind::MisplacedFlowCollectionEnd
            if line.contains("$[[") =>
        {
            Some("put an interpolation block inside `[...]` or `{...}` into quotes: \"$[[ inputs.x ]]\"")
        }
        _ => None,
    }
}

fn line_around(text: &str, offset: usize) -> &str {
    let start = text.get(..offset).and_then(|before| before.rfind('\n')).map_or(0, |newline| newline + 1);
    text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default()
}

fn alias_at(text: &str, offset: usize) -> &str {
    let rest = text.get(offset..).unwrap_or_default().trim_start_matches('*');
    let end = rest.find(|letter: char| letter.is_whitespace() || "[]{},".contains(letter)).unwrap_or(rest.len());
    rest.get(..end).unwrap_or_default()
}

fn with_length(span: Span, bytes: usize) -> Span {
    Span { end: span.start.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX)), ..span }
}
