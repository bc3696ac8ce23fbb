//! Replaces `$[[ ... ]]` blocks in the keys and values of a file (docs/spec/pipeline-yaml.md, section 2.7).
//!
//! Works on the tree, so that every node keeps its position. If a scalar consists of one block, the inserted value keeps
//! its type. In a longer text, the value is converted to text. `$[[ matrix.X ]]` is not replaced.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use super::block::{self, Access, Block, BlockError, Function, Piece};
use super::inputs::Values;
use super::merge::Budget;
use super::variables::Variables;
use crate::context::ComponentFields;
use crate::diagnostic::Diagnostic;
use crate::limits::{Limits, MAX_INTERPOLATED_TEXT_BYTES};
use crate::node::{Map, Node, Span, Value};
use crate::suggest::did_you_mean;

/// Number of blocks of a scalar whose errors show the position of the block. Errors of later blocks show the position
/// of the scalar.
const MAX_BLOCKS_WITH_SPAN: usize = 50;
const MAX_COMPARED_INPUTS: usize = 100;

pub(super) struct Interpolator<'a> {
    pub(super) inputs: &'a Values,
    /// True if a file that declares inputs was skipped. Unknown inputs are then null.
    pub(super) lacks_inputs: bool,
    /// Whether an unknown input was used since the last top-level key.
    pub(super) lacks_value: bool,
    /// Top-level keys that use an unknown input.
    pub(super) incomplete_keys: &'a mut HashSet<Arc<str>>,
    pub(super) declared_fields: &'a [String],
    /// Fields of the component. `None` if the file is not a component.
    pub(super) component: Option<&'a ComponentFields>,
    pub(super) variables: &'a Variables,
    /// Text of the file, to locate single blocks.
    pub(super) text: &'a str,
    pub(super) limits: &'a Limits,
    pub(super) depth: usize,
    /// True if a value was nested too deeply, so that the file cannot be used. The error has been reported.
    pub(super) is_too_deep: bool,
    /// Bytes that interpolation may still produce in this compilation. 0 means that no further blocks are replaced.
    pub(super) remaining_bytes: &'a mut usize,
    pub(super) budget: &'a mut Budget,
    pub(super) diagnostics: &'a mut Vec<Diagnostic>,
}

