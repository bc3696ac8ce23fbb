//! Parses the output of a program: lines, or one JSON object. No I/O.

use muster_fleeting::sdk::{ConnectInfo, ConnectorConfig, InstanceId, InstanceState};
use serde_json::{Map, Value};

/// Maximum length of an instance ID in bytes. Hosts reject longer ones.
const MAX_ID_BYTES: usize = 4096;

/// Reason why an output is invalid.
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
        "invalid number of instances {text:?}; print the number of accepted requests, or nothing if all were accepted"
    )]
    Count { text: String },
    #[error("unknown key `{key}`; use {known}")]
    Key { key: String, known: String },
    #[error("`{key}`: {value:?} is not a valid {wanted}")]
    Value { key: &'static str, value: String, wanted: &'static str },
}

/// Parses a JSON object if the text starts with `{`.
fn json(text: &str) -> Result<Option<Map<String, Value>>, OutputError> {
    if !text.trim_start().starts_with('{') {
        return Ok(None);
    }
    serde_json::from_str(text).map(Some).map_err(|error| OutputError::Json(error.to_string()))
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

fn id(text: &str) -> Result<InstanceId, OutputError> {
    if text.is_empty() || text.len() > MAX_ID_BYTES || text.chars().any(char::is_control) {
        return Err(OutputError::Id { id: text.chars().take(80).collect() });
    }
    Ok(InstanceId::new(text))
}

/// Parses the output of `update`: lines of `ID STATE`, or an object of states by ID.
pub(crate) fn snapshot(text: &str) -> Result<Vec<(InstanceId, InstanceState)>, OutputError> {
    let pairs: Vec<(String, String)> = match json(text)? {
        Some(object) => object.iter().map(|(id, state)| (id.clone(), plain(state))).collect(),
        None => lines(text)
            .map(|line| {
                let (id, state) = line
                    .rsplit_once(char::is_whitespace)
                    .ok_or_else(|| OutputError::NoState { line: line.to_owned() })?;
                Ok((id.trim_end().to_owned(), state.to_owned()))
            })
            .collect::<Result<_, _>>()?,
    };
    pairs.into_iter().map(|(name, word)| Ok((id(&name)?, state(&name, &word)?))).collect()
}

fn state(id: &str, word: &str) -> Result<InstanceState, OutputError> {
    Ok(match word.to_ascii_lowercase().as_str() {
        "creating" => InstanceState::Creating,
        "running" => InstanceState::Running,
        "deleting" => InstanceState::Deleting,
        "deleted" => InstanceState::Deleted,
        "timeout" => InstanceState::Timeout,
        "suspending" => InstanceState::Suspending,
        "suspended" => InstanceState::Suspended,
        "resuming" => InstanceState::Resuming,
        _ => return Err(OutputError::State { id: id.to_owned(), state: word.to_owned() }),
    })
}

/// Parses the output of `increase`: a number in the last line, or `succeeded` of an object. `None` if the output is
/// empty.
pub(crate) fn count(text: &str) -> Result<Option<u32>, OutputError> {
    let word = match json(text)? {
        Some(object) => object.get("succeeded").map(plain),
        None => lines(text).last().map(str::to_owned),
    };
    word.map(|text| text.parse().map_err(|_| OutputError::Count { text })).transpose()
}

/// Parses the output of `decrease`, `suspend` and `resume`: an ID per line, or `succeeded` of an object. `None` if the
/// output is empty.
pub(crate) fn ids(text: &str) -> Result<Option<Vec<InstanceId>>, OutputError> {
    let words: Vec<String> = match json(text)? {
        Some(object) => match object.get("succeeded") {
            Some(Value::Array(ids)) => {
                return ids.iter().map(|text| id(&plain(text))).collect::<Result<_, _>>().map(Some);
            }
            _ => return Ok(None),
        },
        None => lines(text).map(str::to_owned).collect(),
    };
    if words.is_empty() {
        return Ok(None);
    }
    words.iter().map(|text| id(text)).collect::<Result<_, _>>().map(Some)
}

/// Parses keys and values, of which only those in `known` are allowed: lines of `KEY VALUE`, or an object.
fn table(text: &str, known: &[&str]) -> Result<Map<String, Value>, OutputError> {
    let table = match json(text)? {
        Some(object) => object,
        None => lines(text)
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

/// Output of `init`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct InitOutput {
    pub(crate) id: Option<String>,
    pub(crate) max_size: Option<u32>,
    pub(crate) can_suspend: Option<bool>,
}

fn number<T: std::str::FromStr>(
    table: &Map<String, Value>,
    key: &'static str,
    wanted: &'static str,
) -> Result<Option<T>, OutputError> {
    let value = table.get(key).map(plain).filter(|value| !value.is_empty());
    value.map(|value| value.parse().map_err(|_| OutputError::Value { key, value, wanted })).transpose()
}

pub(crate) fn init(text: &str) -> Result<InitOutput, OutputError> {
    let table = table(text, &["id", "max_size", "suspend_resume"])?;
    let max_size = number(&table, "max_size", "number of instances")?;
    if max_size == Some(0) {
        return Err(OutputError::Value { key: "max_size", value: "0".to_owned(), wanted: "number of at least 1" });
    }
    Ok(InitOutput {
        id: table.get("id").map(plain).filter(|id| !id.is_empty()),
        max_size,
        can_suspend: number(&table, "suspend_resume", "`true` or `false`")?,
    })
}

/// Parses the output of `connect-info`. Also returns the path of the key file, if set. Settings of the user take
/// precedence.
pub(crate) fn connect_info(text: &str, set: &ConnectorConfig) -> Result<(ConnectInfo, Option<String>), OutputError> {
    let table = table(
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
    let get = |key: &str| table.get(key).map(plain).unwrap_or_default();
    let or = |set: &str, key: &str| if set.is_empty() { get(key) } else { set.to_owned() };
    let port = match set.protocol_port {
        0 => number(&table, "protocol_port", "port")?.unwrap_or(0),
        port => port,
    };
    let protocol = or(&set.protocol, "protocol");
    if !matches!(protocol.as_str(), "" | "ssh" | "winrm" | "winrm+https") {
        return Err(OutputError::Value { key: "protocol", value: protocol, wanted: "ssh, winrm or winrm+https" });
    }
    let key = if set.key.is_empty() { get("key").into_bytes() } else { set.key.clone() };
    let path = Some(get("key_path")).filter(|path| key.is_empty() && !path.is_empty());
    let info = ConnectInfo {
        connector: ConnectorConfig {
            os: or(&set.os, "os"),
            arch: or(&set.arch, "arch"),
            protocol,
            protocol_port: port,
            username: or(&set.username, "username"),
            password: or(&set.password, "password"),
            key,
            ..set.clone()
        },
        external_addr: get("external_addr"),
        internal_addr: get("internal_addr"),
        expires: number(&table, "expires", "number of seconds since 1970")?.filter(|seconds: &i64| *seconds > 0),
    };
    Ok((info, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_snapshot_from_lines_or_json() {
        let wanted = vec![
            (InstanceId::new("name:1 b"), InstanceState::Running),
            (InstanceId::new("x"), InstanceState::Creating),
        ];
        assert_eq!(snapshot("name:1 b  running\n\n x\tCreating \n"), Ok(wanted.clone()));
        assert_eq!(snapshot(r#" {"name:1 b": "running", "x": "creating"}"#), Ok(wanted));
        assert_eq!(snapshot(""), Ok(Vec::new()));
    }

    #[test]
    fn error_names_invalid_output() {
        let text = |error: OutputError| error.to_string();
        assert_eq!(text(snapshot("lonely").unwrap_err()), "invalid line \"lonely\": expected `ID STATE`");
        assert!(text(snapshot("a up").unwrap_err()).starts_with("instance a: invalid state \"up\"; use creating"));
        assert!(text(snapshot("{").unwrap_err()).contains("not a valid JSON object"));
        assert!(text(count("three").unwrap_err()).contains("print the number of accepted requests"));
        assert!(text(count("-1").unwrap_err()).contains("invalid number of instances \"-1\""));
        assert!(text(init("max 3").unwrap_err()).contains("use id, max_size, suspend_resume"));
        assert!(text(init("max_size 0").unwrap_err()).contains("at least 1"));
        let refused = |answer: &str| connect_info(answer, &ConnectorConfig::default()).unwrap_err().to_string();
        assert_eq!(refused("protocol_port 70000"), "`protocol_port`: \"70000\" is not a valid port");
        assert!(refused("protocol telnet").contains("ssh, winrm"));
        assert!(refused("addr 1").contains("internal_addr"));
    }

    #[test]
    fn empty_output_differs_from_an_answer() {
        assert_eq!(count(""), Ok(None));
        assert_eq!(count("made 2 of them\n2\n"), Ok(Some(2)));
        assert_eq!(count(r#"{"succeeded": 0}"#), Ok(Some(0)));
        assert_eq!(ids("\n"), Ok(None));
        assert_eq!(ids(r#"{"succeeded": []}"#), Ok(Some(Vec::new())));
        assert_eq!(ids("a b\nc"), Ok(Some(vec![InstanceId::new("a b"), InstanceId::new("c")])));
    }

    #[test]
    fn user_settings_take_precedence_over_script_output() {
        let set = ConnectorConfig { username: "ci".to_owned(), ..ConnectorConfig::default() };
        let answer =
            "internal_addr 10.0.0.5\nusername root\npassword two words\nprotocol_port 2222\nexpires 0\nkey_path /k";
        let (info, path) = connect_info(answer, &set).unwrap();
        let connector = &info.connector;
        assert_eq!((connector.username.as_str(), connector.password.as_str()), ("ci", "two words"));
        assert_eq!((connector.protocol_port, info.expires, path.as_deref()), (2222, None, Some("/k")));
        let (info, path) =
            connect_info(r#"{"internal_addr":"a","key":"k\nl","key_path":"/k","expires":7}"#, &set).unwrap();
        assert_eq!((info.connector.key.as_slice(), path, info.expires), (b"k\nl".as_slice(), None, Some(7)));
    }
}
