//! What a program printed: lines, or one JSON object. Pure.

use muster_fleeting::sdk::{ConnectInfo, ConnectorConfig, InstanceId, InstanceState};
use serde_json::{Map, Value};

/// Bytes of an instance's id; the protocol's hosts take no longer ones.
const ID_MAX_BYTES: usize = 4096;

/// An answer that cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("the answer begins with `{{` and is no JSON object: {0}")]
    Json(String),
    #[error("{line:?} is not `ID STATE`")]
    NoState { line: String },
    #[error(
        "instance {id}: no state is called {state:?}; use creating, running, deleting, deleted, timeout, suspending, suspended or resuming"
    )]
    State { id: String, state: String },
    #[error("{id:?} is no instance id: 1 to {ID_MAX_BYTES} bytes without control characters")]
    Id { id: String },
    #[error("{text:?} is no number of instances; print how many requests were taken, or nothing if all were")]
    Count { text: String },
    #[error("`{key}` is no key of this answer; use {known}")]
    Key { key: String, known: String },
    #[error("`{key}`: {value:?} is no {wanted}")]
    Value { key: &'static str, value: String, wanted: &'static str },
}

/// JSON where it begins like it.
fn json(text: &str) -> Result<Option<Map<String, Value>>, AnswerError> {
    if !text.trim_start().starts_with('{') {
        return Ok(None);
    }
    serde_json::from_str(text).map(Some).map_err(|error| AnswerError::Json(error.to_string()))
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

fn id(text: &str) -> Result<InstanceId, AnswerError> {
    if text.is_empty() || text.len() > ID_MAX_BYTES || text.chars().any(char::is_control) {
        return Err(AnswerError::Id { id: text.chars().take(80).collect() });
    }
    Ok(InstanceId::new(text))
}

/// `update`: `ID STATE` in each line, or an object of states by id.
pub(crate) fn snapshot(text: &str) -> Result<Vec<(InstanceId, InstanceState)>, AnswerError> {
    let pairs: Vec<(String, String)> = match json(text)? {
        Some(object) => object.iter().map(|(id, state)| (id.clone(), plain(state))).collect(),
        None => lines(text)
            .map(|line| {
                let (id, state) = line
                    .rsplit_once(char::is_whitespace)
                    .ok_or_else(|| AnswerError::NoState { line: line.to_owned() })?;
                Ok((id.trim_end().to_owned(), state.to_owned()))
            })
            .collect::<Result<_, _>>()?,
    };
    pairs.into_iter().map(|(name, word)| Ok((id(&name)?, state(&name, &word)?))).collect()
}

fn state(id: &str, word: &str) -> Result<InstanceState, AnswerError> {
    Ok(match word.to_ascii_lowercase().as_str() {
        "creating" => InstanceState::Creating,
        "running" => InstanceState::Running,
        "deleting" => InstanceState::Deleting,
        "deleted" => InstanceState::Deleted,
        "timeout" => InstanceState::Timeout,
        "suspending" => InstanceState::Suspending,
        "suspended" => InstanceState::Suspended,
        "resuming" => InstanceState::Resuming,
        _ => return Err(AnswerError::State { id: id.to_owned(), state: word.to_owned() }),
    })
}

/// `increase`: a number in the last line, or `succeeded` of an object; `None` where nothing is said.
pub(crate) fn count(text: &str) -> Result<Option<u32>, AnswerError> {
    let word = match json(text)? {
        Some(object) => object.get("succeeded").map(plain),
        None => lines(text).last().map(str::to_owned),
    };
    word.map(|text| text.parse().map_err(|_| AnswerError::Count { text })).transpose()
}

/// `decrease`, `suspend`, `resume`: ids, one in each line, or `succeeded` of an object; `None` where nothing is said.
pub(crate) fn ids(text: &str) -> Result<Option<Vec<InstanceId>>, AnswerError> {
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

/// Keys with values, which only may be `known`: `KEY VALUE` in each line, or an object.
fn table(text: &str, known: &[&str]) -> Result<Map<String, Value>, AnswerError> {
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
        Some(key) => Err(AnswerError::Key { key: key.clone(), known: known.join(", ") }),
        None => Ok(table),
    }
}

/// What `init` may say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct InitAnswer {
    pub(crate) id: Option<String>,
    pub(crate) max_size: Option<u32>,
    pub(crate) can_suspend: Option<bool>,
}

