//! Configuration of the plugin.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::call::Call;

/// Settings of the plugin.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Config {
    /// Name of the group, unless `init` returns a name.
    pub(crate) name: String,
    /// Directory with an executable for each call, which has the name of the call (`update`, `increase`, ...).
    pub(crate) directory: PathBuf,
    /// Program for all calls, with its first arguments. The name and the arguments of the call follow. Alternative to
    /// `directory`.
    pub(crate) command: Vec<String>,
    /// Maximum number of instances, unless `init` returns a maximum.
    pub(crate) max_size: u32,
    /// Timeout for a call in seconds.
    pub(crate) timeout_s: u64,
    /// Timeouts in seconds for single calls by name, such as `{ increase = 300 }`.
    pub(crate) timeouts_s: BTreeMap<String, u64>,
    /// Settings for the programs: any table. The programs get the table as JSON, and its plain values as variables
    /// `SETTING_NAME`.
    pub(crate) settings: Map<String, Value>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "script".to_owned(),
            directory: PathBuf::new(),
            command: Vec::new(),
            max_size: 10,
            timeout_s: 50,
            timeouts_s: BTreeMap::new(),
            settings: Map::new(),
        }
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), String> {
        match (self.directory.as_os_str().is_empty(), self.command.is_empty()) {
            (true, true) => {
                return Err(
                    "no program is configured: set directory (one executable for each call) or command (one program \
                            for all), see examples/plugins/shell"
                        .to_owned(),
                );
            }
            (false, false) => return Err("directory and command are both set; use one of them".to_owned()),
            _ => {}
        }
        if self.max_size == 0 {
            return Err("max_size must be at least 1".to_owned());
        }
        if self.timeout_s == 0 || self.timeouts_s.values().any(|seconds| *seconds == 0) {
            return Err("timeout_s and timeouts_s must be at least 1".to_owned());
        }
        let names = Call::ALL.map(Call::name);
        if let Some(key) = self.timeouts_s.keys().find(|key| !names.contains(&key.as_str())) {
            return Err(format!("timeouts_s.{key}: unknown call; use one of {}", names.join(", ")));
        }
        let is_missing = |call: &Call| !self.directory.join(call.name()).is_file();
        if self.command.is_empty()
            && let Some(call) =
                [Call::Update, Call::Increase, Call::Decrease, Call::ConnectInfo].iter().find(|call| is_missing(call))
        {
            return Err(format!(
                "{}: file not found; this call is required",
                self.directory.join(call.name()).display()
            ));
        }
        Ok(())
    }

    pub(crate) fn timeout(&self, call: Call) -> Duration {
        Duration::from_secs(self.timeouts_s.get(call.name()).copied().unwrap_or(self.timeout_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_values_are_rejected_with_hint() {
        let check_error = |text: &str| serde_json::from_str::<Config>(text).unwrap().check().unwrap_err();
        assert!(check_error("{}").contains("set directory"));
        assert!(check_error(r#"{"directory":"/a","command":["b"]}"#).contains("use one of them"));
        assert!(
            check_error(r#"{"command":["b"],"timeouts_s":{"create":5}}"#).contains("use one of init, update, increase")
        );
        assert!(check_error(r#"{"command":["b"],"timeout_s":0}"#).contains("at least 1"));
        assert!(check_error(r#"{"directory":"/nowhere"}"#).contains("/nowhere/update: file not found"));
    }

    #[test]
    fn timeout_of_a_call_takes_precedence() {
        let config: Config = serde_json::from_str(r#"{"command":["b"],"timeouts_s":{"increase":300}}"#).unwrap();
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.timeout(Call::Increase), Duration::from_secs(300));
        assert_eq!(config.timeout(Call::Update), Duration::from_secs(50));
    }
}