impl Interpolator<'_> {
    /// Returns the node with its blocks replaced. Returns `None` if nothing was replaced, or if the budget is spent.
    pub(super) fn node(&mut self, node: &Node) -> Option<Node> {
        self.budget.spend(1);
        if self.budget.is_spent() {
            return None;
        }
        let value = match &node.value {
            Value::String(text) => self.scalar(text, node.span)?,
            Value::List(items) => {
                let mut result: Option<Vec<Node>> = None;
                self.depth += 1;
                for (index, item) in items.iter().enumerate() {
                    if let Some(changed) = self.node(item)
                        && let Some(slot) = result.get_or_insert_with(|| items.to_vec()).get_mut(index)
                    {
                        *slot = changed;
                    }
                }
                self.depth -= 1;
                Value::List(Arc::new(result?))
            }
            Value::Map(map) => Value::Map(Arc::new(self.map(map)?)),
            Value::Reference(path) if path.iter().any(|key| key.contains(block::OPEN)) => {
                let keys =
                    path.iter().map(|key| self.key(key, node.span).map_or_else(|| key.clone(), |key| key.to_string()));
                Value::Reference(Arc::new(keys.collect()))
            }
            _ => return None,
        };
        Some(Node::new(value, node.span))
    }

    /// Returns the map with the blocks in its keys and values replaced. Returns `None` if nothing was replaced.
    pub(super) fn map(&mut self, map: &Map) -> Option<Map> {
        let mut changed = false;
        let mut result = Map::default();
        self.depth += 1;
        for (key, entry) in map.iter() {
            let new_key = self.key(key, entry.key_span);
            let new_node = self.node(&entry.node);
            changed |= new_key.is_some() || new_node.is_some();
            let node = new_node.unwrap_or_else(|| entry.node.clone());
            let key = new_key.unwrap_or_else(|| Arc::clone(key));
            if self.depth == 1 && std::mem::take(&mut self.lacks_value) {
                self.incomplete_keys.insert(Arc::clone(&key));
            }
            result.insert(key, entry.key_span, node);
        }
        self.depth -= 1;
        changed.then_some(result)
    }

    fn key(&mut self, key: &str, span: Span) -> Option<Arc<str>> {
        let value = self.scalar(key, span)?;
        let node = Node::new(value, span);
        match node.scalar_text() {
            Some(text) => Some(text.into()),
            None if self.lacks_inputs && node.is_null() => None,
            None => {
                self.report(BlockError::new(format!("keys must be text, not {}", node.kind()), None), span);
                None
            }
        }
    }

    /// Returns the value of a scalar whose blocks are replaced. Returns `None` if nothing is replaced, or if the text
    /// is too long.
    fn scalar(&mut self, text: &str, span: Span) -> Option<Value> {
        if !text.contains(block::OPEN) || *self.remaining_bytes == 0 {
            return None;
        }
        if text.len() > MAX_INTERPOLATED_TEXT_BYTES {
            let message =
                format!("a text with interpolation blocks is longer than {MAX_INTERPOLATED_TEXT_BYTES} bytes");
            self.report(BlockError::new(message, None), span);
            return None;
        }
        let pieces = block::pieces(text);
        if let [Piece::Block(inner)] = pieces.as_slice() {
            return self.block(inner, span, 0);
        }
        let mut result = String::with_capacity(text.len());
        let mut blocks = 0;
        for piece in &pieces {
            let inner = match piece {
                Piece::Text(text) => {
                    result.push_str(text);
                    continue;
                }
                Piece::Block(inner) => inner,
            };
            match self.block(inner, span, blocks) {
                Some(value) => push_text(&mut result, &value),
                None => {
                    let _ = write!(result, "{}{inner}]]", block::OPEN);
                }
            }
            blocks += 1;
            if let Err(problem) = self.check_length(result.len()) {
                self.report(problem, span);
                return None;
            }
        }
        // The text may continue after the last block.
        if let Err(problem) = self.check_length(result.len()) {
            self.report(problem, span);
            return None;
        }
        *self.remaining_bytes = self.remaining_bytes.saturating_sub(result.len());
        (result != text).then(|| Value::String(result.into()))
    }

    /// Returns an error if a text of this length is too long, or if it uses up `remaining_bytes`. In the second case,
    /// no further blocks are replaced.
    fn check_length(&mut self, bytes: usize) -> Result<(), BlockError> {
        if bytes >= *self.remaining_bytes {
            *self.remaining_bytes = 0;
            return Err(BlockError::new("the configuration is too long after interpolation", None));
        }
        if bytes > MAX_INTERPOLATED_TEXT_BYTES {
            let message = format!("the text is longer than {MAX_INTERPOLATED_TEXT_BYTES} bytes after interpolation");
            return Err(BlockError::new(message, None));
        }
        Ok(())
    }

    /// Returns the value that replaces a block. Returns `None` if the block is not replaced. `number` is the index of
    /// the block in the scalar at `span`.
    fn block(&mut self, inner: &str, span: Span, number: usize) -> Option<Value> {
        match block::parse(inner).and_then(|block| self.evaluate(&block)) {
            Ok(value) => value,
            Err(problem) => {
                self.report(problem, self.block_span(span, number));
                None
            }
        }
    }

    fn evaluate(&mut self, block: &Block<'_>) -> Result<Option<Value>, BlockError> {
        let value = match block.access {
            Access::Matrix => return Ok(None),
            Access::Input(name) => match self.inputs.get(name) {
                Some(Some(node)) if self.is_within_depth(&node.value, self.depth) => node.value.clone(),
                Some(Some(_)) => return Err(self.too_deep_error(name)),
                Some(None) => return Ok(None),
                None if self.lacks_inputs => {
                    self.lacks_value = true;
                    return Ok(Some(Value::Null));
                }
                None => {
                    let help = did_you_mean(name, self.inputs.keys().map(|key| &**key).take(MAX_COMPARED_INPUTS))
                        .or_else(|| {
                            Some(format!(
                                "declare the input in the header of this file: `spec: {{inputs: {{{name}: }}}}`"
                            ))
                        });
                    return Err(BlockError::new(format!("unknown interpolation key: `inputs.{name}`"), help));
                }
            },
            Access::Component(field) => self.component_field(field)?,
        };
        block.functions.iter().try_fold(value, |value, function| self.apply(function, value)).map(Some)
    }

    fn is_within_depth(&mut self, value: &Value, depth: usize) -> bool {
        self.budget.spend(1);
        if depth > self.limits.depth {
            return false;
        }
        match value {
            Value::List(items) => items.iter().all(|item| self.is_within_depth(&item.value, depth + 1)),
            Value::Map(map) => map.iter().all(|(_, entry)| self.is_within_depth(&entry.node.value, depth + 1)),
            _ => true,
        }
    }

    /// Records that the file cannot be used, and returns the error.
    fn too_deep_error(&mut self, name: &str) -> BlockError {
        self.is_too_deep = true;
        let levels = self.limits.depth;
        let message = format!("with the value of `{name}`, lists and maps are nested more than {levels} levels deep");
        BlockError::new(message, Some("flatten the value; no keyword needs such depth".to_owned()))
    }

    fn component_field(&self, field: &str) -> Result<Value, BlockError> {
        if !self.declared_fields.iter().any(|declared| declared == field) {
            let help = did_you_mean(field, self.declared_fields.iter().map(String::as_str))
                .or_else(|| Some(format!("declare the field in the header: `spec: {{component: [{field}]}}`")));
            return Err(BlockError::new(format!("unknown interpolation key: `component.{field}`"), help));
        }
        let Some(fields) = self.component else {
            let help = "only a file that is included as a `component` has these fields".to_owned();
            return Err(BlockError::new(format!("`component.{field}` can only be used in a component"), Some(help)));
        };
        Ok(match field {
            "name" => Value::String(fields.name.as_str().into()),
            "sha" => Value::String(fields.sha.as_str().into()),
            "reference" => Value::String(fields.reference.as_str().into()),
            _ => fields.version.as_deref().map_or(Value::Null, |version| Value::String(version.into())),
        })
    }

    fn apply(&mut self, function: &Function, value: Value) -> Result<Value, BlockError> {
        let Value::String(text) = value else {
            let kind = Node::new(value, NO_SPAN).kind();
            return Err(BlockError::new(
                format!("interpolation functions can be used only with text, not with {kind}"),
                None,
            ));
        };
        let result = match function {
            Function::ExpandVars => self.expand(&text)?,
            Function::Truncate { offset, length } => text.chars().skip(*offset).take(*length).collect(),
            Function::PosixEscape => posix_escape(&text),
        };
        self.check_length(result.len())?;
        *self.remaining_bytes = self.remaining_bytes.saturating_sub(result.len());
        Ok(Value::String(result.into()))
    }

    fn expand(&self, text: &str) -> Result<String, BlockError> {
        self.variables.expand_visible(text).map_err(|name| {
            BlockError::new(
                format!("`expand_vars` cannot use the masked variable `{name}`"),
                Some(
                    "the configuration would show the value of the variable; use the variable in `script` instead"
                        .to_owned(),
                ),
            )
        })
    }

    /// Returns the position of the block with the index `number` in the scalar at `span`. If the block cannot be
    /// located, returns `span`.
    fn block_span(&self, span: Span, number: usize) -> Span {
        let written = self.text.get(span.start as usize..span.end as usize).unwrap_or_default();
        if number >= MAX_BLOCKS_WITH_SPAN {
            return span;
        }
        let found = written.match_indices(block::OPEN).nth(number).and_then(|(offset, _)| {
            let length = written.get(offset..)?.find("]]")? + 2;
            Some(crate::source_map::span_inside(span, written, offset, length))
        });
        found.unwrap_or(span)
    }

    fn report(&mut self, problem: BlockError, span: Span) {
        let mut diagnostic = Diagnostic::error(span, problem.message);
        diagnostic.help = problem.help;
        self.diagnostics.push(diagnostic);
    }
}

