//! Parses the header of a file: `spec:inputs`, `spec:component`, `spec:include` (docs/spec/pipeline-yaml.md, section
//! 1.1).

use std::sync::Arc;

use regex::Regex;

use super::entry::{self, Entry};
use super::interpolate::push_json;
use crate::diagnostic::Diagnostic;
use crate::expand::ByteBudget;
use crate::expression::{self, Expression};
use crate::limits::{MAX_INPUT_OPTIONS, MAX_INTERPOLATED_TEXT_BYTES};
use crate::node::{Map, Node, Span, Value};
use crate::patterns::Patterns;
use crate::suggest::did_you_mean;

const SPEC_KEYS: &[&str] = &["inputs", "include", "component"];
const INPUT_KEYS: &[&str] = &["type", "default", "description", "options", "regex", "rules"];
const RULE_KEYS: &[&str] = &["if", "options", "default"];
/// Fields of `$[[ component.* ]]`.
pub(super) const COMPONENT_FIELDS: &[&str] = &["name", "sha", "version", "reference"];

#[derive(Debug, Default)]
pub(super) struct Header {
    pub(super) inputs: Vec<Declaration>,
    /// Fields that `spec:component` declares.
    pub(super) component: Vec<String>,
    /// Files that declare further inputs.
    pub(super) includes: Vec<Entry>,
}

#[derive(Debug)]
pub(super) struct Declaration {
    pub(super) name: Arc<str>,
    pub(super) span: Span,
    pub(super) kind: Kind,
    /// Default value. `None` means that a value is required, unless a rule has a default.
    pub(super) default: Option<Node>,
    pub(super) options: Option<Vec<Node>>,
    pub(super) regex: Option<Regex>,
    pub(super) rules: Vec<Rule>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    String,
    Number,
    Boolean,
    Array,
}

#[derive(Debug)]
pub(super) struct Rule {
    /// `None` means that the rule always applies.
    pub(super) condition: Option<Expression>,
    pub(super) span: Span,
    pub(super) options: Option<Vec<Node>>,
    pub(super) default: Option<Node>,
}

impl Kind {
    const ALL: &'static [(Self, &'static str)] =
        &[(Self::String, "string"), (Self::Number, "number"), (Self::Boolean, "boolean"), (Self::Array, "array")];

    pub(super) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("string", |(_, name)| name)
    }

    /// Converts a value to this declared type as GitLab does. If the type is string, a number or a boolean becomes
    /// text. If the type is boolean, the strings `"true"` and `"false"` become booleans. Returns any other value
    /// unchanged.
    pub(super) fn convert(self, node: Node) -> Node {
        let value = match (self, &node.value) {
            (Self::String, Value::Int(_) | Value::Float(_) | Value::Bool(_)) => {
                node.scalar_text().map(|text| Value::String(text.into()))
            }
            (Self::Boolean, Value::String(text)) => text.parse().ok().map(Value::Bool),
            _ => None,
        };
        match value {
            Some(value) => Node::new(value, node.span),
            None => node,
        }
    }

    /// Converts a default value to this declared type. If the type is string, `default: null` means the empty string.
    fn convert_default(self, node: &Node) -> Node {
        match (self, &node.value) {
            (Self::String, Value::Null) => Node::new(Value::String("".into()), node.span),
            _ => self.convert(node.clone()),
        }
    }

    pub(super) fn matches(self, value: &Node) -> bool {
        matches!(
            (self, &value.value),
            (Self::String, Value::String(_))
                | (Self::Number, Value::Int(_) | Value::Float(_))
                | (Self::Boolean, Value::Bool(_))
                | (Self::Array, Value::List(_))
        )
    }
}

pub(super) fn header(
    root: &Map,
    include_budget: &ByteBudget,
    patterns: &mut Patterns,
    diagnostics: &mut Vec<Diagnostic>,
) -> Header {
    for (key, entry) in root.iter().filter(|(key, _)| &***key != "spec") {
        diagnostics.push(
            Diagnostic::error(entry.key_span, format!("header config contains unknown keys: `{key}`"))
                .help("the header can contain only `spec`; put jobs after a line with `---`"),
        );
    }
    let mut header = Header::default();
    let Some(spec) = root.get("spec") else { return header };
    let Some(map) = map_or_null(spec, "spec", diagnostics) else { return header };
    report_unknown_keys(map, SPEC_KEYS, "header:spec", diagnostics);
    if let Some(inputs) = map.get("inputs") {
        header.inputs = declarations(inputs, patterns, diagnostics);
    }
    if let Some(fields) = map.get("component").filter(|node| !node.is_null()) {
        header.component = component(fields, diagnostics);
    }
    if let Some(include) = map.get("include") {
        header.includes = entry::entries(include, include_budget, diagnostics);
    }
    header
}

