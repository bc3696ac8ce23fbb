//! Builds nodes from the events of the parser. Resolves tags, anchors and merge keys, and limits the number of values
//! that aliases expand to.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use granit_parser::{Event, ScalarStyle, Tag};

use super::position::Positions;
use super::{Document, Parsed, scalar, syntax};
use crate::diagnostic::Diagnostic;
use crate::limits::Limits;
use crate::node::{Map, Node, Span, Value};

/// Namespace of the tags that `!!` abbreviates.
const CORE_TAGS: &str = "tag:yaml.org,2002:";

#[derive(Clone)]
struct Built {
    node: Node,
    nodes: usize,
    /// Nesting depth of lists and maps.
    height: usize,
    is_merge_key: bool,
}

struct Frame {
    collection: Collection,
    /// 0 means that the collection has no anchor.
    anchor: usize,
    span: Span,
    nodes: usize,
    height: usize,
}

enum Collection {
    List {
        items: Vec<Node>,
        is_reference: bool,
    },
    /// A map, the keys that `<<` added to it, and the key whose value comes next.
    Map {
        map: Map,
        merged: HashSet<Arc<str>>,
        key: Key,
    },
}

enum Key {
    None,
    Text(Arc<str>, Span),
    Merge,
    /// The error has been reported. The value is ignored.
    Invalid,
}

