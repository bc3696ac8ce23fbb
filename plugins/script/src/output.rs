//! Parses the output of a program: lines, or one JSON object. No I/O.

use muster_fleeting::sdk::{ConnectInfo, ConnectorConfig, InstanceId, InstanceState};
use serde_json::{Map, Value};

/// Maximum length of an instance ID in bytes. The host of the plugin has the same limit.
const MAX_ID_BYTES: usize = 4096;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OutputError {
    #[error("output starts with `{{` but is not a valid JSON object: {0}")]
    Json(String),
    #[error("invalid line {line:?}: expected `ID STATE`")]
    NoState { line: String },
    #[error(
        "instance {id}: invalid state {state:?}; use creating, running, deleting, deleted, timeout, suspending, suspended or resuming"
    )]
    State { id: String, state: String },
    #[error("invalid instance ID {id:?}: expected 1 to {MAX_ID_BYTES} bytes without control characters")]
    Id { id: String },
    #[error(
        "invalid number of instances {text:?}; print the number of accepted instances, or nothing if all were accepted"
    )]
    Count { text: String },
    #[error("unknown key `{key}`; use {known}")]
    Key { key: String, known: String },
    #[error("`{key}`: invalid value {value:?}; expected {expected}")]
    Value { key: &'static str, value: String, expected: &'static str },
}

/// Parses a JSON object. `None` means that the text does not start with `{`.
fn parse_json(text: &str) -> Result<Option<Map<String, Value>>, OutputError> {
    if !text.trim_start().starts_with('{') {
        return Ok(None);
    }
    serde_json::from_str(text).map(Some).map_err(|error| OutputError::Json(error.to_string()))
}

fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn nonempty_lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

fn parse_id(text: &str) -> Result<InstanceId, OutputError> {
    if text.is_empty() || text.len() > MAX_ID_BYTES || text.chars().any(char::is_control) {
        return Err(OutputError::Id { id: text.chars().take(80).collect() });
    }
    Ok(InstanceId::new(text))
}

/// Parses lines of the form `ID STATE`, or a JSON object with the states by ID.
pub(crate) fn parse_update(text: &str) -> Result<Vec<(InstanceId, InstanceState)>, OutputError> {
    let pairs: Vec<(String, String)> = match parse_json(text)? {
        Some(object) => object.iter().map(|(id, state)| (id.clone(), value_text(state))).collect(),
        None => nonempty_lines(text)
            .map(|line| {
                let (id, state) = line
                    .rsplit_once(char::is_whitespace)
                    .ok_or_else(|| OutputError::NoState { line: line.to_owned() })?;
                Ok((id.trim_end().to_owned(), state.to_owned()))
            })
            .collect::<Result<_, _>>()?,
    };
    pairs.into_iter().map(|(name, state)| Ok((parse_id(&name)?, parse_state(&name, &state)?))).collect()
}

fn parse_state(id: &str, state: &str) -> Result<InstanceState, OutputError> {
    Ok(match state.to_ascii_lowercase().as_str() {
        "creating" => InstanceState::Creating,
        "running" => InstanceState::Running,
        "deleting" => InstanceState::Deleting,
        "deleted" => InstanceState::Deleted,
        "timeout" => InstanceState::Timeout,
        "suspending" => InstanceState::Suspending,
        "suspended" => InstanceState::Suspended,
        "resuming" => InstanceState::Resuming,
        _ => return Err(OutputError::State { id: id.to_owned(), state: state.to_owned() }),
    })
}

/// Parses a number in the last line, or `succeeded` of a JSON object.
///
/// `None` means that the output is empty, or that the object has no `succeeded`.
pub(crate) fn parse_increase(text: &str) -> Result<Option<u32>, OutputError> {
    let number = match parse_json(text)? {
        Some(object) => object.get("succeeded").map(value_text),
        None => nonempty_lines(text).last().map(str::to_owned),
    };
    number.map(|text| text.parse().map_err(|_| OutputError::Count { text })).transpose()
}

