//! Text to a tree of nodes that know their place (pipeline-yaml 2.2).
//!
//! ```text
//! bytes --decode--> text --events--> builder --scalar resolution, aliases, merge keys--> documents
//! ```
//! The grammar is that of `saphyr-parser`; scalars are resolved as Ruby's Psych does, since that is what GitLab uses.
//! Aliases and merge keys share subtrees, and what they stand for is counted, so a file that explodes ends with an error.
//!
//! Invariants: no text panics; time and memory are linear in the text, within [`Limits`].

mod build;
mod decorator;
mod position;
mod scalar;
mod source;
mod syntax;

use saphyr_parser::{Event, Parser};

use crate::diagnostic::Diagnostic;
use crate::limits::Limits;
use crate::node::{Node, SourceId};

pub(crate) use decorator::descriptions;
pub(crate) use position::{span_at, span_inside};
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

/// Parses all documents of `text`, which has become `source` of a [`crate::diagnostic::SourceMap`].
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
    let mut parser = Parser::new_from_str(text);
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

#[cfg(test)]
mod tests;
