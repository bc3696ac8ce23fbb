//! The settings.

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
    /// Name of the group, where `init` does not say.
    pub(crate) name: String,
    /// Directory with one executable for each call, named as the call (`update`, `increase`, ...).
    pub(crate) directory: PathBuf,
    /// Program for all calls, with its first arguments; the call's name and arguments follow. Instead of `directory`.
    pub(crate) command: Vec<String>,
    /// The most instances, where `init` does not say.
    pub(crate) max_size: u32,
    /// Seconds that a call may take; then it is killed.
    pub(crate) limit_s: u64,
    /// Seconds for single calls, by name: `{ increase = 300 }`.
    pub(crate) limits_s: BTreeMap<String, u64>,
    /// Settings of the programs themselves: any table. They get it as JSON, and its plain values as variables
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
            limit_s: 50,
            limits_s: BTreeMap::new(),
            settings: Map::new(),
        }
    }
}

impl Config {
    /// What is wrong with the values.
    pub(crate) fn check(&self) -> Result<(), String> {
        match (self.directory.as_os_str().is_empty(), self.command.is_empty()) {
            (true, true) => {
                return Err(
                    "there is nothing to call: set directory (one executable for each call) or command (one program \
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
        if self.limit_s == 0 || self.limits_s.values().any(|seconds| *seconds == 0) {
            return Err("a limit of 0 seconds lets no call end; use at least 1".to_owned());
        }
        let known = Call::ALL.map(Call::name);
        if let Some(key) = self.limits_s.keys().find(|key| !known.contains(&key.as_str())) {
            return Err(format!("limits_s.{key}: there is no such call; use one of {}", known.join(", ")));
        }
        let missing = |call: &Call| !self.directory.join(call.name()).is_file();
        if self.command.is_empty()
            && let Some(call) =
                [Call::Update, Call::Increase, Call::Decrease, Call::ConnectInfo].iter().find(|call| missing(call))
        {
            return Err(format!("{}: not there; a plugin needs this call", self.directory.join(call.name()).display()));
        }
        Ok(())
    }

    /// How long a call may take.
    pub(crate) fn limit(&self, call: Call) -> Duration {
        Duration::from_secs(self.limits_s.get(call.name()).copied().unwrap_or(self.limit_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_told_with_its_remedy() {
        let refused = |text: &str| serde_json::from_str::<Config>(text).unwrap().check().unwrap_err();
        assert!(refused("{}").contains("set directory"));
        assert!(refused(r#"{"directory":"/a","command":["b"]}"#).contains("use one of them"));
        assert!(refused(r#"{"command":["b"],"limits_s":{"create":5}}"#).contains("use one of init, update, increase"));
        assert!(refused(r#"{"command":["b"],"limit_s":0}"#).contains("at least 1"));
        assert!(refused(r#"{"directory":"/nowhere"}"#).contains("/nowhere/update: not there"));
    }

    #[test]
    fn a_calls_own_limit_wins() {
        let config: Config = serde_json::from_str(r#"{"command":["b"],"limits_s":{"increase":300}}"#).unwrap();
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.limit(Call::Increase), Duration::from_secs(300));
        assert_eq!(config.limit(Call::Update), Duration::from_secs(50));
    }
}
