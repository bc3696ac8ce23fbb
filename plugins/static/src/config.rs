//! Configuration of the plugin, and the machines.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Suffix that is added to the name of the state file for its lock file.
pub(crate) const LOCK_SUFFIX: &str = ".lock";

/// Settings of the plugin.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Config {
    /// Name of the pool.
    pub(crate) name: String,
    /// Machines: tables with `name` and `address`. Optional keys override `connector_config`: `port`, `username`,
    /// `password`, `key_path`, `protocol`, `os`, `arch`, `external_address`, `host_key` (fingerprint `SHA256:...`) and
    /// `allow_unencrypted` (permits checks to log in by `winrm` over plain HTTP).
    pub(crate) machines: Vec<Machine>,
    /// TOML file with further `[[machines]]`. Reloaded when it changes.
    pub(crate) machines_file: PathBuf,
    /// Maximum number of instances. 0 means the number of machines at the start.
    pub(crate) max_size: u32,
    /// File that stores the leases. Empty means `<state directory>/muster/plugin-static/<name>.json`. The name must not end
    /// in `.lock`.
    pub(crate) state_file: PathBuf,
    /// How machines are checked: `command` logs in and runs `health_command`, `tcp` connects, `none` disables checks.
    pub(crate) health: HealthCheck,
    /// Command that succeeds on a healthy machine.
    pub(crate) health_command: String,
    /// Interval in seconds between checks of an unused machine, and between attempts to clean up a machine.
    pub(crate) health_interval_s: u64,
    /// Timeout for a check in seconds, including the connection.
    pub(crate) health_timeout_s: u64,
    /// Command that cleans up a machine after use. If it fails, the machine is not used until it succeeds. Empty means
    /// none.
    pub(crate) cleanup_command: String,
    /// Timeout for a cleanup in seconds, including the connection.
    pub(crate) cleanup_timeout_s: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "static".to_owned(),
            machines: Vec::new(),
            machines_file: PathBuf::new(),
            max_size: 0,
            state_file: PathBuf::new(),
            health: HealthCheck::Command,
            health_command: "exit 0".to_owned(),
            health_interval_s: 30,
            health_timeout_s: 10,
            cleanup_command: String::new(),
            cleanup_timeout_s: 300,
        }
    }
}

/// How machines are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HealthCheck {
    /// By running a command on the machine.
    Command,
    /// By opening a connection.
    Tcp,
    /// No checks.
    None,
}

/// A machine.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) external_address: String,
    pub(crate) port: u16,
    pub(crate) username: String,
    pub(crate) password: String,
    pub(crate) key_path: PathBuf,
    pub(crate) protocol: String,
    pub(crate) os: String,
    pub(crate) arch: String,
    pub(crate) host_key: String,
    pub(crate) allow_unencrypted: bool,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omits the password.
        f.debug_struct("Machine").field("name", &self.name).field("address", &self.address).finish_non_exhaustive()
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.name.is_empty() || self.name.contains(['/', '\0']) {
            return Err(format!("name = {:?} is not a valid pool name; use letters, digits, `-`", self.name));
        }
        if self.machines.is_empty() && self.machines_file.as_os_str().is_empty() {
            return Err(
                "no machines are configured: add [[runners.autoscaler.plugin_config.machines]] with name and address, or set \
                        machines_file"
                    .to_owned(),
            );
        }
        if self.state_file.as_os_str().as_encoded_bytes().ends_with(LOCK_SUFFIX.as_bytes()) {
            return Err(format!(
                "state_file = {:?} has the name of a lock file; use a name that does not end in `{LOCK_SUFFIX}`",
                self.state_file
            ));
        }
        if self.health_interval_s == 0 || self.health_timeout_s == 0 || self.cleanup_timeout_s == 0 {
            return Err("health_interval_s, health_timeout_s and cleanup_timeout_s must be at least 1".to_owned());
        }
        if self.health == HealthCheck::Tcp && !self.cleanup_command.is_empty() {
            tracing::debug!("health = \"tcp\" does not log in, but cleanup_command does");
        }
        Ok(())
    }

    /// Returns the text of `machines_file`. Empty if no file is configured.
    pub(crate) async fn read_machines_file(&self) -> Result<String, String> {
        let path = &self.machines_file;
        if path.as_os_str().is_empty() {
            return Ok(String::new());
        }
        let text = tokio::fs::read_to_string(path).await;
        text.map_err(|error| format!("machines_file: failed to read {}: {error}", path.display()))
    }

    /// Returns the configured machines and those in `text`, the content of `machines_file`.
    pub(crate) fn all_machines(&self, text: &str) -> Result<Vec<Machine>, String> {
        let mut machines = self.machines.clone();
        let file: MachinesFile = toml::from_str(text)
            .map_err(|error| format!("machines_file: failed to parse {}: {error}", self.machines_file.display()))?;
        machines.extend(file.machines);
        let mut names = HashSet::new();
        for machine in &machines {
            machine.check()?;
            if !names.insert(machine.name.as_str()) {
                return Err(format!("duplicate machine name {:?}; use unique names", machine.name));
            }
        }
        Ok(machines)
    }

    pub(crate) fn health_timeout(&self) -> Duration {
        Duration::from_secs(self.health_timeout_s)
    }

    pub(crate) fn cleanup_timeout(&self) -> Duration {
        Duration::from_secs(self.cleanup_timeout_s)
    }

    pub(crate) fn state_path(&self) -> Result<PathBuf, String> {
        if !self.state_file.as_os_str().is_empty() {
            return std::path::absolute(&self.state_file).map_err(|error| error.to_string());
        }
        let variable = |key: &str| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = variable("STATE_DIRECTORY")
            .or_else(|| variable("XDG_STATE_HOME"))
            .or_else(|| rustix::process::geteuid().is_root().then(|| PathBuf::from("/var/lib")))
            .or_else(|| variable("HOME").map(|home| home.join(".local/state")))
            .ok_or("no state directory was found: set state_file")?;
        Ok(base.join("muster/plugin-static").join(format!("{}.json", self.name)))
    }
}

