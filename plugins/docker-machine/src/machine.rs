//! Runs docker-machine, and interprets its output.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_fleeting::sdk::program::{self, Finished, ProgramError};
use serde_json::Value;
use tokio::process::Command;

use crate::config::Config;

/// Timeout for the status of a machine, and for the first list. The host's timeout for both calls is 60 s.
const SHORT_CALL_TIMEOUT: Duration = Duration::from_secs(50);
/// Timeout for later lists and for the connection details. The host's timeout for both calls is 120 s.
const LONG_CALL_TIMEOUT: Duration = Duration::from_secs(100);
const DEFAULT_USER: &str = "root";
const DEFAULT_PORT: u16 = 22;
/// Default of `docker-machine ls --timeout`, in seconds.
const LIST_TIMEOUT_S: &str = "10";

#[derive(Debug)]
pub(crate) struct DockerMachine {
    config: Config,
    storage: PathBuf,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConnectionDetails {
    pub(crate) address: String,
    pub(crate) port: u16,
    pub(crate) username: String,
    pub(crate) key_path: PathBuf,
}

impl DockerMachine {
    pub(crate) fn new(config: Config, storage: PathBuf) -> Self {
        Self { config, storage }
    }

    async fn run(&self, arguments: &[&str], timeout: Duration) -> Result<Finished, ProgramError> {
        let mut command = Command::new(&self.config.executable);
        command.args(arguments).env("MACHINE_STORAGE_PATH", &self.storage);
        let name = format!("docker-machine {}", arguments.first().unwrap_or(&""));
        program::run(command, &name, b"", timeout).await
    }

    async fn output(&self, arguments: &[&str], timeout: Duration) -> Result<String, ProgramError> {
        let name = format!("docker-machine {}", arguments.first().unwrap_or(&""));
        let timeout = timeout.min(self.config.command_timeout());
        Ok(self.run(arguments, timeout).await?.success(&name)?.stdout)
    }

    /// Lists all machines with their states, including those of other groups.
    pub(crate) async fn list(&self) -> Result<BTreeMap<String, String>, ProgramError> {
        self.list_within(LONG_CALL_TIMEOUT).await
    }

    /// Like [`Self::list`], but within the host's timeout for `Init`.
    pub(crate) async fn first_list(&self) -> Result<BTreeMap<String, String>, ProgramError> {
        self.list_within(SHORT_CALL_TIMEOUT).await
    }

    async fn list_within(&self, timeout: Duration) -> Result<BTreeMap<String, String>, ProgramError> {
        let arguments = ["ls", "--timeout", LIST_TIMEOUT_S, "--format", "{{.Name}} {{.State}}"];
        let text = self.output(&arguments, timeout).await?;
        let parse_line = |line: &str| {
            let (name, state) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
            (!name.is_empty()).then(|| (name.to_owned(), state.trim().to_owned()))
        };
        Ok(text.lines().filter_map(parse_line).collect())
    }

    /// Creates a machine, which takes minutes. Writes the output of docker-machine to the file `output`.
    ///
    /// The command continues if the plugin exits, because docker-machine stores the provider's ID of the machine only
    /// at the end.
    pub(crate) async fn create(&self, name: &str, output: &Path) -> Result<(), ProgramError> {
        let mut arguments = vec!["create".to_owned(), "--driver".to_owned(), self.config.driver.clone()];
        arguments.extend(self.config.options.iter().map(|option| format!("--{option}")));
        let named = |option: &String| format!("--{}", option.replace("%s", name));
        arguments.extend(self.config.options_with_name.iter().map(named));
        arguments.push(name.to_owned());
        let mut command = Command::new(&self.config.executable);
        command.args(arguments).env("MACHINE_STORAGE_PATH", &self.storage);
        const NAME: &str = "docker-machine create";
        program::run_detached(command, NAME, output, self.config.create_timeout()).await?.success(NAME).map(drop)
    }

    pub(crate) fn create_timeout(&self) -> Duration {
        self.config.create_timeout()
    }

