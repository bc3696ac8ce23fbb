//! Configuration: the keys of an existing `[runners.machine]` table, and keys of the plugin.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// Number of attempts to remove a machine if `MaxRemovalAttempts` is not set.
const DEFAULT_REMOVAL_ATTEMPTS: u32 = 30;

/// Settings of the plugin.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Config {
    /// Driver of docker-machine, such as `amazonec2` or `google`. Required.
    #[serde(rename = "MachineDriver")]
    pub(crate) driver: String,
    /// Name of the machines. It contains one `%s`, which becomes `<seconds since 1970>-<8 hexadecimal digits>`.
    #[serde(rename = "MachineName")]
    pub(crate) machine_name: String,
    /// Options of `docker-machine create`, each as `name=value` without dashes.
    #[serde(rename = "MachineOptions")]
    pub(crate) options: Vec<String>,
    /// Further options, in which `%s` is replaced by the name of the machine.
    #[serde(rename = "MachineOptionsWithName")]
    pub(crate) options_with_name: Vec<String>,
    /// Maximum number of machines that are being created at the same time. 0 means no limit.
    #[serde(rename = "MaxGrowthRate")]
    pub(crate) max_growth_rate: u32,
    /// Maximum number of attempts to remove a machine. 0 or less means 30. After the last attempt, `docker-machine rm -f` removes its local state.
    #[serde(rename = "MaxRemovalAttempts")]
    pub(crate) max_removal_attempts: i32,
    /// Prefix of the machine names; gitlab-runner used `runner-<short token>-`. It must be unique to this group.
    pub(crate) prefix: String,
    /// Maximum number of instances (`limit` of the runner).
    pub(crate) max_size: u32,
    /// Path of docker-machine.
    pub(crate) executable: PathBuf,
    /// Directory of docker-machine. Empty means `MACHINE_STORAGE_PATH` or `~/.docker/machine`.
    pub(crate) storage_path: PathBuf,
    /// Timeout for creating a machine, in seconds.
    pub(crate) create_timeout_s: u64,
    /// Timeout for every other command, in seconds. Some commands have a shorter timeout.
    pub(crate) command_timeout_s: u64,
    /// Interval between attempts to remove a machine, in seconds.
    pub(crate) removal_interval_s: u64,
    /// Ignored: use `idle_count` of `[[runners.autoscaler.policy]]`, which counts job slots instead of machines.
    #[serde(rename = "IdleCount")]
    pub(crate) idle_count: Option<Value>,
    /// Ignored: use `scale_factor` of `[[runners.autoscaler.policy]]`.
    #[serde(rename = "IdleScaleFactor")]
    pub(crate) idle_scale_factor: Option<Value>,
    /// Ignored: use `idle_count` of `[[runners.autoscaler.policy]]`, which is the minimum for `scale_factor`.
    #[serde(rename = "IdleCountMin")]
    pub(crate) idle_count_min: Option<Value>,
    /// Ignored: use `idle_time` of `[[runners.autoscaler.policy]]`.
    #[serde(rename = "IdleTime")]
    pub(crate) idle_time: Option<Value>,
    /// Ignored: use `max_use_count` of `[runners.autoscaler]`.
    #[serde(rename = "MaxBuilds")]
    pub(crate) max_builds: Option<Value>,
    /// Ignored: use `[[runners.autoscaler.policy]]` with `periods` (five fields, without seconds and year) and
    /// `timezone`.
    #[serde(rename = "autoscaling")]
    pub(crate) autoscaling: Option<Value>,
    /// Ignored since GitLab 14.0: use `[[runners.autoscaler.policy]]` with `periods`.
    #[serde(rename = "OffPeakPeriods")]
    pub(crate) off_peak_periods: Option<Value>,
    /// Ignored since GitLab 14.0: use `timezone` of `[[runners.autoscaler.policy]]`.
    #[serde(rename = "OffPeakTimezone")]
    pub(crate) off_peak_timezone: Option<Value>,
    /// Ignored since GitLab 14.0: use `idle_count` of `[[runners.autoscaler.policy]]`.
    #[serde(rename = "OffPeakIdleCount")]
    pub(crate) off_peak_idle_count: Option<Value>,
    /// Ignored since GitLab 14.0: use `idle_time` of `[[runners.autoscaler.policy]]`.
    #[serde(rename = "OffPeakIdleTime")]
    pub(crate) off_peak_idle_time: Option<Value>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            driver: String::new(),
            machine_name: String::new(),
            options: Vec::new(),
            options_with_name: Vec::new(),
            max_growth_rate: 0,
            max_removal_attempts: 0,
            prefix: String::new(),
            max_size: 100,
            executable: PathBuf::from("docker-machine"),
            storage_path: PathBuf::new(),
            create_timeout_s: 3600,
            command_timeout_s: 100,
            removal_interval_s: 30,
            idle_count: None,
            idle_scale_factor: None,
            idle_count_min: None,
            idle_time: None,
            max_builds: None,
            autoscaling: None,
            off_peak_periods: None,
            off_peak_timezone: None,
            off_peak_idle_count: None,
            off_peak_idle_time: None,
        }
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.driver.is_empty() {
            return Err("missing MachineDriver: copy the keys of [runners.machine] to \
                        [runners.autoscaler.plugin_config], at least MachineDriver, MachineName and MachineOptions"
                .to_owned());
        }
        if self.machine_name.matches("%s").count() != 1 {
            return Err(format!(
                "MachineName = {:?} must contain exactly one %s, which makes the names unique",
                self.machine_name
            ));
        }
        let name = self.names().new_name(0, 0);
        if !name.chars().all(|letter| letter.is_ascii_alphanumeric() || ".-_".contains(letter)) || name.starts_with('-')
        {
            return Err(format!("prefix and MachineName result in {name:?}; use only letters, digits, `.`, `-`, `_`"));
        }
        if let Some(option) = self.options_with_name.iter().find(|option| !option.contains("%s")) {
            return Err(format!(
                "MachineOptionsWithName: {option:?} contains no %s for the name; move it to MachineOptions"
            ));
        }
        if self.max_size == 0 || self.create_timeout_s == 0 || self.command_timeout_s == 0 {
            return Err("max_size, create_timeout_s and command_timeout_s must be at least 1".to_owned());
        }
        Ok(())
    }

    /// Warns that Docker Machine is deprecated, and about replaced keys (requirement R026).
    pub(crate) fn warn_of_old_keys(&self) {
        let policy = "[[runners.autoscaler.policy]]";
        for (key, value, replacement) in [
            ("IdleCount", &self.idle_count, "idle_count"),
            ("IdleScaleFactor", &self.idle_scale_factor, "scale_factor"),
            ("IdleCountMin", &self.idle_count_min, "idle_count"),
            ("IdleTime", &self.idle_time, "idle_time"),
            ("autoscaling", &self.autoscaling, "periods, timezone, idle_count and idle_time"),
            ("OffPeakPeriods", &self.off_peak_periods, "periods"),
            ("OffPeakTimezone", &self.off_peak_timezone, "timezone"),
            ("OffPeakIdleCount", &self.off_peak_idle_count, "idle_count"),
            ("OffPeakIdleTime", &self.off_peak_idle_time, "idle_time"),
        ] {
            if value.is_some() {
                tracing::warn!(
                    key,
                    "scaling is configured in the manager, not in the plugin: set {replacement} in {policy} instead"
                );
            }
        }
        if self.max_builds.is_some() {
            tracing::warn!(key = "MaxBuilds", "set max_use_count in [runners.autoscaler] instead");
        }
        tracing::warn!(
            "Docker Machine has been deprecated since GitLab 17.5 and will be removed in GitLab 20.0. Use this plugin for \
             the transition, and migrate to the plugin of your cloud, or to `static`"
        );
    }

    pub(crate) fn names(&self) -> Names {
        let (name_prefix, name_suffix) = self.machine_name.split_once("%s").unwrap_or((&self.machine_name, ""));
        Names { prefix: format!("{}{name_prefix}", self.prefix), suffix: name_suffix.to_owned() }
    }

    pub(crate) fn create_timeout(&self) -> Duration {
        Duration::from_secs(self.create_timeout_s)
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        Duration::from_secs(self.command_timeout_s)
    }

    pub(crate) fn removal_attempts(&self) -> u32 {
        u32::try_from(self.max_removal_attempts)
            .ok()
            .filter(|attempts| *attempts > 0)
            .unwrap_or(DEFAULT_REMOVAL_ATTEMPTS)
    }

    pub(crate) fn storage(&self) -> Result<PathBuf, String> {
        if !self.storage_path.as_os_str().is_empty() {
            return std::path::absolute(&self.storage_path).map_err(|error| format!("storage_path: {error}"));
        }
        let variable = |key: &str| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        variable("MACHINE_STORAGE_PATH")
            .or_else(|| variable("HOME").map(|home| home.join(".docker/machine")))
            .ok_or_else(|| "HOME is not set: set storage_path to the directory of docker-machine".to_owned())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    prefix: String,
    suffix: String,
}