impl Machine {
    fn check(&self) -> Result<(), String> {
        if self.name.is_empty() || self.name.contains('/') || self.name.chars().any(char::is_control) {
            return Err(format!(
                "invalid machine name {:?}: it must not be empty or contain `/` or control characters",
                self.name
            ));
        }
        if self.address.is_empty() && self.external_address.is_empty() {
            return Err(format!("machine {}: missing address", self.name));
        }
        if !matches!(self.protocol.as_str(), "" | "ssh" | "winrm" | "winrm+https") {
            return Err(format!(
                "machine {}: invalid protocol {:?}; use ssh, winrm or winrm+https",
                self.name, self.protocol
            ));
        }
        if !self.host_key.is_empty() && !self.host_key.starts_with("SHA256:") {
            return Err(format!(
                "machine {}: host_key must be a fingerprint such as `SHA256:...` (see ssh-keygen -lf FILE)",
                self.name
            ));
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MachinesFile {
    #[serde(default)]
    machines: Vec<Machine>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn invalid_values_are_rejected_with_hint() {
        assert!(config("{}").check().unwrap_err().contains("no machines are configured: add"));
        assert!(config(r#"{"name":"a/b"}"#).check().unwrap_err().contains("is not a valid pool name"));
        let duplicate = config(r#"{"machines":[{"name":"a","address":"1"},{"name":"a","address":"2"}]}"#);
        assert!(duplicate.all_machines("").unwrap_err().contains("duplicate machine name \"a\""));
        assert!(config(r#"{"machines":[{"name":"a"}]}"#).all_machines("").unwrap_err().contains("missing address"));
        let invalid_key = config(r#"{"machines":[{"name":"a","address":"1","host_key":"ssh-ed25519 AAAA"}]}"#);
        assert!(invalid_key.all_machines("").unwrap_err().contains("must be a fingerprint"));
        let lock = config(r#"{"machines":[{"name":"a","address":"1"}],"state_file":"/state/pool.json.lock"}"#);
        assert!(lock.check().unwrap_err().contains("use a name that does not end in `.lock`"));
        let error = serde_json::from_str::<Config>(r#"{"machines":[{"name":"a","adress":"1"}]}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `adress`, expected one of `name`, `address`"), "{error}");
    }

    #[test]
    fn machines_in_the_file_are_added() {
        let config = config(r#"{"machines":[{"name":"a","address":"1"}]}"#);
        let text = "[[machines]]\nname = \"b\"\naddress = \"10.0.0.2\"\n";
        assert_eq!(config.all_machines(text).unwrap().len(), 2);
        assert!(config.all_machines("[[machine]]\n").unwrap_err().contains("unknown field `machine`"));
    }
}