pub(super) fn declarations(
    inputs: &Node,
    patterns: &mut Patterns,
    diagnostics: &mut Vec<Diagnostic>,
) -> Vec<Declaration> {
    let Some(map) = map_or_null(inputs, "spec:inputs", diagnostics) else { return Vec::new() };
    map.iter()
        .filter_map(|(name, entry)| {
            let declared = map_or_null(&entry.node, &format!("spec:inputs:{name}"), diagnostics);
            if declared.is_none() && !entry.node.is_null() {
                return None;
            }
            Some(declaration(name, entry.key_span, declared.unwrap_or(&Map::default()), patterns, diagnostics))
        })
        .collect()
}

fn declaration(
    name: &Arc<str>,
    span: Span,
    map: &Map,
    patterns: &mut Patterns,
    diagnostics: &mut Vec<Diagnostic>,
) -> Declaration {
    report_unknown_keys(map, INPUT_KEYS, &format!("spec:inputs:{name}"), diagnostics);
    let kind = kind(name, map, diagnostics);
    let regex = map.get("regex").and_then(|node| regex(name, kind, node, patterns, diagnostics));
    let declaration = Declaration {
        name: Arc::clone(name),
        span,
        kind,
        default: map.get("default").map(|node| kind.convert_default(node)),
        options: options(name, kind, map, diagnostics),
        regex,
        rules: rules(name, kind, map, patterns, diagnostics),
    };
    let declared = std::iter::once((&declaration.default, &declaration.options));
    for (default, options) in declared.chain(declaration.rules.iter().map(|rule| (&rule.default, &rule.options))) {
        if let Some(default) = default
            && let Err(reason) = declaration.accepts(default, options.as_deref())
        {
            diagnostics.push(Diagnostic::error(default.span, format!("`{name}` input: default value {reason}")));
        }
    }
    declaration
}

impl Declaration {
    /// Checks the type and the pattern of a value, and that the value, or each element of a list, is one of `options`.
    ///
    /// # Errors
    /// Returns the reason as the rest of a sentence whose subject is the value.
    pub(super) fn accepts(&self, value: &Node, options: Option<&[Node]>) -> Result<(), String> {
        if !self.kind.matches(value) {
            let article = if self.kind == Kind::Array { "an" } else { "a" };
            return Err(format!("is not {article} {}: it is {}", self.kind.name(), value.kind()));
        }
        let elements = value.as_list().unwrap_or(std::slice::from_ref(value));
        if let Some(options) = options
            && !elements.iter().all(|element| options.iter().any(|option| values_equal(option, element)))
        {
            let listed: Vec<String> = options.iter().filter_map(Node::scalar_text).collect();
            return Err(format!("is not one of the options: {}", listed.join(", ")));
        }
        match (&self.regex, value.as_str()) {
            (Some(regex), Some(text)) if !regex.is_match(text) => {
                Err(format!("does not match the required pattern: {}", regex.as_str()))
            }
            _ => Ok(()),
        }
    }
}

fn kind(name: &str, map: &Map, diagnostics: &mut Vec<Diagnostic>) -> Kind {
    let Some(node) = map.get("type").filter(|node| !node.is_null()) else { return Kind::String };
    let written = node.as_str().unwrap_or_default();
    if let Some((kind, _)) = Kind::ALL.iter().find(|(_, known)| *known == written) {
        return *kind;
    }
    let mut problem = Diagnostic::error(node.span, format!("`{name}` input: unknown type `{written}`"));
    problem.help = did_you_mean(written, Kind::ALL.iter().map(|(_, name)| *name))
        .or_else(|| Some("the types are `string`, `number`, `boolean` and `array`".to_owned()));
    diagnostics.push(problem);
    Kind::String
}

fn options(name: &str, kind: Kind, map: &Map, diagnostics: &mut Vec<Diagnostic>) -> Option<Vec<Node>> {
    let node = map.get("options").filter(|node| !node.is_null())?;
    let problem = match node.as_list() {
        Some(_) if kind == Kind::Boolean => "`options` cannot be used with a boolean".to_owned(),
        Some(options) if options.len() > MAX_INPUT_OPTIONS => {
            format!("`options` has more than {MAX_INPUT_OPTIONS} entries")
        }
        Some(options) => return Some(options.iter().map(|option| kind.convert(option.clone())).collect()),
        None => format!("`options` should be a list of values, not {}", node.kind()),
    };
    diagnostics.push(Diagnostic::error(node.span, format!("`{name}` input: {problem}")));
    None
}