    /// Removes a machine. A machine that docker-machine does not know counts as removed. `force` removes the local
    /// state even if the machine remains at the provider.
    pub(crate) async fn remove(&self, name: &str, force: bool) -> Result<(), ProgramError> {
        let arguments: &[&str] = if force { &["rm", "-f", "-y", name] } else { &["rm", "-y", name] };
        let finished = self.run(arguments, self.config.command_timeout()).await?;
        // The message must contain the name, because the driver may report other missing resources.
        let unknown = format!("machine \"{name}\" does not exist");
        if !finished.status.success() && (finished.stderr.contains(&unknown) || finished.stdout.contains(&unknown)) {
            return Ok(());
        }
        finished.success("docker-machine rm").map(drop)
    }

    pub(crate) async fn status(&self, name: &str) -> Result<String, ProgramError> {
        Ok(self.output(&["status", name], SHORT_CALL_TIMEOUT).await?.trim().to_owned())
    }

    pub(crate) async fn connection_details(&self, name: &str) -> Result<ConnectionDetails, String> {
        let text = self.output(&["inspect", name], LONG_CALL_TIMEOUT / 2).await.map_err(|error| error.to_string())?;
        let mut details = parse_inspect(&text, &self.storage, name)?;
        if details.address.is_empty() {
            let address = self.output(&["ip", name], LONG_CALL_TIMEOUT / 2).await.map_err(|error| error.to_string())?;
            address.trim().clone_into(&mut details.address);
        }
        if details.address.is_empty() {
            return Err(format!("machine {name} has no address yet"));
        }
        Ok(details)
    }
}

fn parse_inspect(text: &str, storage: &Path, name: &str) -> Result<ConnectionDetails, String> {
    let value: Value = serde_json::from_str(text)
        .map_err(|error| format!("invalid output of docker-machine inspect {name}: {error}"))?;
    let driver = |key: &str| value.pointer(&format!("/Driver/{key}"));
    let text = |key: &str| driver(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let or_default = |text: String, default: &str| if text.is_empty() { default.to_owned() } else { text };
    let port = driver("SSHPort").and_then(Value::as_u64).unwrap_or(0);
    let key_path = match text("SSHKeyPath") {
        path if path.is_empty() => storage.join("machines").join(name).join("id_rsa"),
        path => PathBuf::from(path),
    };
    Ok(ConnectionDetails {
        address: text("IPAddress"),
        port: u16::try_from(port).ok().filter(|port| *port > 0).unwrap_or(DEFAULT_PORT),
        username: or_default(text("SSHUser"), DEFAULT_USER),
        key_path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_values_of_inspect_have_defaults() {
        let storage = Path::new("/s");
        let complete = r#"{"Driver":{"IPAddress":"10.0.0.1","SSHUser":"core","SSHPort":2222,"SSHKeyPath":"/k"}}"#;
        let expected = ConnectionDetails {
            address: "10.0.0.1".to_owned(),
            port: 2222,
            username: "core".to_owned(),
            key_path: "/k".into(),
        };
        assert_eq!(parse_inspect(complete, storage, "m"), Ok(expected));
        let defaults = ConnectionDetails {
            address: String::new(),
            port: 22,
            username: "root".to_owned(),
            key_path: "/s/machines/m/id_rsa".into(),
        };
        assert_eq!(parse_inspect(r#"{"Driver":{"SSHPort":0,"SSHKeyPath":""}}"#, storage, "m"), Ok(defaults));
        assert!(
            parse_inspect("Host does not exist", storage, "m")
                .unwrap_err()
                .contains("invalid output of docker-machine inspect m")
        );
    }

    /// The host ends a plugin that exceeds its timeout, together with all work in progress.
    #[test]
    fn command_timeouts_are_below_those_of_the_host() {
        let host = muster_fleeting::host::Timeouts::default();
        // Killing a command takes time.
        let kill_time = Duration::from_secs(10);
        assert!(SHORT_CALL_TIMEOUT + kill_time <= host.heartbeat.min(host.init));
        assert!(LONG_CALL_TIMEOUT + kill_time <= host.connect_info.min(host.update));
    }
}
