//! Reader for the YAML documents of step files (docs/spec/steps.md, section 1.1).
//!
//! Supports anchors, aliases and merge keys, with limits for the number and depth of values.

use std::collections::HashMap;

use granit_parser::{Event, Parser, ScalarStyle};
use indexmap::IndexMap;
use serde_json::{Number, Value};

use crate::expression::to_text;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Node {
    /// Null, boolean, number or string.
    Scalar {
        /// Text in the file, such as `1.10`.
        text: String,
        value: Value,
    },
    /// Date, or date and time, which JSON lacks.
    Timestamp(String),
    List(Vec<Node>),
    Map(IndexMap<String, Node>),
}

impl Node {
    /// Returns the number of levels below this value.
    fn levels(&self) -> usize {
        let below_items = match self {
            Self::Scalar { .. } | Self::Timestamp(_) => None,
            Self::List(items) => items.iter().map(Self::levels).max(),
            Self::Map(map) => map.values().map(Self::levels).max(),
        };
        below_items.map_or(0, |levels| levels + 1)
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Self::Scalar { value: Value::Null, .. })
    }

    pub(crate) fn as_map(&self) -> Option<&IndexMap<String, Self>> {
        if let Self::Map(map) = self { Some(map) } else { None }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        if let Self::Scalar { value: Value::String(text), .. } = self { Some(text) } else { None }
    }

    /// Returns the text of a scalar as it is in the file. `None` means that the value is null, a list or a mapping.
    pub(crate) fn to_scalar_text(&self) -> Option<String> {
        match self {
            Self::Scalar { value: Value::Null, .. } | Self::List(_) | Self::Map(_) => None,
            Self::Scalar { text, .. } | Self::Timestamp(text) => Some(text.clone()),
        }
    }

    /// Converts the value to JSON.
    ///
    /// # Errors
    /// The value is or contains a timestamp. The error is its text.
    pub(crate) fn to_json(&self) -> Result<Value, String> {
        Ok(match self {
            Self::Scalar { value, .. } => value.clone(),
            Self::Timestamp(text) => return Err(text.clone()),
            Self::List(items) => Value::Array(items.iter().map(Self::to_json).collect::<Result<_, _>>()?),
            Self::Map(map) => {
                let entry = |(key, value): (&String, &Self)| value.to_json().map(|value| (key.clone(), value));
                Value::Object(map.iter().map(entry).collect::<Result<_, _>>()?)
            }
        })
    }
}

impl From<&Value> for Node {
    fn from(value: &Value) -> Self {
        match value {
            Value::Array(items) => Self::List(items.iter().map(Self::from).collect()),
            Value::Object(object) => {
                Self::Map(object.iter().map(|(key, value)| (key.clone(), Self::from(value))).collect())
            }
            scalar => Self::Scalar { text: to_text(scalar), value: scalar.clone() },
        }
    }
}

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
    KeyNotScalar,
    #[error("the key `{0}` is not a string; put it in quotes")]
    KeyNotString(String),
    #[error("the key `{0}` is defined twice")]
    DuplicateKey(String),
    #[error("the value of `<<` is not a mapping")]
    MergeNotMapping,
}

/// Maximum number of values, with expanded aliases.
const MAX_NODES: usize = 100_000;
/// Maximum depth of a value, with expanded aliases.
const MAX_DEPTH: usize = 64;

/// Reads at most `max_documents` documents. Later documents are not parsed.
///
/// # Errors
/// The text is invalid YAML, or exceeds a limit. The error has the line.
pub(crate) fn parse_documents(text: &str, max_documents: usize) -> Result<Vec<Node>, YamlError> {
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: HashMap::new(), nodes: 0, line: 1 };
    let mut values = Vec::new();
    loop {
        match reader.next()? {
            Event::DocumentStart(..) => {
                let event = reader.next()?;
                values.push(reader.value(event, 0)?);
                if values.len() == max_documents {
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
    /// Values by anchor ID, each with its number of values and its levels.
    anchors: HashMap<usize, (Node, usize, usize)>,
    /// Number of values so far, with expanded aliases.
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

    fn value(&mut self, event: Event<'a>, depth: usize) -> Result<Node, YamlError> {
        self.nodes += 1;
        if self.nodes > MAX_NODES || depth > MAX_DEPTH {
            return self.fail(YamlProblem::TooLarge);
        }
        let before = self.nodes;
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none();
                (if plain { plain_scalar(&text) } else { string(&text) }, anchor)
            }
            Event::SequenceStart(_, anchor, _) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        Event::SequenceEnd => break,
                        event => items.push(self.value(event, depth + 1)?),
                    }
                }
                (Node::List(items), anchor)
            }
            Event::MappingStart(_, anchor, _) => (self.mapping(depth)?, anchor),
            Event::Alias(anchor) => {
                let Some((value, size, levels)) = self.anchors.get(&anchor).cloned() else {
                    return self.fail(YamlProblem::UnknownAlias);
                };
                if depth + levels > MAX_DEPTH {
                    return self.fail(YamlProblem::TooLarge);
                }
                self.nodes += size;
                (value, 0)
            }
            _ => return self.fail(YamlProblem::NoValue),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, (value.clone(), self.nodes - before + 1, value.levels()));
        }
        Ok(value)
    }

    fn mapping(&mut self, depth: usize) -> Result<Node, YamlError> {
        let mut map = IndexMap::new();
        let mut merged = Vec::new();
        loop {
            let key = match self.next()? {
                Event::MappingEnd => break,
                Event::Scalar(text, ScalarStyle::Plain, _, None) if string(&text) != plain_scalar(&text) => {
                    return self.fail(YamlProblem::KeyNotString(text.into_owned()));
                }
                Event::Scalar(text, _, _, _) => text.into_owned(),
                _ => return self.fail(YamlProblem::KeyNotScalar),
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
                Node::List(items) => items,
                other => vec![other],
            };
            for source in sources {
                let Node::Map(source) = source else { return self.fail(YamlProblem::MergeNotMapping) };
                for (key, value) in source {
                    map.entry(key).or_insert(value);
                }
            }
        }
        Ok(Node::Map(map))
    }
}

