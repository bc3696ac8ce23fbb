//! Reads `plugin_config` from JSON into the plugin's own type.
//! The reference of the settings is generated from the same type. A prefix such as `p6_` in the name of a test is the
//! number of a case in docs/spec/fleeting.md, section 9.

use schemars::{JsonSchema, Schema, schema_for};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Reason why `plugin_config` is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text is neither a JSON object nor `null`.
    /// The message starts as in Go plugins, so that web searches find it.
    #[error("unmarshaling config: {0}")]
    Json(String),
    /// A value has the wrong type or is missing.
    #[error("plugin_config: {0}")]
    Value(String),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnknownKey {
    pub(super) key: String,
    /// The known key with the most similar name, if one is similar enough.
    pub(super) suggestion: Option<String>,
}

impl UnknownKey {
    /// Finds the most similar known key.
    /// At most a third of the letters of the known key may differ. One letter may always differ.
    fn new(key: String, known: &[(String, Map<String, Value>, bool)]) -> Self {
        let lower = key.to_lowercase();
        let distance = |name: &str| strsim::osa_distance(&lower, &name.to_lowercase());
        let nearest = known.iter().map(|(name, ..)| (distance(name), name)).min();
        let nearest = nearest.filter(|(distance, name)| *distance <= name.len().max(3) / 3);
        Self { suggestion: nearest.map(|(_, name)| name.clone()), key }
    }
}

/// Reads the settings that the plugin knows. Also returns the keys that it does not know.
pub(super) fn read(bytes: &[u8], schema: &Schema) -> Result<(Value, Vec<UnknownKey>), ConfigError> {
    if bytes.is_empty() {
        return Err(ConfigError::Json("unexpected end of JSON input".to_owned()));
    }
    let value: Value = serde_json::from_slice(bytes).map_err(|error| ConfigError::Json(error.to_string()))?;
    let object = match value {
        Value::Null => Map::new(),
        Value::Object(object) => object,
        other => return Err(ConfigError::Json(format!("cannot use {} as a table of settings", kind_name(&other)))),
    };
    let known = properties(schema);
    let mut config = Map::new();
    let mut unknown = Vec::new();
    for (key, value) in object {
        let exact = known.iter().find(|(name, ..)| *name == key);
        let Some((name, ..)) = exact.or_else(|| known.iter().find(|(name, ..)| name.eq_ignore_ascii_case(&key))) else {
            unknown.push(UnknownKey::new(key, &known));
            continue;
        };
        if exact.is_some() || !config.contains_key(name) {
            config.insert(name.clone(), value);
        }
    }
    Ok((Value::Object(config), unknown))
}

pub(super) fn deserialize<C: DeserializeOwned>(config: Value) -> Result<C, ConfigError> {
    serde_path_to_error::deserialize(config).map_err(|error| {
        let key = error.path().to_string();
        let message = without_value(&error.inner().to_string());
        ConfigError::Value(if key == "." { message } else { format!("{key}: {message}") })
    })
}

/// Removes the value from serde's messages about invalid types and values, because it may be a secret.
/// Other messages are unchanged.
fn without_value(message: &str) -> String {
    let Some((before, expected)) = message.rsplit_once(", expected ") else { return message.to_owned() };
    if before.starts_with("unknown variant ") {
        return format!("expected {expected}, found another text");
    }
    let kinds = ["invalid type: ", "invalid value: "];
    let Some(found) = kinds.iter().find_map(|kind| before.strip_prefix(kind)) else { return message.to_owned() };
    let kind = found.split([' ', '`', '"']).next().unwrap_or_default();
    let kind = match kind {
        "" => "a value",
        "integer" if found.contains("`-") => "a negative number",
        kind => kind,
    };
    // serde's messages contain the names of Rust types, which are replaced for users.
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a non-negative integer",
        "i8" | "i16" | "i32" | "i64" | "isize" => "an integer",
        "f32" | "f64" => "a number",
        expected => expected,
    };
    format!("expected {expected}, found {kind}")
}

/// Returns the reference of a plugin's settings: a Markdown table, from the type and its doc comments.
#[must_use]
pub fn reference<C: JsonSchema>() -> String {
    describe(&schema_for!(C))
}

pub(super) fn describe(schema: &Schema) -> String {
    let properties = properties(schema);
    if properties.is_empty() {
        return "This plugin has no settings.\n".to_owned();
    }
    let mut text = "| key | type | default | meaning |\n|---|---|---|---|\n".to_owned();
    for (name, schema, required) in properties {
        let default = match schema.get("default") {
            _ if required => "required".to_owned(),
            None | Some(Value::Null) => "none".to_owned(),
            Some(value) => format!("`{value}`"),
        };
        let meaning = schema.get("description").and_then(Value::as_str).unwrap_or_default();
        let meaning = meaning.split_whitespace().collect::<Vec<_>>().join(" ");
        text += &format!("| `{name}` | {} | {default} | {} |\n", type_name(&schema), meaning.replace('|', "\\|"));
    }
    text
}

