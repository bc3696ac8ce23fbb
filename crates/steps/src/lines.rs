//! Output and export files, in which a step's process returns values as JSON lines (docs/spec/steps.md, sections 1.8 and 1.9).

use serde_json::{Map, Value};

use crate::definition::{Kind, Outputs};
use crate::expression::to_text;

/// Returns the values in a file by name. A later line replaces an earlier one of the same name.
fn values(text: &str) -> Result<Map<String, Value>, String> {
    let mut values = Map::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let fail = |message: &str| format!("failed to unmarshal JSON at line {}: {message}", index + 1);
        let object: Map<String, Value> = serde_json::from_str(line).map_err(|error| fail(&error.to_string()))?;
        let field = |name: &str| object.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value);
        let name = match field("name") {
            None => return Err(fail("\"name\" field is missing")),
            Some(Value::String(name)) if name.is_empty() => return Err(fail("\"name\" field value is empty")),
            Some(Value::String(name)) => name.clone(),
            Some(Value::Null) => return Err(fail("\"name\" field value is null")),
            Some(_) => return Err(fail("\"name\" field value is no string")),
        };
        match field("value") {
            None => return Err(fail("\"value\" field is missing")),
            Some(Value::Null) => return Err(fail("\"value\" field value is null")),
            Some(value) => values.insert(name, value.clone()),
        };
    }
    Ok(values)
}

/// Returns the outputs in an output file, checked against what the step declares and completed with its defaults.
pub(crate) fn outputs(text: &str, declared: &Outputs) -> Result<Map<String, Value>, String> {
    let Outputs::Declared(declared) = declared else {
        let fail = |error: String| format!("output file: delegate: reading output_file as a step result: {error}");
        let result: Value = serde_json::from_str(text).map_err(|error| fail(error.to_string()))?;
        return Ok(result.get("outputs").and_then(Value::as_object).cloned().unwrap_or_default());
    };
    let fail = |key: &str, message: String| format!("output file: read output file: key \"{key}\": {message}");
    let mut found = values(text).map_err(|error| format!("output file: read output file: {error}"))?;
    for (key, value) in &found {
        let Some(parameter) = declared.get(key) else {
            let message = "unexpected output, remove from step outputs or define in step specification";
            return Err(fail(key, message.to_owned()));
        };
        if Kind::of(value) != Some(parameter.kind) {
            let (declared, own) = (parameter.kind.name(), Kind::of(value).map_or("null", Kind::name));
            return Err(fail(
                key,
                format!(
                    "mismatched types, declared as \"{declared}\" in step specification and received from step as \
                     type \"{own}\""
                ),
            ));
        }
    }
    for (key, parameter) in declared {
        if !found.contains_key(key) {
            let default = parameter.default.clone().ok_or_else(|| {
                fail(key, "missing output, add to step outputs or remove from step specification".to_owned())
            })?;
            found.insert(key.clone(), default);
        }
    }
    Ok(found)
}

/// Returns the environment variables in an export file.
pub(crate) fn exports(text: &str) -> Result<Vec<(String, String)>, String> {
    let values = values(text).map_err(|error| format!("export file: read env file: {error}"))?;
    let text = |(key, value): (String, Value)| {
        let text = match &value {
            Value::Array(_) | Value::Object(_) => {
                let kind = Kind::of(&value).map_or("null", Kind::name);
                return Err(format!(
                    "export file: read env file: key \"{key}\": cannot convert value type \"{kind}\" to string"
                ));
            }
            // Unlike in expressions, numbers are written without an exponent.
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
        let entries = entries
            .iter()
            .map(|(name, kind, default)| ((*name).to_owned(), Parameter { kind: *kind, default: default.clone() }));
        Outputs::Declared(entries.collect::<IndexMap<_, _>>())
    }

    #[test]
    fn outputs_are_checked_and_defaults_fill_in() {
        let spec = declared(&[("a", Kind::Number, None), ("b", Kind::String, Some(json!("x")))]);
        let text = "{\"name\":\"a\",\"value\":1}\n\n{\"Name\":\"a\",\"VALUE\":2,\"extra\":0}\n";
        assert_eq!(Value::Object(outputs(text, &spec).unwrap()), json!({"a": 2, "b": "x"}));
        for (text, part) in [
            ("", "key \"a\": missing output"),
            ("{\"name\":\"c\",\"value\":1}", "key \"c\": unexpected output"),
            ("{\"name\":\"a\",\"value\":\"1\"}", "declared as \"number\" in step specification and received"),
            ("{\"value\":1}", "at line 1: \"name\" field is missing"),
            ("{\"name\":\"a\"}", "\"value\" field is missing"),
            ("{\"name\":\"a\",\"value\":null}", "\"value\" field value is null"),
            ("  ", "failed to unmarshal JSON at line 1"),
        ] {
            let error = outputs(text, &spec).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let result = "{\"status\":\"success\",\"outputs\":{\"k\":1}}";
        assert_eq!(Value::Object(outputs(result, &Outputs::Delegate).unwrap()), json!({"k": 1}));
    }

    #[test]
    fn exports_are_texts() {
        let text = "{\"name\":\"A\",\"value\":1.50}\n{\"name\":\"B\",\"value\":true}\n{\"name\":\"C\",\"value\":1e21}";
        let expected = [("A", "1.5"), ("B", "true"), ("C", "1000000000000000000000")];
        let expected: Vec<_> = expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert_eq!(exports(text).unwrap(), expected);
        assert!(exports("{\"name\":\"A\",\"value\":[]}").unwrap_err().contains("cannot convert value type \"array\""));
    }
}
