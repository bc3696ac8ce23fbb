//! File of `muster plugin test --config`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_fleeting::conformance::{Connect, Plan};
use muster_fleeting::connector::DialOptions;
use muster_fleeting::model::ConnectorConfig;
use muster_job::GoDuration;
use serde::Deserialize;
use serde_json::Value;

use super::error::PluginError;

/// Keys of `[runners.autoscaler]`, and settings of the tests.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TestConfig {
    pub(super) plugin: Option<String>,
    pub(super) arguments: Vec<String>,
    plugin_config: Option<toml::Table>,
    connector_config: Connector,
    test: Test,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Connector {
    os: String,
    arch: String,
    protocol: String,
    protocol_port: u16,
    username: String,
    password: String,
    key_path: Option<PathBuf>,
    use_static_credentials: bool,
    keepalive: Option<String>,
    timeout: Option<String>,
    use_external_addr: bool,
    allow_unencrypted: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Test {
    instances: Option<u32>,
    connect: Connect,
    call_timeout: Option<String>,
    create_timeout: Option<String>,
    delete_timeout: Option<String>,
    exit_timeout: Option<String>,
}

pub(super) fn read(path: &Path) -> Result<TestConfig, PluginError> {
    let text = std::fs::read_to_string(path).map_err(|source| PluginError::File { path: path.to_owned(), source })?;
    toml::from_str(&text).map_err(|error| PluginError::Config(format!("{}: {error}", path.display())))
}

impl TestConfig {
    pub(super) fn apply(self, plan: &mut Plan) -> Result<(), PluginError> {
        plan.config = self.plugin_config.map_or(Value::Null, |table| json(toml::Value::Table(table)));
        let Connector { keepalive, timeout, key_path, use_external_addr, allow_unencrypted, .. } =
            &self.connector_config;
        let key = match key_path {
            Some(path) => std::fs::read(path).map_err(|source| PluginError::File { path: path.clone(), source })?,
            None => Vec::new(),
        };
        plan.dial = DialOptions { use_external_addr: *use_external_addr, allow_unencrypted: *allow_unencrypted };
        let default = ConnectorConfig::default();
        plan.connector = ConnectorConfig {
            keepalive: duration("connector_config.keepalive", keepalive.as_deref(), default.keepalive)?,
            timeout: duration("connector_config.timeout", timeout.as_deref(), default.timeout)?,
            key,
            os: self.connector_config.os,
            arch: self.connector_config.arch,
            protocol: self.connector_config.protocol,
            protocol_port: self.connector_config.protocol_port,
            username: self.connector_config.username,
            password: self.connector_config.password,
            use_static_credentials: self.connector_config.use_static_credentials,
        };
        plan.connector.check().map_err(|error| PluginError::Config(error.to_string()))?;
        let test = self.test;
        plan.instances = test.instances.unwrap_or(plan.instances);
        if plan.instances == 0 {
            return Err(PluginError::Usage("test.instances must be at least 1"));
        }
        plan.connect = test.connect;
        plan.call_timeout = duration("test.call_timeout", test.call_timeout.as_deref(), plan.call_timeout)?;
        plan.create_timeout = duration("test.create_timeout", test.create_timeout.as_deref(), plan.create_timeout)?;
        plan.delete_timeout = duration("test.delete_timeout", test.delete_timeout.as_deref(), plan.delete_timeout)?;
        plan.exit_timeout = duration("test.exit_timeout", test.exit_timeout.as_deref(), plan.exit_timeout)?;
        Ok(())
    }
}

fn duration(key: &str, text: Option<&str>, default: Duration) -> Result<Duration, PluginError> {
    let Some(text) = text else { return Ok(default) };
    match GoDuration::parse(text) {
        Some(GoDuration::NonNegative(duration)) if !duration.is_zero() => Ok(duration),
        _ => Err(PluginError::Config(format!(
            "{key}: {text:?} is not a positive duration; write it as 30s, 5m or 1h30m"
        ))),
    }
}

/// Converts TOML to JSON as plugin hosts do. Dates become strings.
fn json(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(flag) => Value::Bool(flag),
        toml::Value::Datetime(time) => Value::String(time.to_string()),
        toml::Value::Array(values) => values.into_iter().map(json).collect(),
        toml::Value::Table(table) => Value::Object(table.into_iter().map(|(key, value)| (key, json(value))).collect()),
    }
}
