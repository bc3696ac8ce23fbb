//! Runs the user's programs.

use muster_fleeting::sdk::program::{self, Finished, ProgramError};
use muster_fleeting::sdk::{ConnectorConfig, InstanceId};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::call::Call;
use crate::config::Config;

/// Exit status (EX_USAGE) of a program that does not implement the call.
const EXIT_NOT_IMPLEMENTED: i32 = 64;

#[derive(Debug)]
pub(crate) struct Programs {
    config: Config,
    connector: ConnectorConfig,
}

impl Programs {
    pub(crate) fn new(config: Config, connector: ConnectorConfig) -> Self {
        Self { config, connector }
    }

    pub(crate) fn has_executable(&self, call: Call) -> bool {
        self.config.command.is_empty() && self.config.directory.join(call.name()).is_file()
    }

    pub(crate) async fn run_with_ids(&self, call: Call, ids: &[InstanceId]) -> Result<Option<Finished>, ProgramError> {
        self.run(call, ids.iter().map(|id| id.as_str().to_owned()).collect()).await
    }

    /// Runs the program of a call. `None` means that no program implements the call.
    pub(crate) async fn run(&self, call: Call, arguments: Vec<String>) -> Result<Option<Finished>, ProgramError> {
        let mut command = match self.config.command.split_first() {
            None if !self.has_executable(call) => return Ok(None),
            None => Command::new(self.config.directory.join(call.name())),
            Some((program, first_arguments)) => {
                let mut command = Command::new(program);
                command.args(first_arguments).arg(call.name());
                command
            }
        };
        command.args(&arguments);
        self.set_environment(&mut command, call);
        let input = self.stdin_json(call, &arguments);
        let finished = program::run(command, call.name(), input.as_bytes(), self.config.timeout(call)).await?;
        if finished.status.code() == Some(EXIT_NOT_IMPLEMENTED) {
            return Ok(None);
        }
        Ok(Some(finished))
    }

    /// Sets the environment. Other processes of the same user can read it, so it contains no password or key.
    ///
    /// Nested tables of `settings` are passed on stdin only.
    fn set_environment(&self, command: &mut Command, call: Call) {
        for (key, _) in std::env::vars_os() {
            let name = key.to_string_lossy();
            if name.starts_with("PLUGIN_") || name == "FLEETING_INSTANCE_GROUP_PLUGIN" {
                command.env_remove(key);
            }
        }
        let connector = &self.connector;
        command
            .env("FLEETING_CALL", call.name())
            .env("CONNECTOR_OS", &connector.os)
            .env("CONNECTOR_ARCH", &connector.arch)
            .env("CONNECTOR_PROTOCOL", &connector.protocol)
            .env("CONNECTOR_PROTOCOL_PORT", connector.protocol_port.to_string())
            .env("CONNECTOR_USERNAME", &connector.username)
            .env("CONNECTOR_USE_STATIC_CREDENTIALS", connector.use_static_credentials.to_string());
        for (key, value) in &self.config.settings {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Bool(_) | Value::Number(_) => value.to_string(),
                Value::Null | Value::Array(_) | Value::Object(_) => continue,
            };
            let variable_char =
                |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' };
            command.env(format!("SETTING_{}", key.chars().map(variable_char).collect::<String>()), text);
        }
    }

    fn stdin_json(&self, call: Call, arguments: &[String]) -> String {
        let connector = &self.connector;
        let value = json!({
            "call": call.name(),
            "arguments": arguments,
            "settings": self.config.settings,
            "connector": {
                "os": connector.os,
                "arch": connector.arch,
                "protocol": connector.protocol,
                "protocol_port": connector.protocol_port,
                "username": connector.username,
                "password": connector.password,
                "key": String::from_utf8_lossy(&connector.key),
                "use_static_credentials": connector.use_static_credentials,
                "keepalive_s": connector.keepalive.as_secs_f64(),
                "timeout_s": connector.timeout.as_secs_f64(),
            },
        });
        format!("{value}\n")
    }
}
