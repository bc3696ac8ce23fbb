//! Resolves the declared inputs of a file (docs/spec/pipeline-yaml.md, section 2.7): checks given values and applies
//! defaults.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value as Json;

use super::header::{Declaration, Kind};
use crate::context::InputValue;
use crate::diagnostic::Diagnostic;
use crate::expression;
use crate::limits::MAX_INPUT_RULES_CHAIN;
use crate::node::{Map, Node, Span, Value};
use crate::patterns::Patterns;
use crate::suggest::{did_you_mean, name_list};

const MAX_SUGGESTIONS: usize = 20;

#[derive(Debug, Clone)]
pub(super) struct GivenInput {
    pub(super) name: String,
    /// Position of the name. `None` if the input is given as a [`GivenValue::Input`].
    pub(super) named_at: Option<Span>,
    /// Position of the value. `None` if the input is given as a [`GivenValue::Input`].
    pub(super) span: Option<Span>,
    pub(super) value: GivenValue,
}

#[derive(Debug, Clone)]
pub(super) enum GivenValue {
    Node(Node),
    Input(InputValue),
}

/// Values of the declared inputs. `None` for inputs without a valid value. Their errors have been reported.
pub(super) type Values = HashMap<Arc<str>, Option<Node>>;

struct Resolution<'a> {
    file: &'a str,
    declarations: &'a [Declaration],
    given: &'a [GivenInput],
    /// Position of the include entry. `None` if the file is not included by another file.
    at: Option<Span>,
    values: Values,
    /// Inputs whose rules are being evaluated.
    in_progress: Vec<Arc<str>>,
    patterns: &'a mut Patterns,
    diagnostics: &'a mut Vec<Diagnostic>,
}

/// Returns the values of the declared inputs. Reports given inputs that are not declared, and invalid or missing
/// values.
pub(super) fn resolve(
    file: &str,
    declarations: &[Declaration],
    given: &[GivenInput],
    at: Option<Span>,
    patterns: &mut Patterns,
    diagnostics: &mut Vec<Diagnostic>,
) -> Values {
    let known: HashSet<&str> = declarations.iter().map(|input| &*input.name).collect();
    for (index, unknown) in given.iter().filter(|given| !known.contains(&*given.name)).enumerate() {
        let mut problem = Diagnostic::error(
            unknown.named_at.or(at),
            format!("`{file}`: unknown input arguments: `{}`", unknown.name),
        );
        let names = || declarations.iter().map(|input| &*input.name);
        // Only the first errors have a suggestion, because each suggestion compares all declared names.
        let suggestion = if index < MAX_SUGGESTIONS { did_you_mean(&unknown.name, names()) } else { None };
        problem.help = suggestion.or_else(|| {
            Some(if declarations.is_empty() {
                "the file declares no inputs: add a header with `spec:inputs`, followed by a line with `---`".to_owned()
            } else {
                format!("the file has the inputs {}", name_list(names()))
            })
        });
        diagnostics.push(problem);
    }
    let mut resolution = Resolution {
        file,
        declarations,
        given,
        at,
        values: Values::new(),
        in_progress: Vec::new(),
        patterns,
        diagnostics,
    };
    for declaration in declarations {
        resolution.value(declaration);
    }
    resolution.values
}

