//! Parses YAML into a tree of nodes with positions (docs/spec/pipeline-yaml.md, section 2.2).
//!
//! ```text
//! bytes --decode--> text --events--> builder --scalar resolution, aliases, merge keys--> documents
//! ```
//! GitLab's Psych uses libyaml. Where libyaml and YAML 1.2 differ, `granit-parser` is configured to follow libyaml.
//! Scalars are resolved as in Psych. Aliases and merge keys share subtrees, but [`Limits`] count the expanded values.

mod build;
mod decorator;
mod position;
mod scalar;
mod source;
mod syntax;

use granit_parser::{Event, Options, Parser};

use crate::diagnostic::Diagnostic;
use crate::limits::Limits;
use crate::node::{Node, SourceId};

pub(crate) use decorator::descriptions;
pub use source::decode;

/// A YAML document.
#[derive(Debug, Clone)]
pub struct Document {
    /// Value of the document.
    pub root: Node,
}

/// The documents of a text.
#[derive(Debug, Clone, Default)]
pub struct Parsed {
    /// The documents in written order.
    pub documents: Vec<Document>,
    /// Warnings about duplicate keys and merge keys.
    pub warnings: Vec<Diagnostic>,
    /// Number of values, after aliases have been expanded.
    pub nodes: usize,
}

/// Parses all documents of `text`, which is `source` in a [`crate::source_map::SourceMap`].
///
/// # Errors
/// Returns all errors that can be detected. A syntax error or an exceeded limit ends the parsing. Unknown tags, invalid
/// references, invalid keys and invalid merge keys are collected.
pub fn parse(source: SourceId, text: &str, limits: &Limits) -> Result<Parsed, Vec<Diagnostic>> {
    let positions = position::Positions::new(source, text);
    if text.len() > limits.file_bytes {
        return Err(vec![source::too_large(text.len(), limits)]);
    }
    if let Some(problem) = syntax::forbidden_character(text, &positions) {
        return Err(vec![problem]);
    }
    let mut builder = build::Builder::new(text, &positions, limits);
    let mut parser = Parser::new_from_str_with_options(text, grammar(limits));
    while let Some(next) = parser.next_event() {
        match next {
            Ok((Event::StreamEnd, _)) => break,
            Ok((event, span)) => {
                if let Err(fatal) = builder.event(event, span) {
                    return Err(builder.into_errors(fatal));
                }
            }
            Err(error) => return Err(builder.into_errors(syntax::explain(text, &positions, limits, &error))),
        }
    }
    builder.finish()
}

fn grammar(limits: &Limits) -> Options {
    let mut options = Options::default();
    options.strict_indentation = false;
    options.bom_inside_document_as_content = true;
    options.block_scalar_eof_without_line_feed = true;
    options.set_emit_comments(false);
    // The parser allows one more level than the builder, so that the builder reports the error.
    options.flow_nesting_limit = limits.depth + 1;
    options.block_nesting_limit = limits.depth + 1;
    options
}

#[cfg(test)]
mod tests;