/// Parses lines with one ID each, or `succeeded` of a JSON object.
///
/// `None` means that the output is empty, or that `succeeded` is not a list.
pub(crate) fn parse_ids(text: &str) -> Result<Option<Vec<InstanceId>>, OutputError> {
    let ids: Vec<String> = match parse_json(text)? {
        Some(object) => match object.get("succeeded") {
            Some(Value::Array(ids)) => {
                return ids.iter().map(|text| parse_id(&value_text(text))).collect::<Result<_, _>>().map(Some);
            }
            _ => return Ok(None),
        },
        None => nonempty_lines(text).map(str::to_owned).collect(),
    };
    if ids.is_empty() {
        return Ok(None);
    }
    ids.iter().map(|text| parse_id(text)).collect::<Result<_, _>>().map(Some)
}

/// Parses lines of the form `KEY VALUE`, or a JSON object. Only the keys in `known` are allowed.
fn parse_table(text: &str, known: &[&str]) -> Result<Map<String, Value>, OutputError> {
    let table = match parse_json(text)? {
        Some(object) => object,
        None => nonempty_lines(text)
            .map(|line| {
                let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
                (key.to_owned(), Value::from(value.trim_start()))
            })
            .collect(),
    };
    match table.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(OutputError::Key { key: key.clone(), known: known.join(", ") }),
        None => Ok(table),
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct InitOutput {
    pub(crate) id: Option<String>,
    pub(crate) max_size: Option<u32>,
    pub(crate) can_suspend: Option<bool>,
}

fn parse_value<T: std::str::FromStr>(
    table: &Map<String, Value>,
    key: &'static str,
    expected: &'static str,
) -> Result<Option<T>, OutputError> {
    let value = table.get(key).map(value_text).filter(|value| !value.is_empty());
    value.map(|value| value.parse().map_err(|_| OutputError::Value { key, value, expected })).transpose()
}

pub(crate) fn parse_init(text: &str) -> Result<InitOutput, OutputError> {
    let table = parse_table(text, &["id", "max_size", "suspend_resume"])?;
    let max_size = parse_value(&table, "max_size", "a number of instances")?;
    if max_size == Some(0) {
        return Err(OutputError::Value { key: "max_size", value: "0".to_owned(), expected: "a number of at least 1" });
    }
    Ok(InitOutput {
        id: table.get("id").map(value_text).filter(|id| !id.is_empty()),
        max_size,
        can_suspend: parse_value(&table, "suspend_resume", "`true` or `false`")?,
    })
}

/// Parses the connection info of an instance. The user's settings take precedence over the output.
///
/// Also returns `key_path` if neither the user's settings nor the output contain a key.
pub(crate) fn parse_connect_info(
    text: &str,
    user: &ConnectorConfig,
) -> Result<(ConnectInfo, Option<String>), OutputError> {
    let table = parse_table(
        text,
        &[
            "internal_addr",
            "external_addr",
            "username",
            "password",
            "key",
            "key_path",
            "protocol",
            "protocol_port",
            "os",
            "arch",
            "expires",
        ],
    )?;
    let output_value = |key: &str| table.get(key).map(value_text).unwrap_or_default();
    let user_or_output = |value: &str, key: &str| if value.is_empty() { output_value(key) } else { value.to_owned() };
    let port = match user.protocol_port {
        0 => parse_value(&table, "protocol_port", "a port")?.unwrap_or(0),
        port => port,
    };
    let protocol = user_or_output(&user.protocol, "protocol");
    if !matches!(protocol.as_str(), "" | "ssh" | "winrm" | "winrm+https") {
        return Err(OutputError::Value { key: "protocol", value: protocol, expected: "ssh, winrm or winrm+https" });
    }
    let key = if user.key.is_empty() { output_value("key").into_bytes() } else { user.key.clone() };
    let path = Some(output_value("key_path")).filter(|path| key.is_empty() && !path.is_empty());
    let info = ConnectInfo {
        connector: ConnectorConfig {
            os: user_or_output(&user.os, "os"),
            arch: user_or_output(&user.arch, "arch"),
            protocol,
            protocol_port: port,
            username: user_or_output(&user.username, "username"),
            password: user_or_output(&user.password, "password"),
            key,
            ..user.clone()
        },
        external_addr: output_value("external_addr"),
        internal_addr: output_value("internal_addr"),
        expires: parse_value(&table, "expires", "a number of seconds since 1970")?.filter(|seconds: &i64| *seconds > 0),
    };
    Ok((info, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn update_is_parsed_from_lines_or_json() {
        let expected = vec![
            (InstanceId::new("name:1 b"), InstanceState::Running),
            (InstanceId::new("x"), InstanceState::Creating),
        ];
        assert_eq!(parse_update("name:1 b  running\n\n x\tCreating \n"), Ok(expected.clone()));
        assert_eq!(parse_update(r#" {"name:1 b": "running", "x": "creating"}"#), Ok(expected));
        assert_eq!(parse_update(""), Ok(Vec::new()));
    }

    #[test]
    fn errors_quote_invalid_output() {
        let text = |error: OutputError| error.to_string();
        assert_eq!(text(parse_update("word").unwrap_err()), "invalid line \"word\": expected `ID STATE`");
        assert!(text(parse_update("a up").unwrap_err()).starts_with("instance a: invalid state \"up\"; use creating"));
        assert!(text(parse_update("{").unwrap_err()).contains("not a valid JSON object"));
        assert!(text(parse_increase("three").unwrap_err()).contains("print the number of accepted instances"));
        assert!(text(parse_increase("-1").unwrap_err()).contains("invalid number of instances \"-1\""));
        assert!(text(parse_init("max 3").unwrap_err()).contains("use id, max_size, suspend_resume"));
        assert!(text(parse_init("max_size 0").unwrap_err()).contains("at least 1"));
        let connect_error =
            |output: &str| parse_connect_info(output, &ConnectorConfig::default()).unwrap_err().to_string();
        assert_eq!(connect_error("protocol_port 70000"), "`protocol_port`: invalid value \"70000\"; expected a port");
        assert!(connect_error("protocol telnet").contains("ssh, winrm"));
        assert!(connect_error("addr 1").contains("internal_addr"));
    }

    #[test]
    fn empty_output_differs_from_zero_or_empty_list() {
        assert_eq!(parse_increase(""), Ok(None));
        assert_eq!(parse_increase("created 2 instances\n2\n"), Ok(Some(2)));
        assert_eq!(parse_increase(r#"{"succeeded": 0}"#), Ok(Some(0)));
        assert_eq!(parse_ids("\n"), Ok(None));
        assert_eq!(parse_ids(r#"{"succeeded": []}"#), Ok(Some(Vec::new())));
        assert_eq!(parse_ids("a b\nc"), Ok(Some(vec![InstanceId::new("a b"), InstanceId::new("c")])));
    }

    #[test]
    fn user_settings_take_precedence_over_script_output() {
        let user = ConnectorConfig { username: "ci".to_owned(), ..ConnectorConfig::default() };
        let output =
            "internal_addr 10.0.0.5\nusername root\npassword two words\nprotocol_port 2222\nexpires 0\nkey_path /k";
        let (info, path) = parse_connect_info(output, &user).unwrap();
        let connector = &info.connector;
        assert_eq!((connector.username.as_str(), connector.password.as_str()), ("ci", "two words"));
        assert_eq!((connector.protocol_port, info.expires, path.as_deref()), (2222, None, Some("/k")));
        let (info, path) =
            parse_connect_info(r#"{"internal_addr":"a","key":"k\nl","key_path":"/k","expires":7}"#, &user).unwrap();
        assert_eq!((info.connector.key.as_slice(), path, info.expires), (b"k\nl".as_slice(), None, Some(7)));
    }
}
