//! Reader for the YAML documents of step files, as JSON values (docs/spec/steps.md, section 1.1).
//!
//! Anchors, aliases and merge keys are supported. The number of values and their depth are limited.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Number, Value};

/// Error in a YAML document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct YamlError {
    line: usize,
    problem: YamlProblem,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum YamlProblem {
    #[error("{0}")]
    Syntax(String),
    #[error("too many values, or values nested too deeply")]
    TooLarge,
    #[error("the alias has no anchor")]
    UnknownAlias,
    #[error("expected a value")]
    NoValue,
    #[error("the key is not a string")]
    KeyNotString,
    #[error("the key `{0}` is defined twice")]
    DuplicateKey(String),
    #[error("the value of `<<` is not a mapping")]
    MergeNotMapping,
}

/// Maximum number of values in one stream, with aliases expanded.
const MAX_NODES: usize = 100_000;
/// Maximum depth of nested values.
const MAX_DEPTH: usize = 64;

/// Reads the first `documents` documents of a stream. Later documents are not parsed.
///
/// # Errors
/// The text is not valid YAML, or exceeds a limit. The error has the line.
pub(crate) fn parse_documents(text: &str, documents: usize) -> Result<Vec<Value>, YamlError> {
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: HashMap::new(), nodes: 0, line: 1 };
    let mut values = Vec::new();
    loop {
        match reader.next()? {
            Event::DocumentStart(..) => {
                let event = reader.next()?;
                values.push(reader.value(event, 0)?);
                if values.len() == documents {
                    return Ok(values);
                }
            }
            Event::StreamEnd => return Ok(values),
            _ => {}
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, granit_parser::StrInput<'a>>,
    anchors: HashMap<usize, (Value, usize)>,
    nodes: usize,
    line: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Event<'a>, YamlError> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => {
                self.line = span.start.line();
                Ok(event)
            }
            Some(Err(error)) => {
                let problem = YamlProblem::Syntax(error.info().clone());
                Err(YamlError { line: error.marker().line(), problem })
            }
            None => Ok(Event::StreamEnd),
        }
    }

    fn fail<T>(&self, problem: YamlProblem) -> Result<T, YamlError> {
        Err(YamlError { line: self.line, problem })
    }

    fn value(&mut self, event: Event<'a>, depth: usize) -> Result<Value, YamlError> {
        self.nodes += 1;
        if self.nodes > MAX_NODES || depth > MAX_DEPTH {
            return self.fail(YamlProblem::TooLarge);
        }
        let before = self.nodes;
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none();
                (if plain { scalar(&text) } else { Value::String(text.into_owned()) }, anchor)
            }
            Event::SequenceStart(_, anchor, _) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        Event::SequenceEnd => break,
                        event => items.push(self.value(event, depth + 1)?),
                    }
                }
                (Value::Array(items), anchor)
            }
            Event::MappingStart(_, anchor, _) => (self.mapping(depth)?, anchor),
            Event::Alias(anchor) => {
                let Some((value, size)) = self.anchors.get(&anchor).cloned() else {
                    return self.fail(YamlProblem::UnknownAlias);
                };
                self.nodes += size;
                (value, 0)
            }
            _ => return self.fail(YamlProblem::NoValue),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, (value.clone(), self.nodes - before + 1));
        }
        Ok(value)
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, YamlError> {
        let mut map = Map::new();
        let mut merged = Vec::new();
        loop {
            let key = match self.next()? {
                Event::MappingEnd => break,
                Event::Scalar(text, _, _, _) => text.into_owned(),
                _ => return self.fail(YamlProblem::KeyNotString),
            };
            let event = self.next()?;
            let value = self.value(event, depth + 1)?;
            if key == "<<" {
                merged.push(value);
            } else if map.insert(key.clone(), value).is_some() {
                return self.fail(YamlProblem::DuplicateKey(key));
            }
        }
        for value in merged {
            let sources = match value {
                Value::Array(items) => items,
                other => vec![other],
            };
            for source in sources {
                let Value::Object(source) = source else { return self.fail(YamlProblem::MergeNotMapping) };
                for (key, value) in source {
                    map.entry(key).or_insert(value);
                }
            }
        }
        Ok(Value::Object(map))
    }
}

/// Returns the value of a plain scalar by the core schema of YAML 1.2. Like in Go, numbers with a leading zero are octal.
fn scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let (sign, digits) = text.strip_prefix('-').map_or((1, text.strip_prefix('+').unwrap_or(text)), |rest| (-1, rest));
    let radix = |digits: &str, radix| i64::from_str_radix(digits, radix).ok();
    let integer = match digits {
        _ if !digits.starts_with(|c: char| c.is_ascii_digit()) => None,
        _ if digits.starts_with("0x") => digits.get(2..).and_then(|digits| radix(digits, 16)),
        _ if digits.starts_with("0o") => digits.get(2..).and_then(|digits| radix(digits, 8)),
        _ if digits.starts_with('0') && digits.len() > 1 => digits.get(1..).and_then(|digits| radix(digits, 8)),
        _ => digits.parse().ok(),
    };
    if let Some(integer) = integer {
        return Value::Number((sign * integer).into());
    }
    let looks_like_float = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && digits.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-'));
    let float = if looks_like_float { text.parse::<f64>().ok().and_then(Number::from_f64) } else { None };
    float.map_or_else(|| Value::String(text.to_owned()), Value::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parses_documents_scalars_anchors_and_merge_keys() {
        let text =
            "{}\n---\na: &x {k: 1, l: [0x1F, 017, 1.5, yes, ~]}\nb:\n  <<: *x\n  k: two\nc: \"1\"\r\n---\nnever: [\n";
        let values = parse_documents(text, 2).unwrap();
        assert_eq!(values[0], json!({}));
        let list = json!([31, 15, 1.5, "yes", null]);
        assert_eq!(values[1], json!({"a": {"k": 1, "l": list}, "b": {"k": "two", "l": list}, "c": "1"}));
    }

    #[test]
    fn rejects_duplicate_keys_alias_bombs_and_deep_nesting() {
        let error = |text: &str| parse_documents(text, 1).unwrap_err().to_string();
        assert!(error("a: 1\na: 2\n").contains("line 2: the key `a` is defined twice"));
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..12 {
            let refs = vec![format!("*a{}", level - 1); 10].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{refs}]\n"));
        }
        assert!(error(&bomb).contains("too many"));
        assert!(!error(&"[".repeat(500)).is_empty());
    }
}