fn push_text(out: &mut String, value: &Value) {
    match value {
        Value::String(text) => out.push_str(text),
        Value::Null => {}
        Value::List(_) | Value::Map(_) | Value::Reference(_) => push_json(out, value),
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
            out.push_str(&Node::new(value.clone(), NO_SPAN).scalar_text().unwrap_or_default());
        }
    }
}

/// Appends a value as JSON, with a space after each comma and colon. Once the text is too long, omits further values.
pub(super) fn push_json(out: &mut String, value: &Value) {
    match value {
        _ if out.len() > MAX_INTERPOLATED_TEXT_BYTES => {}
        Value::List(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                push_json(out, &item.value);
            }
            out.push(']');
        }
        Value::Map(map) => {
            out.push('{');
            for (index, (key, entry)) in map.iter().enumerate() {
                let _ = write!(out, "{}{}: ", if index == 0 { "" } else { ", " }, serde_json::Value::from(&**key));
                push_json(out, &entry.node.value);
            }
            out.push('}');
        }
        Value::String(text) => {
            let _ = write!(out, "{}", serde_json::Value::from(&**text));
        }
        Value::Null => out.push_str("null"),
        // A reference that is not resolved here, such as one in `include:inputs`, is the list of its keys.
        Value::Reference(keys) => {
            let keys: Vec<_> = keys.iter().map(|key| serde_json::Value::from(&**key).to_string()).collect();
            let _ = write!(out, "[{}]", keys.join(", "));
        }
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => push_text(out, value),
    }
}

/// Escapes like Ruby's `Shellwords.escape`.
fn posix_escape(text: &str) -> String {
    if text.is_empty() {
        return "''".to_owned();
    }
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' => escaped.push_str("'\n'"),
            _ if char.is_ascii_alphanumeric() || "_-.,:+/@".contains(char) => escaped.push(char),
            _ => {
                escaped.push('\\');
                escaped.push(char);
            }
        }
    }
    escaped
}

/// Position of temporary nodes, which no message shows.
const NO_SPAN: Span = Span { source: crate::node::SourceId(0), line: 1, column: 1, start: 0, end: 0 };