fn string(text: &str) -> Node {
    Node::Scalar { text: text.to_owned(), value: Value::String(text.to_owned()) }
}

fn plain_scalar(text: &str) -> Node {
    if is_timestamp(text) {
        return Node::Timestamp(text.to_owned());
    }
    Node::Scalar { text: text.to_owned(), value: scalar(text) }
}

/// Returns whether a plain scalar is a date or a date and time, such as `2001-12-14t21:59:43.10-05:00`.
fn is_timestamp(text: &str) -> bool {
    let date_end = text.find(['T', 't', ' ']).unwrap_or(text.len());
    let (date, time) = text.split_at(date_end);
    let is_number = |text: &str, lengths: std::ops::RangeInclusive<usize>| {
        lengths.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let mut parts = date.split('-');
    let (year, month, day) = (parts.next(), parts.next(), parts.next());
    let is_date = year.is_some_and(|year| is_number(year, 4..=4))
        && [month, day].iter().all(|part| part.is_some_and(|part| is_number(part, 1..=2)))
        && parts.next().is_none();
    let mut parts = time.trim_start_matches(['T', 't', ' ']).splitn(3, ':');
    let is_time = [parts.next(), parts.next()].iter().all(|part| part.is_some_and(|part| is_number(part, 1..=2)))
        && parts.next().is_some_and(|seconds| seconds.starts_with(|c: char| c.is_ascii_digit()));
    is_date && (time.is_empty() || is_time)
}

/// Returns the value of a plain scalar by the core schema of YAML 1.2. As in Go, a leading zero means octal.
fn scalar(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let (sign, digits) = text.strip_prefix('-').map_or((1, text.strip_prefix('+').unwrap_or(text)), |rest| (-1, rest));
    // `from_str_radix` would accept a second sign, as in `0x-5`.
    let parse_radix = |digits: &str, radix| {
        if digits.starts_with(['+', '-']) { None } else { i64::from_str_radix(digits, radix).ok() }
    };
    let integer = match digits {
        _ if !digits.starts_with(|c: char| c.is_ascii_digit()) => None,
        _ if digits.starts_with("0x") => digits.get(2..).and_then(|digits| parse_radix(digits, 16)),
        _ if digits.starts_with("0o") => digits.get(2..).and_then(|digits| parse_radix(digits, 8)),
        _ if digits.starts_with('0') && digits.len() > 1 => digits.get(1..).and_then(|digits| parse_radix(digits, 8)),
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
        assert_eq!(values[0].to_json(), Ok(json!({})));
        let list = json!([31, 15, 1.5, "yes", null]);
        let value = values[1].to_json().unwrap();
        assert_eq!(value, json!({"a": {"k": 1, "l": list}, "b": {"k": "two", "l": list}, "c": "1"}));
    }

    #[test]
    fn aliases_do_not_circumvent_the_maximum_depth() {
        let nested = |lines: usize| {
            let lines = (1..lines).map(|line| format!("a{line}: &a{line} [*a{}]\n", line - 1));
            format!("a0: &a0 [x]\n{}", lines.collect::<String>())
        };
        assert!(parse_documents(&nested(MAX_DEPTH - 1), 1).is_ok());
        let error = parse_documents(&nested(MAX_DEPTH), 1).unwrap_err();
        assert!(matches!(error.problem, YamlProblem::TooLarge), "{error}");
    }

    #[test]
    fn number_with_a_sign_inside_is_a_string() {
        for text in ["0-7", "0x-5", "0o+7", "-0x-8000000000000000"] {
            let values = parse_documents(text, 1).unwrap();
            assert_eq!(values[0].to_json(), Ok(json!(text)));
        }
    }

    #[test]
    fn dates_and_times_are_timestamps_unless_quoted() {
        for (text, expected) in [
            ("2024-01-02", true),
            ("2024-1-2", true),
            ("2001-12-14t21:59:43.10-05:00", true),
            ("2001-12-14 21:59:43", true),
            ("'2024-01-02'", false),
            ("2024-01", false),
            ("2024-01-02-03", false),
            ("2024-01-02 or later", false),
            ("12:30:00", false),
        ] {
            let values = parse_documents(text, 1).unwrap();
            assert_eq!(matches!(values[0], Node::Timestamp(_)), expected, "{text}");
        }
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