impl Names {
    /// `random` makes the name unique.
    pub(crate) fn new_name(&self, seconds: u64, random: u32) -> String {
        format!("{}{seconds}-{random:08x}{}", self.prefix, self.suffix)
    }

    pub(crate) fn may_belong_to_group(&self, name: &str) -> bool {
        let middle = name.strip_prefix(&self.prefix).and_then(|rest| rest.strip_suffix(&self.suffix));
        middle.and_then(|middle| middle.split_once('-')).is_some_and(|(seconds, random)| {
            !seconds.is_empty()
                && seconds.bytes().all(|byte| byte.is_ascii_digit())
                && random.len() == 8
                && random.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn invalid_values_are_rejected_with_hint() {
        assert!(config("{}").check().unwrap_err().contains("missing MachineDriver: copy the keys"));
        assert!(
            config(r#"{"MachineDriver":"none","MachineName":"m"}"#)
                .check()
                .unwrap_err()
                .contains("must contain exactly one %s")
        );
        assert!(
            config(r#"{"MachineDriver":"none","MachineName":"a b %s"}"#)
                .check()
                .unwrap_err()
                .contains("use only letters")
        );
        let config = config(r#"{"MachineDriver":"none","MachineName":"m-%s","MachineOptionsWithName":["tag=x"]}"#);
        assert!(config.check().unwrap_err().contains("contains no %s"));
    }

    #[test]
    fn only_names_of_the_configured_form_belong_to_the_group() {
        let names = config(r#"{"MachineDriver":"none","MachineName":"auto-%s-vm","prefix":"runner-abc-"}"#).names();
        let name = names.new_name(1_700_000_000, 0xbeef);
        assert_eq!(name, "runner-abc-auto-1700000000-0000beef-vm");
        assert!(names.may_belong_to_group(&name));
        for other in
            ["runner-abc-auto-x-0000beef-vm", "auto-1700000000-0000beef-vm", "runner-abc-auto-1-0000beef", "other"]
        {
            assert!(!names.may_belong_to_group(other), "{other}");
        }
    }

    #[test]
    fn thirty_removal_attempts_by_default() {
        assert_eq!(config("{}").removal_attempts(), 30);
        assert_eq!(config(r#"{"MaxRemovalAttempts":-1}"#).removal_attempts(), 30);
        assert_eq!(config(r#"{"MaxRemovalAttempts":3}"#).removal_attempts(), 3);
    }
}
