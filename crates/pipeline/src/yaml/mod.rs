//! Text to a tree of nodes that know their place (pipeline-yaml 2.2).
//!
//! ```text
//! bytes --decode--> text --events--> builder --scalar resolution, aliases, merge keys--> documents
//! ```
//! The grammar is that of libyaml, which GitLab's Psych uses: `granit-parser` with the options that follow libyaml where it and
//! YAML 1.2 disagree. Scalars are resolved as Psych does.
//! Aliases and merge keys share subtrees, and what they stand for is counted, so a file that explodes ends with an error.
//!
//! Invariants: no text panics; time and memory are linear in the text, within [`Limits`].

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

/// One YAML document: what stands between two `---`.
#[derive(Debug, Clone)]
pub struct Document {
    /// Its value.
    pub root: Node,
}

/// The documents of one text.
#[derive(Debug, Clone, Default)]
pub struct Parsed {
    /// In written order.
    pub documents: Vec<Document>,
    /// Repeated keys.
    pub warnings: Vec<Diagnostic>,
    /// How many values there are, every alias written out.
    pub nodes: usize,
}

/// Parses all documents of `text`, which has become `source` of a [`crate::source_map::SourceMap`].
///
/// # Errors
/// Everything that is wrong, as far as it can be seen: a defect of the grammar ends the reading, while unknown tags,
/// unusable keys and merge keys are collected.
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
                    return Err(builder.failed(fatal));
                }
            }
            Err(error) => return Err(builder.failed(syntax::explain(text, &positions, limits, &error))),
        }
    }
    builder.finish()
}

/// The parser's options that follow libyaml.
fn grammar(limits: &Limits) -> Options {
    let mut options = Options::default();
    options.strict_indentation = false;
    options.bom_inside_document_as_content = true;
    options.block_scalar_eof_without_line_feed = true;
    options.set_emit_comments(false);
    // One more level than the builder accepts, so that its error is the one that is reported.
    options.flow_nesting_limit = limits.depth + 1;
    options.block_nesting_limit = limits.depth + 1;
    options
}

#[cfg(test)]
mod tests;