impl Resolution<'_> {
    fn value(&mut self, declaration: &Declaration) -> Option<Node> {
        if let Some(known) = self.values.get(&declaration.name) {
            return known.clone();
        }
        let value = self.compute(declaration);
        self.values.insert(Arc::clone(&declaration.name), value.clone());
        value
    }

    fn compute(&mut self, declaration: &Declaration) -> Option<Node> {
        let (options, default) = if declaration.rules.is_empty() {
            (declaration.options.as_deref(), declaration.default.as_ref())
        } else {
            self.options_and_default(declaration)?
        };
        let given = self.given.iter().rev().find(|given| *given.name == *declaration.name);
        let Some(given) = given else {
            if default.is_none() {
                self.report_missing(declaration);
            }
            return default.cloned();
        };
        let span = given.span.or(self.at);
        let checked = convert_given(given, declaration.kind, span.unwrap_or(declaration.span))
            .and_then(|value| declaration.accepts(&value, options).map(|()| value));
        checked
            .map_err(|reason| {
                let name = &declaration.name;
                let problem = Diagnostic::error(
                    span.or(Some(declaration.span)),
                    format!("`{}`: `{name}` input: provided value {reason}", self.file),
                );
                let problem = match span {
                    Some(_) => problem.related(declaration.span, format!("`{name}` is declared here")),
                    None => problem,
                };
                self.diagnostics.push(problem);
            })
            .ok()
    }

    fn report_missing(&mut self, declaration: &Declaration) {
        let name = &declaration.name;
        let message = format!("`{}`: `{name}` input: required value has not been provided", self.file);
        self.diagnostics.push(match self.at {
            Some(at) => Diagnostic::error(at, message)
                .related(declaration.span, format!("`{name}` is declared here, without a default"))
                .help(format!("add `inputs: {{{name}: ...}}` to the include")),
            None => Diagnostic::error(declaration.span, message)
                .help(format!("provide a value for `{name}` when starting the pipeline, or add a `default`")),
        });
    }

    /// Returns the options and the default of the first matching rule or, if no rule matches, those of the input.
    ///
    /// Reports an error and returns `None` if the rules depend on the input itself or on too long a chain of inputs.
    fn options_and_default<'d>(
        &mut self,
        declaration: &'d Declaration,
    ) -> Option<(Option<&'d [Node]>, Option<&'d Node>)> {
        if self.in_progress.len() >= MAX_INPUT_RULES_CHAIN {
            let message = format!(
                "`{}`: `{}` input: its rules depend on a chain of more than {MAX_INPUT_RULES_CHAIN} inputs",
                self.file, declaration.name
            );
            self.diagnostics.push(Diagnostic::error(declaration.span, message));
            return None;
        }
        if self.in_progress.contains(&declaration.name) {
            let message =
                format!("`{}`: `{}` input: its rules depend on the input itself", self.file, declaration.name);
            self.diagnostics.push(Diagnostic::error(declaration.span, message));
            return None;
        }
        self.in_progress.push(Arc::clone(&declaration.name));
        let mut chosen = (declaration.options.as_deref(), declaration.default.as_ref());
        for rule in &declaration.rules {
            if rule.condition.as_ref().is_none_or(|condition| self.is_met(condition, rule.span)) {
                chosen = (rule.options.as_deref(), rule.default.as_ref());
                break;
            }
        }
        self.in_progress.pop();
        Some(chosen)
    }

    fn is_met(&mut self, condition: &expression::Expression, span: Span) -> bool {
        let mut values: HashMap<&str, expression::Value> = HashMap::new();
        for name in condition.inputs() {
            let declarations = self.declarations;
            match declarations.iter().find(|input| *input.name == *name) {
                Some(input) => {
                    values.insert(name, as_expression_value(self.value(input)));
                }
                None => {
                    let mut problem = Diagnostic::error(span, format!("unknown interpolation key: `{name}`"));
                    problem.help = did_you_mean(name, declarations.iter().map(|input| &*input.name));
                    self.diagnostics.push(problem);
                }
            }
        }
        let input = |name: &str| values.get(name).cloned().unwrap_or(expression::Value::Null);
        condition.evaluate_within(&|_| None, &input, self.patterns).unwrap_or(false)
    }
}

fn as_expression_value(value: Option<Node>) -> expression::Value {
    match value.map(|node| (node.scalar_text(), node.value)) {
        Some((_, Value::Bool(value))) => expression::Value::Bool(value),
        Some((Some(text), _)) => expression::Value::Text(text),
        _ => expression::Value::Null,
    }
}

/// Converts the given value to the declared type if possible. The caller must check the type of the result.
fn convert_given(given: &GivenInput, kind: Kind, span: Span) -> Result<Node, String> {
    let node = match &given.value {
        GivenValue::Node(node) => node.clone(),
        GivenValue::Input(InputValue::Json(json)) => from_json(json, span),
        GivenValue::Input(InputValue::Text(text)) => return from_text(text, kind, span),
    };
    match (&node.value, kind) {
        (Value::String(text), Kind::Array) => from_text(text, kind, node.span),
        _ => Ok(kind.convert(node)),
    }
}

/// Converts a text to the declared type. The text for an array must be a JSON array.
fn from_text(text: &str, kind: Kind, span: Span) -> Result<Node, String> {
    let value = match kind {
        Kind::String => Some(Value::String(text.into())),
        Kind::Boolean => text.trim().parse().ok().map(Value::Bool),
        Kind::Number => match text.trim() {
            number if number.parse::<i64>().is_ok() => number.parse().ok().map(Value::Int),
            number => number.parse().ok().filter(|value: &f64| value.is_finite()).map(Value::Float),
        },
        Kind::Array => match serde_json::from_str(text) {
            Ok(json @ Json::Array(_)) => Some(from_json(&json, span).value),
            _ => return Err("is not an array: write it as a JSON array".to_owned()),
        },
    };
    value.map(|value| Node::new(value, span)).ok_or_else(|| format!("is not a {}: `{text}`", kind.name()))
}

/// Converts JSON to a node. The node and all nodes inside it have the position `span`.
pub(super) fn from_json(json: &Json, span: Span) -> Node {
    let value = match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => {
            number.as_i64().map_or_else(|| Value::Float(number.as_f64().unwrap_or(f64::NAN)), Value::Int)
        }
        Json::String(text) => Value::String(text.as_str().into()),
        Json::Array(items) => Value::List(Arc::new(items.iter().map(|item| from_json(item, span)).collect())),
        Json::Object(entries) => {
            let mut map = Map::default();
            for (key, value) in entries {
                map.insert(key.as_str(), span, from_json(value, span));
            }
            Value::Map(Arc::new(map))
        }
    };
    Node::new(value, span)
}
