//! Output and export files, in which a step's process returns values as JSON lines (docs/spec/steps.md, sections 1.8 and 1.9).

use serde_json::{Map, Value};

use crate::definition::{Kind, Outputs};
use crate::expression::to_text;

/// Error in an output or export file, with messages like those of GitLab's step-runner.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValueFileError {
    #[error("output file: read output file: {0}")]
    OutputLine(LineError),
    #[error("output file: read output file: key \"{0}\": {1}")]
    Output(String, OutputError),
    #[error("output file: delegate: reading output_file as a step result: {error}{}", quote("output file data", data))]
    StepResult { error: String, data: Option<String> },
    #[error("export file: read env file: {0}")]
    ExportLine(LineError),
    #[error("export file: read env file: key \"{0}\": cannot convert value type \"{1}\" to string")]
    ExportType(String, &'static str),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to unmarshal JSON at line {line}: {problem}{}", quote("line", text))]
pub(crate) struct LineError {
    line: usize,
    problem: LineProblem,
    /// Text of the line. `None` means that errors do not quote the file.
    text: Option<String>,
}

fn quote(name: &str, text: &Option<String>) -> String {
    text.as_ref().map(|text| format!(", {name}: {text}")).unwrap_or_default()
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum LineProblem {
    #[error("{0}")]
    Json(String),
    #[error("\"{0}\" field is missing")]
    Missing(&'static str),
    #[error("\"{0}\" field value is empty")]
    Empty(&'static str),
    #[error("\"{0}\" field value is null")]
    Null(&'static str),
    #[error("\"{0}\" field value is not a string")]
    NotString(&'static str),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OutputError {
    #[error("unexpected output, remove from step outputs or define in step specification")]
    Unexpected,
    #[error("missing output, add to step outputs or remove from step specification")]
    Missing,
    #[error(
        "mismatched types, declared as \"{declared}\" in step specification and received from step as type \"{received}\""
    )]
    Type { declared: &'static str, received: &'static str },
}

/// Fields of a step's result in JSON, in both spellings that protobuf accepts. Only `outputs` is used.
const RESULT_FIELDS: [&str; 11] = [
    "step",
    "specDefinition",
    "spec_definition",
    "status",
    "outputs",
    "exports",
    "env",
    "execResult",
    "exec_result",
    "subStepResults",
    "sub_step_results",
];

fn delegated_outputs(text: &str) -> Result<Map<String, Value>, String> {
    let mut result: Map<String, Value> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if let Some(field) = result.keys().find(|field| !RESULT_FIELDS.contains(&field.as_str())) {
        return Err(format!("unknown field {field:?}; write an object with the field \"outputs\""));
    }
    match result.remove("outputs") {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(outputs)) => Ok(outputs),
        Some(_) => Err("\"outputs\" must be an object".to_owned()),
    }
}

/// Returns the values in a file by name. Later lines replace earlier lines. If `quotes_file` is set, errors quote the
/// line.
fn values(text: &str, quotes_file: bool) -> Result<Map<String, Value>, LineError> {
    let mut values = Map::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let fail = |problem| LineError { line: index + 1, problem, text: quotes_file.then(|| line.to_owned()) };
        let (name, value) = parse_line(line).map_err(fail)?;
        values.insert(name, value);
    }
    Ok(values)
}

fn parse_line(line: &str) -> Result<(String, Value), LineProblem> {
    let object: Map<String, Value> =
        serde_json::from_str(line).map_err(|error| LineProblem::Json(error.to_string()))?;
    let field =
        |name: &str| object.iter().rev().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    let name = match field("name") {
        None => return Err(LineProblem::Missing("name")),
        Some(Value::String(name)) if name.is_empty() => return Err(LineProblem::Empty("name")),
        Some(Value::String(name)) => name.clone(),
        Some(Value::Null) => return Err(LineProblem::Null("name")),
        Some(_) => return Err(LineProblem::NotString("name")),
    };
    match field("value") {
        None => Err(LineProblem::Missing("value")),
        Some(Value::Null) => Err(LineProblem::Null("value")),
        Some(value) => Ok((name, value.clone())),
    }
}

/// Returns the checked outputs in an output file, with defaults.
pub(crate) fn outputs(text: &str, declared: &Outputs, quotes_file: bool) -> Result<Map<String, Value>, ValueFileError> {
    let Outputs::Declared(declared) = declared else {
        let data = quotes_file.then(|| text.to_owned());
        return delegated_outputs(text).map_err(|error| ValueFileError::StepResult { error, data });
    };
    let fail = |key: &String, error: OutputError| ValueFileError::Output(key.clone(), error);
    let mut found = values(text, quotes_file).map_err(ValueFileError::OutputLine)?;
    if let Some(key) = found.keys().find(|key| !declared.contains_key(*key)) {
        return Err(fail(key, OutputError::Unexpected));
    }
    for (key, parameter) in declared {
        let received = found.get(key).map(|value| Kind::from_value(value).map_or("null", Kind::name));
        if let Some(received) = received.filter(|received| *received != parameter.kind.name()) {
            return Err(fail(key, OutputError::Type { declared: parameter.kind.name(), received }));
        }
    }
    for (key, parameter) in declared {
        if !found.contains_key(key) {
            let default = parameter.default.clone().ok_or_else(|| fail(key, OutputError::Missing))?;
            found.insert(key.clone(), default);
        }
    }
    Ok(found)
}

pub(crate) fn exports(text: &str, quotes_file: bool) -> Result<Vec<(String, String)>, ValueFileError> {
    let values = values(text, quotes_file).map_err(ValueFileError::ExportLine)?;
    let text = |(key, value): (String, Value)| {
        let text = match &value {
            Value::Array(_) | Value::Object(_) => {
                return Err(ValueFileError::ExportType(key, Kind::from_value(&value).map_or("null", Kind::name)));
            }
            // Numbers have no exponent, unlike in expressions.
            Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), |value| value.to_string()),
            other => to_text(other),
        };
        Ok((key, text))
    };
    values.into_iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use indexmap::IndexMap;
    use serde_json::json;

    use super::*;
    use crate::definition::Parameter;

    fn declared(entries: &[(&str, Kind, Option<Value>)]) -> Outputs {
        let entries = entries.iter().map(|(name, kind, default)| {
            ((*name).to_owned(), Parameter { kind: *kind, default: default.clone(), is_sensitive: false })
        });
        Outputs::Declared(entries.collect::<IndexMap<_, _>>())
    }

    #[test]
    fn outputs_are_checked_and_completed_with_defaults() {
        let spec = declared(&[("a", Kind::Number, None), ("b", Kind::String, Some(json!("x")))]);
        let text = "{\"name\":\"a\",\"value\":1}\n\n{\"Name\":\"a\",\"VALUE\":2,\"extra\":0}\n";
        assert_eq!(Value::Object(outputs(text, &spec, false).unwrap()), json!({"a": 2, "b": "x"}));
        for (text, part) in [
            ("", "key \"a\": missing output"),
            ("{\"name\":\"c\",\"value\":1}", "key \"c\": unexpected output"),
            ("{\"name\":\"a\",\"value\":\"1\"}", "declared as \"number\" in step specification and received"),
            ("{\"value\":1}", "at line 1: \"name\" field is missing"),
            ("{\"name\":\"a\"}", "\"value\" field is missing"),
            ("{\"name\":\"a\",\"value\":null}", "\"value\" field value is null"),
            ("  ", "failed to unmarshal JSON at line 1"),
        ] {
            let error = outputs(text, &spec, false).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let error = outputs("\nx=1", &spec, true).unwrap_err().to_string();
        assert!(error.contains("at line 2: ") && error.ends_with(", line: x=1"), "{error}");
        let result = "{\"status\":\"success\",\"outputs\":{\"k\":1}}";
        assert_eq!(Value::Object(outputs(result, &Outputs::Delegate, false).unwrap()), json!({"k": 1}));
        let error = outputs("{\"other\":1}", &Outputs::Delegate, true).unwrap_err().to_string();
        assert!(error.ends_with("with the field \"outputs\", output file data: {\"other\":1}"), "{error}");
    }

    #[test]
    fn exports_are_converted_to_strings() {
        let text = "{\"name\":\"A\",\"value\":1.50}\n{\"name\":\"B\",\"value\":true}\n{\"name\":\"C\",\"value\":1e21}";
        let expected = [("A", "1.5"), ("B", "true"), ("C", "1000000000000000000000")];
        let expected: Vec<_> = expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert_eq!(exports(text, false).unwrap(), expected);
        let error = exports("{\"name\":\"A\",\"value\":[]}", false).unwrap_err().to_string();
        assert!(error.contains("cannot convert value type \"array\""), "{error}");
    }
}