fn regex(
    name: &str,
    kind: Kind,
    node: &Node,
    patterns: &mut Patterns,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<Regex> {
    let problem = match node.as_str() {
        Some(_) if kind != Kind::String => {
            Diagnostic::error(node.span, format!("`{name}` input: `regex` can only be used with strings"))
        }
        Some(pattern) => match patterns.compile(pattern, "") {
            Ok(regex) => return Some(regex),
            Err(error) => {
                let problem = Diagnostic::error(node.span, format!("`{name}` input: {error}"));
                error.help.map_or(problem.clone(), |help| problem.help(help))
            }
        },
        None => {
            Diagnostic::error(node.span, format!("`{name}` input: `regex` should be a pattern, not {}", node.kind()))
        }
    };
    diagnostics.push(problem);
    None
}

fn rules(name: &str, kind: Kind, map: &Map, patterns: &mut Patterns, diagnostics: &mut Vec<Diagnostic>) -> Vec<Rule> {
    let Some(node) = map.get("rules").filter(|node| !node.is_null()) else { return Vec::new() };
    let Some(items) = node.as_list() else {
        diagnostics.push(Diagnostic::error(
            node.span,
            format!("`{name}` input: `rules` should be a list, not {}", node.kind()),
        ));
        return Vec::new();
    };
    let mut rules = Vec::new();
    for item in items {
        let Some(map) = item.as_map() else {
            diagnostics.push(Diagnostic::error(
                item.span,
                format!(
                    "`{name}` input: a rule should be a map with `if`, `options` or `default`, not {}",
                    item.kind()
                ),
            ));
            continue;
        };
        report_unknown_keys(map, RULE_KEYS, &format!("spec:inputs:{name}:rules"), diagnostics);
        let condition = match map.get("if").map(|node| condition(name, node, patterns)).transpose() {
            Ok(condition) => condition,
            Err(problem) => {
                diagnostics.push(*problem);
                continue;
            }
        };
        let options = options(name, kind, map, diagnostics);
        // In a rule without `options`, `default: null` means that the input has no default.
        let default = map.get("default").filter(|node| options.is_some() || !node.is_null());
        let default = default.map(|node| kind.convert_default(node));
        rules.push(Rule { condition, span: item.span, options, default });
    }
    rules
}

fn condition(name: &str, node: &Node, patterns: &mut Patterns) -> Result<Expression, Box<Diagnostic>> {
    let Value::String(text) = &node.value else {
        let message = format!("`{name}` input: `if` must be an expression, not {}", node.kind());
        return Err(Diagnostic::error(node.span, message).into());
    };
    expression::parse_input_rule_within(text, patterns).map_err(|error| {
        let mut problem = Diagnostic::error(node.span, format!("`{name}` input: {error}")).inside(text, error.range());
        problem.help = error.help;
        problem.into()
    })
}

fn component(node: &Node, diagnostics: &mut Vec<Diagnostic>) -> Vec<String> {
    let Some(items) = node.as_list() else {
        diagnostics
            .push(Diagnostic::error(node.span, format!("`spec:component` should be a list, not {}", node.kind())));
        return Vec::new();
    };
    let mut fields = Vec::new();
    for item in items {
        match item.as_str() {
            Some(field) if COMPONENT_FIELDS.contains(&field) => fields.push(field.to_owned()),
            _ => diagnostics.push(
                Diagnostic::error(item.span, "`spec:component` has an unknown field")
                    .help("the fields are `name`, `sha`, `version` and `reference`"),
            ),
        }
    }
    fields
}

/// Returns the map of a node. Returns `None` if the node is null, which counts as an empty map. If the node is anything
/// else, reports an error and returns `None`.
fn map_or_null<'a>(node: &'a Node, path: &str, diagnostics: &mut Vec<Diagnostic>) -> Option<&'a Map> {
    if node.as_map().is_none() && !node.is_null() {
        diagnostics.push(Diagnostic::error(node.span, format!("`{path}` should be a map, not {}", node.kind())));
    }
    node.as_map()
}

fn report_unknown_keys(map: &Map, known: &[&str], path: &str, diagnostics: &mut Vec<Diagnostic>) {
    for (key, entry) in map.iter().filter(|(key, _)| !known.contains(&&***key)) {
        let mut problem = Diagnostic::error(entry.key_span, format!("{path} config contains unknown keys: `{key}`"));
        problem.help = did_you_mean(key, known.iter().copied())
            .or_else(|| Some(format!("valid keys are `{}`", known.join("`, `"))));
        diagnostics.push(problem);
    }
}

/// Returns `None` if the JSON is too long.
fn list_as_json(node: &Node) -> Option<String> {
    let mut text = String::new();
    push_json(&mut text, &node.value);
    (text.len() <= MAX_INTERPOLATED_TEXT_BYTES).then_some(text)
}

/// `1.0` equals `1`. Lists are compared as JSON. Nulls and maps are never equal.
fn values_equal(option: &Node, value: &Node) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "real options are far below 2^53")]
    let number = |node: &Node| match node.value {
        Value::Int(value) => Some(value as f64),
        Value::Float(value) => Some(value),
        _ => None,
    };
    match (&option.value, &value.value) {
        (Value::String(option), Value::String(value)) => option == value,
        (Value::Bool(option), Value::Bool(value)) => option == value,
        (Value::List(_), Value::List(_)) => list_as_json(option).is_some_and(|text| list_as_json(value) == Some(text)),
        _ => number(option).is_some_and(|option| number(value) == Some(option)),
    }
}