fn number<T: std::str::FromStr>(
    table: &Map<String, Value>,
    key: &'static str,
    wanted: &'static str,
) -> Result<Option<T>, AnswerError> {
    let value = table.get(key).map(plain).filter(|value| !value.is_empty());
    value.map(|value| value.parse().map_err(|_| AnswerError::Value { key, value, wanted })).transpose()
}

pub(crate) fn init(text: &str) -> Result<InitAnswer, AnswerError> {
    let table = table(text, &["id", "max_size", "suspend_resume"])?;
    let max_size = number(&table, "max_size", "number of instances")?;
    if max_size == Some(0) {
        return Err(AnswerError::Value { key: "max_size", value: "0".to_owned(), wanted: "number of at least 1" });
    }
    Ok(InitAnswer {
        id: table.get("id").map(plain).filter(|id| !id.is_empty()),
        max_size,
        can_suspend: number(&table, "suspend_resume", "`true` or `false`")?,
    })
}

/// `connect-info`, and the file of the key where it is in one. What the user set wins.
pub(crate) fn connect_info(text: &str, set: &ConnectorConfig) -> Result<(ConnectInfo, Option<String>), AnswerError> {
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
        return Err(AnswerError::Value { key: "protocol", value: protocol, wanted: "ssh, winrm or winrm+https" });
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
    fn a_snapshot_is_lines_or_json() {
        let wanted = vec![
            (InstanceId::new("name:1 b"), InstanceState::Running),
            (InstanceId::new("x"), InstanceState::Creating),
        ];
        assert_eq!(snapshot("name:1 b  running\n\n x\tCreating \n"), Ok(wanted.clone()));
        assert_eq!(snapshot(r#" {"name:1 b": "running", "x": "creating"}"#), Ok(wanted));
        assert_eq!(snapshot(""), Ok(Vec::new()));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let text = |error: AnswerError| error.to_string();
        assert_eq!(text(snapshot("lonely").unwrap_err()), "\"lonely\" is not `ID STATE`");
        assert!(text(snapshot("a up").unwrap_err()).starts_with("instance a: no state is called \"up\"; use creating"));
        assert!(text(snapshot("{").unwrap_err()).contains("no JSON object"));
        assert!(text(count("three").unwrap_err()).contains("print how many"));
        assert!(text(count("-1").unwrap_err()).contains("\"-1\" is no number"));
        assert!(text(init("max 3").unwrap_err()).contains("use id, max_size, suspend_resume"));
        assert!(text(init("max_size 0").unwrap_err()).contains("at least 1"));
        let refused = |answer: &str| connect_info(answer, &ConnectorConfig::default()).unwrap_err().to_string();
        assert_eq!(refused("protocol_port 70000"), "`protocol_port`: \"70000\" is no port");
        assert!(refused("protocol telnet").contains("ssh, winrm"));
        assert!(refused("addr 1").contains("internal_addr"));
    }

    #[test]
    fn silence_is_told_from_an_answer() {
        assert_eq!(count(""), Ok(None));
        assert_eq!(count("made 2 of them\n2\n"), Ok(Some(2)));
        assert_eq!(count(r#"{"succeeded": 0}"#), Ok(Some(0)));
        assert_eq!(ids("\n"), Ok(None));
        assert_eq!(ids(r#"{"succeeded": []}"#), Ok(Some(Vec::new())));
        assert_eq!(ids("a b\nc"), Ok(Some(vec![InstanceId::new("a b"), InstanceId::new("c")])));
    }

    #[test]
    fn what_the_user_set_wins_and_the_rest_is_the_scripts() {
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