pub(super) struct Builder<'a> {
    text: &'a str,
    positions: &'a Positions,
    limits: &'a Limits,
    stack: Vec<Frame>,
    anchors: HashMap<usize, Built>,
    nodes: usize,
    documents: Vec<Document>,
    problems: Vec<Diagnostic>,
    warnings: Vec<Diagnostic>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(text: &'a str, positions: &'a Positions, limits: &'a Limits) -> Self {
        Self {
            text,
            positions,
            limits,
            stack: Vec::new(),
            anchors: HashMap::new(),
            nodes: 0,
            documents: Vec::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Handles an event of the parser. After an error, parsing must end.
    pub(super) fn event(&mut self, event: Event<'_>, parser_span: granit_parser::Span) -> Result<(), Diagnostic> {
        let span = self.positions.span(&parser_span);
        match event {
            Event::DocumentStart(..) => {
                self.anchors.clear();
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                let value = self.scalar(&text, style, tag.as_deref(), span);
                let is_merge_key = style == ScalarStyle::Plain && tag.is_none() && text == "<<";
                self.complete(Built { node: Node::new(value, span), nodes: 1, height: 0, is_merge_key }, anchor, 1)
            }
            Event::SequenceStart(_, anchor, tag) => {
                let is_reference = self.is_reference(tag.as_deref(), "seq", span);
                self.open(Collection::List { items: Vec::new(), is_reference }, anchor, span)
            }
            Event::MappingStart(_, anchor, tag) => {
                if self.is_reference(tag.as_deref(), "map", span) {
                    self.problems.push(invalid_reference(span));
                }
                let map = Collection::Map { map: Map::default(), merged: HashSet::new(), key: Key::None };
                self.open(map, anchor, span)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(span),
            Event::Alias(anchor) => self.alias(anchor, span),
            // Start and end of the stream, and the end of a document. The parser emits no comments.
            _ => Ok(()),
        }
    }

    pub(super) fn finish(self) -> Result<Parsed, Vec<Diagnostic>> {
        if self.problems.is_empty() {
            Ok(Parsed { documents: self.documents, warnings: self.warnings, nodes: self.nodes })
        } else {
            Err(self.problems)
        }
    }

    pub(super) fn into_errors(mut self, fatal: Diagnostic) -> Vec<Diagnostic> {
        self.problems.push(fatal);
        self.problems
    }

    fn open(&mut self, collection: Collection, anchor: usize, span: Span) -> Result<(), Diagnostic> {
        if self.stack.len() >= self.limits.depth {
            return Err(syntax::too_deep(span, self.limits));
        }
        self.stack.push(Frame { collection, anchor, span, nodes: 1, height: 0 });
        Ok(())
    }

    fn close(&mut self, end: Span) -> Result<(), Diagnostic> {
        let Some(frame) = self.stack.pop() else { return Ok(()) };
        let mut span = frame.span;
        let value = match frame.collection {
            Collection::List { items, is_reference } => {
                span.end = end_of(items.last().map(|item| item.span.end), span, end);
                if is_reference { self.reference(&items, span) } else { Value::List(Arc::new(items)) }
            }
            Collection::Map { map, .. } => {
                let last = map.iter().last().map(|(_, entry)| entry.node.span.end.max(entry.key_span.end));
                span.end = end_of(last, span, end);
                Value::Map(Arc::new(map))
            }
        };
        let built =
            Built { node: Node::new(value, span), nodes: frame.nodes, height: frame.height + 1, is_merge_key: false };
        self.complete(built, frame.anchor, 1)
    }

    fn alias(&mut self, anchor: usize, span: Span) -> Result<(), Diagnostic> {
        let Some(target) = self.anchors.get(&anchor) else {
            let name = self.written(span);
            return Err(Diagnostic::error(
                span,
                format!("alias `{name}` is used inside its own anchor, or its anchor is in another document"),
            ));
        };
        let built = target.clone();
        if self.stack.len() + built.height > self.limits.depth {
            return Err(syntax::too_deep(span, self.limits));
        }
        let expanded_nodes = built.nodes;
        self.complete(built, 0, expanded_nodes)
    }

    /// Adds a complete value to its parent: the document, a list, or a map. `added` is the number of values to add to
    /// the count of the file: 1 for a list or map, whose contents are already counted.
    fn complete(&mut self, built: Built, anchor: usize, added: usize) -> Result<(), Diagnostic> {
        if anchor > 0 {
            self.anchors.insert(anchor, Built { is_merge_key: false, ..built.clone() });
        }
        self.count(added, built.node.span)?;
        let Some(frame) = self.stack.last_mut() else {
            self.documents.push(Document { root: built.node });
            return Ok(());
        };
        frame.nodes = frame.nodes.saturating_add(built.nodes);
        frame.height = frame.height.max(built.height);
        match &mut frame.collection {
            Collection::List { items, .. } => items.push(built.node),
            Collection::Map { map, merged, key } => match std::mem::replace(key, Key::None) {
                Key::None => *key = parse_key(&built, self.text, &mut self.problems),
                Key::Text(text, span) => {
                    if let Some(earlier) = map.insert(Arc::clone(&text), span, built.node)
                        && !merged.remove(&text)
                    {
                        self.warnings.push(duplicate_key_warning(&text, span, earlier.key_span));
                    }
                }
                Key::Merge => merge_into(map, merged, &built.node, &mut self.problems, &mut self.warnings),
                Key::Invalid => {}
            },
        }
        Ok(())
    }

    fn count(&mut self, added: usize, span: Span) -> Result<(), Diagnostic> {
        self.nodes = self.nodes.saturating_add(added);
        if self.nodes <= self.limits.file_nodes {
            return Ok(());
        }
        Err(Diagnostic::error(
            span,
            format!("the file has more than {} values after its aliases are expanded", self.limits.file_nodes),
        )
        .help("nested aliases multiply; use fewer aliases, or split the file with `include`"))
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, tag: Option<&Tag>, span: Span) -> Value {
        let Some(tag) = tag else {
            return if style == ScalarStyle::Plain { scalar::resolve(text) } else { Value::String(text.into()) };
        };
        let resolved = match tag.core_suffix() {
            Some("str") => Some(Value::String(text.into())),
            Some("null") => Some(Value::Null),
            Some("bool") => scalar::boolean(text).map(Value::Bool),
            Some("int" | "float") => scalar::number(text),
            _ => None,
        };
        if let Some(value) = resolved {
            return value;
        }
        // The tag `!` marks a value as text.
        let is_exclamation_mark =
            (tag.handle().is_empty() && tag.suffix() == "!") || (tag.handle() == "!" && tag.suffix().is_empty());
        if !is_exclamation_mark && self.is_reference(Some(tag), "str", span) {
            self.problems.push(invalid_reference(span));
        }
        Value::String(text.into())
    }

    /// Returns true if the tag is `!reference`. Reports any other tag except `default_tag`, the tag that the value
    /// would have if none were written.
    fn is_reference(&mut self, tag: Option<&Tag>, default_tag: &str, span: Span) -> bool {
        let Some(tag) = tag else { return false };
        if tag.handle() == "!" && tag.suffix() == "reference" {
            return true;
        }
        if !tag.is_yaml_core_schema_tag(default_tag) {
            let written = match tag.suffix_in_namespace(CORE_TAGS) {
                Some(suffix) => format!("!!{suffix}"),
                None => tag.original(),
            };
            let problem = Diagnostic::error(span, format!("the tag `{written}` cannot be used here"));
            self.problems.push(match crate::suggest::closest(tag.suffix(), ["reference"]) {
                Some(_) => problem.help("did you mean `!reference`?"),
                None => problem.help("`!reference [job, keyword]` is the only tag that a configuration can use"),
            });
        }
        false
    }

    fn reference(&mut self, items: &[Node], span: Span) -> Value {
        let path: Option<Vec<String>> = items.iter().map(Node::scalar_text).collect();
        match path {
            Some(path) if !path.is_empty() => Value::Reference(Arc::new(path)),
            _ => {
                self.problems.push(invalid_reference(span));
                Value::Null
            }
        }
    }

    fn written(&self, span: Span) -> &'a str {
        self.text.get(span.start as usize..span.end as usize).unwrap_or_default()
    }
}

/// Returns the end of a list or map: that of the closing bracket, or of the last value if there are no brackets.
fn end_of(last: Option<u32>, start: Span, end: Span) -> u32 {
    if end.end > end.start { end.end } else { last.unwrap_or(start.end).max(start.end) }
}

fn parse_key(built: &Built, text: &str, problems: &mut Vec<Diagnostic>) -> Key {
    let span = built.node.span;
    if built.is_merge_key {
        return Key::Merge;
    }
    match &built.node.value {
        Value::String(key) => Key::Text(Arc::clone(key), span),
        Value::Null => {
            Key::Text(text.get(span.start as usize..span.end as usize).unwrap_or_default().trim().into(), span)
        }
        _ => match built.node.scalar_text() {
            Some(key) => Key::Text(key.into(), span),
            None => {
                problems.push(
                    Diagnostic::error(span, format!("keys must be text, not {}", built.node.kind()))
                        .help("put the key into quotes to make it text"),
                );
                Key::Invalid
            }
        },
    }
}

/// Adds the keys of `from`, the value of `<<`, to `map`. If `from` is a list of maps, the first map that contains a key
/// wins.
///
/// As in Psych, which GitLab uses, merged keys replace the keys before `<<`, and the keys after `<<` replace merged
/// keys.
fn merge_into(
    map: &mut Map,
    merged: &mut HashSet<Arc<str>>,
    from: &Node,
    problems: &mut Vec<Diagnostic>,
    warnings: &mut Vec<Diagnostic>,
) {
    let sources: &[Node] = match &from.value {
        Value::Map(_) => std::slice::from_ref(from),
        Value::List(list) => list,
        _ => &[],
    };
    let invalid = match &from.value {
        Value::Map(_) | Value::List(_) => sources.iter().find(|source| source.as_map().is_none()),
        _ => Some(from),
    };
    if let Some(node) = invalid {
        problems.push(
            Diagnostic::error(
                node.span,
                format!("the merge key `<<` must be a map or a list of maps, not {}", node.kind()),
            )
            .help("use an anchor of a map: `<<: *name`; to reuse the keys of another job, use `extends`"),
        );
    }
    let mut seen = HashSet::new();
    for (key, entry) in sources.iter().filter_map(Node::as_map).flat_map(Map::iter) {
        if !seen.insert(key) {
            continue;
        }
        let replaced = map.insert(Arc::clone(key), entry.key_span, entry.node.clone());
        if let Some(replaced) = replaced.filter(|_| !merged.contains(key)) {
            warnings.push(
                Diagnostic::warning(
                    from.span,
                    format!("`<<` replaces the earlier `{key}`: later keys win, as on GitLab"),
                )
                .related(replaced.key_span, "the earlier key is here")
                .help("put `<<` first to keep the keys of this map"),
            );
        }
        merged.insert(Arc::clone(key));
    }
}

fn duplicate_key_warning(key: &str, span: Span, earlier: Span) -> Diagnostic {
    Diagnostic::warning(span, format!("duplicate key `{key}`; the last one is used"))
        .related(earlier, "first written here")
        .help("remove or rename one of them")
}

fn invalid_reference(span: Span) -> Diagnostic {
    Diagnostic::error(span, "`!reference` must be a list of strings".to_owned())
        .help("write the path to the value: `!reference [.setup, script]`")
}