/// Returns the name and the schema of each setting, and whether the setting is required.
fn properties(schema: &Schema) -> Vec<(String, Map<String, Value>, bool)> {
    let required: Vec<Value> = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(Value::Object(properties)) = schema.get("properties") else { return Vec::new() };
    let entry = |(name, property): (&String, &Value)| {
        // The schema of a named type is a reference to its definition. Attributes next to the reference take precedence.
        let named =
            property.get("$ref").and_then(Value::as_str).and_then(|path| schema.pointer(path.strip_prefix('#')?));
        let mut merged = named.and_then(Value::as_object).cloned().unwrap_or_default();
        merged.extend(property.as_object().cloned().unwrap_or_default());
        let schema = merged;
        (name.clone(), schema, required.iter().any(|required| required == name))
    };
    properties.iter().map(entry).collect()
}

fn type_name(schema: &Map<String, Value>) -> String {
    match schema.get("type") {
        Some(Value::String(name)) => name.clone(),
        Some(Value::Array(names)) => {
            let names = names.iter().filter_map(Value::as_str).filter(|name| *name != "null");
            names.collect::<Vec<_>>().join(" or ")
        }
        // An enumeration whose values have doc comments.
        _ if schema.contains_key("oneOf") => "string".to_owned(),
        _ => "any".to_owned(),
    }
}

fn kind_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    struct Config {
        /// Name of the group.
        name: String,
        /// Machines at the same
        /// time.
        #[serde(default = "ten")]
        max_size: u32,
        /// A zone.
        zone: Option<String>,
        /// A mode.
        #[serde(default)]
        mode: Mode,
    }

    #[derive(Debug, Default, PartialEq, Deserialize, serde::Serialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    enum Mode {
        /// Little memory.
        #[default]
        Small,
        /// Much memory.
        Large,
    }

    fn ten() -> u32 {
        10
    }

    fn parse<C: DeserializeOwned + JsonSchema>(bytes: &[u8]) -> Result<(C, Vec<UnknownKey>), ConfigError> {
        let (config, unknown) = read(bytes, &schema_for!(C))?;
        Ok((deserialize(config)?, unknown))
    }

    #[test]
    fn p6_keys_match_in_any_letter_case() {
        let (config, unknown) = parse::<Config>(br#"{"NAME":"a","Max_Size":3,"colour":"red"}"#).unwrap();
        assert_eq!(config, Config { name: "a".to_owned(), max_size: 3, zone: None, mode: Mode::Small });
        assert_eq!(unknown, [UnknownKey { key: "colour".to_owned(), suggestion: None }]);
        let (_, unknown) = parse::<Config>(br#"{"name":"a","maxsize":3,"zine":"b"}"#).unwrap();
        let suggestions: Vec<_> = unknown.iter().map(|unknown| unknown.suggestion.as_deref()).collect();
        assert_eq!(suggestions, [Some("max_size"), Some("zone")]);
    }

    #[test]
    fn exact_key_takes_precedence() {
        for text in [r#"{"NAME":"a","name":"b"}"#, r#"{"name":"b","NAME":"a"}"#] {
            assert_eq!(parse::<Config>(text.as_bytes()).unwrap().0.name, "b", "{text}");
        }
    }

    #[test]
    fn p7_empty_config_is_an_error_but_null_is_not() {
        let error = parse::<super::super::NoConfig>(b"").unwrap_err();
        assert_eq!(error.to_string(), "unmarshaling config: unexpected end of JSON input");
        assert!(parse::<super::super::NoConfig>(b"null").is_ok());
        assert!(parse::<super::super::NoConfig>(b"{}").is_ok());
    }

    #[test]
    fn messages_contain_the_keys_of_missing_and_invalid_values() {
        assert_eq!(parse::<Config>(b"null").unwrap_err().to_string(), "plugin_config: missing field `name`");
        let error = parse::<Config>(br#"{"name":"a","max_size":"3"}"#).unwrap_err().to_string();
        assert_eq!(error, "plugin_config: max_size: expected a non-negative integer, found string");
        let error = parse::<Config>(br#"{"name":"a","max_size":-5}"#).unwrap_err().to_string();
        assert_eq!(error, "plugin_config: max_size: expected a non-negative integer, found a negative number");
        let error = parse::<Config>(br#"{"name":123456}"#).unwrap_err().to_string();
        assert_eq!(error, "plugin_config: name: expected a string, found integer");
        let error = parse::<Config>(br#"{"name":"a","mode":"a secret"}"#).unwrap_err().to_string();
        assert_eq!(error, "plugin_config: mode: expected `small` or `large`, found another text");
        assert!(parse::<Config>(b"[1]").unwrap_err().to_string().contains("a list"));
    }

    #[test]
    fn reference_is_generated_from_the_type() {
        assert_eq!(
            reference::<Config>(),
            "| key | type | default | meaning |\n|---|---|---|---|\n\
             | `name` | string | required | Name of the group. |\n\
             | `max_size` | integer | `10` | Machines at the same time. |\n\
             | `zone` | string | none | A zone. |\n\
             | `mode` | string | `\"small\"` | A mode. |\n"
        );
    }
}
