//! The settings: an old `[runners.machine]` table as it is, and the plugin's own keys beside it.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// Removals, where MaxRemovalAttempts does not say.
const REMOVALS: u32 = 30;

/// Settings of the plugin.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Config {
    /// Driver of docker-machine: `amazonec2`, `google`, ... Required.
    #[serde(rename = "MachineDriver")]
    pub(crate) driver: String,
    /// Name of machines; its one `%s` becomes `<seconds since 1970>-<8 hexadecimal digits>`.
    #[serde(rename = "MachineName")]
    pub(crate) machine_name: String,
    /// Options of `docker-machine create`, each `name=value` without the dashes.
    #[serde(rename = "MachineOptions")]
    pub(crate) options: Vec<String>,
    /// More of them, whose `%s` is the machine's name.
    #[serde(rename = "MachineOptionsWithName")]
    pub(crate) options_with_name: Vec<String>,
    /// Machines in creation at the same time; 0: no limit.
    #[serde(rename = "MaxGrowthRate")]
    pub(crate) max_growth_rate: u32,
    /// Tries to remove a machine; after the last one its local state is removed by force.
    #[serde(rename = "MaxRemovalAttempts")]
    pub(crate) max_removal_attempts: i32,
    /// Text before each machine's name; gitlab-runner put `runner-<short token>-` there. Must be this group's own.
    pub(crate) prefix: String,
    /// The most instances (`limit` of the runner).
    pub(crate) max_size: u32,
    /// The program.
    pub(crate) executable: PathBuf,
    /// docker-machine's directory; empty: `MACHINE_STORAGE_PATH`, or `~/.docker/machine`.
    pub(crate) storage_path: PathBuf,
    /// Seconds that a creation may take.
    pub(crate) create_limit_s: u64,
    /// Seconds that any other command may take.
    pub(crate) command_limit_s: u64,
    /// Seconds between two tries to remove a machine.
    pub(crate) removal_interval_s: u64,
    /// Not used: `idle_count` of `[[runners.autoscaler.policy]]` (job slots, not machines).
    #[serde(rename = "IdleCount")]
    pub(crate) idle_count: Option<Value>,
    /// Not used: `scale_factor` of `[[runners.autoscaler.policy]]`.
    #[serde(rename = "IdleScaleFactor")]
    pub(crate) idle_scale_factor: Option<Value>,
    /// Not used: `idle_count` of `[[runners.autoscaler.policy]]`, which is the floor under `scale_factor`.
    #[serde(rename = "IdleCountMin")]
    pub(crate) idle_count_min: Option<Value>,
    /// Not used: `idle_time` of `[[runners.autoscaler.policy]]`.
    #[serde(rename = "IdleTime")]
    pub(crate) idle_time: Option<Value>,
    /// Not used: `max_use_count` of `[runners.autoscaler]`.
    #[serde(rename = "MaxBuilds")]
    pub(crate) max_builds: Option<Value>,
    /// Not used: `[[runners.autoscaler.policy]]` with `periods` (five fields, without seconds and year) and `timezone`.
    #[serde(rename = "autoscaling")]
    pub(crate) autoscaling: Option<Value>,
    /// Not used since GitLab 14.0: `[[runners.autoscaler.policy]]` with `periods`.
    #[serde(rename = "OffPeakPeriods")]
    pub(crate) off_peak_periods: Option<Value>,
    /// Not used since GitLab 14.0: `timezone` of `[[runners.autoscaler.policy]]`.
    #[serde(rename = "OffPeakTimezone")]
    pub(crate) off_peak_timezone: Option<Value>,
    /// Not used since GitLab 14.0: `idle_count` of `[[runners.autoscaler.policy]]`.
    #[serde(rename = "OffPeakIdleCount")]
    pub(crate) off_peak_idle_count: Option<Value>,
    /// Not used since GitLab 14.0: `idle_time` of `[[runners.autoscaler.policy]]`.
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
            create_limit_s: 3600,
            command_limit_s: 100,
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
    /// What is wrong with the values.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.driver.is_empty() {
            return Err("MachineDriver is not set: copy the keys of [runners.machine] into \
                        [runners.autoscaler.plugin_config], MachineDriver, MachineName and MachineOptions at least"
                .to_owned());
        }
        if self.machine_name.matches("%s").count() != 1 {
            return Err(format!(
                "MachineName = {:?} needs one %s, which makes each machine's name its own",
                self.machine_name
            ));
        }
        let name = self.names().make(0, 0);
        if !name.chars().all(|letter| letter.is_ascii_alphanumeric() || ".-_".contains(letter)) || name.starts_with('-')
        {
            return Err(format!(
                "MachineName with prefix makes {name:?}; docker-machine takes letters, digits, `.`, `-`, `_`"
            ));
        }
        if let Some(option) = self.options_with_name.iter().find(|option| !option.contains("%s")) {
            return Err(format!(
                "MachineOptionsWithName: {option:?} has no %s for the name; put it into MachineOptions"
            ));
        }
        if self.max_size == 0 || self.create_limit_s == 0 || self.command_limit_s == 0 {
            return Err("max_size, create_limit_s and command_limit_s must be at least 1".to_owned());
        }
        Ok(())
    }

    /// Says what an old table had that is written elsewhere now (R026).
    pub(crate) fn warn_of_old_keys(&self) {
        let policy = "[[runners.autoscaler.policy]]";
        for (key, value, instead) in [
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
                tracing::warn!(key, "scaling is the manager's, not the plugin's: set {instead} in {policy} instead");
            }
        }
        if self.max_builds.is_some() {
            tracing::warn!(key = "MaxBuilds", "set max_use_count in [runners.autoscaler] instead");
        }
        tracing::warn!(
            "Docker Machine is deprecated since GitLab 17.5 and planned to go with GitLab 20.0: this plugin is for the \
             time in between; a plugin of the cloud's own group, or `static`, takes its place"
        );
    }

    pub(crate) fn names(&self) -> Names {
        let (before, after) = self.machine_name.split_once("%s").unwrap_or((&self.machine_name, ""));
        Names { before: format!("{}{before}", self.prefix), after: after.to_owned() }
    }

    pub(crate) fn create_limit(&self) -> Duration {
        Duration::from_secs(self.create_limit_s)
    }

    pub(crate) fn command_limit(&self) -> Duration {
        Duration::from_secs(self.command_limit_s)
    }

    pub(crate) fn removals(&self) -> u32 {
        u32::try_from(self.max_removal_attempts).ok().filter(|attempts| *attempts > 0).unwrap_or(REMOVALS)
    }

    pub(crate) fn storage(&self) -> Result<PathBuf, String> {
        if !self.storage_path.as_os_str().is_empty() {
            return std::path::absolute(&self.storage_path).map_err(|error| format!("storage_path: {error}"));
        }
        let set = |key: &str| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        set("MACHINE_STORAGE_PATH")
            .or_else(|| set("HOME").map(|home| home.join(".docker/machine")))
            .ok_or_else(|| "there is no HOME: set storage_path, docker-machine's directory".to_owned())
    }
}

/// The names of this group's machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    before: String,
    after: String,
}

impl Names {
    /// A name; `random` makes it its own.
    pub(crate) fn make(&self, seconds: u64, random: u32) -> String {
        format!("{}{seconds}-{random:08x}{}", self.before, self.after)
    }

    /// Whether it may be one of this group's machines.
    pub(crate) fn is_ours(&self, name: &str) -> bool {
        let middle = name.strip_prefix(&self.before).and_then(|rest| rest.strip_suffix(&self.after));
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
    fn what_cannot_work_is_told_with_its_remedy() {
        assert!(config("{}").check().unwrap_err().contains("MachineDriver is not set: copy the keys"));
        assert!(config(r#"{"MachineDriver":"none","MachineName":"m"}"#).check().unwrap_err().contains("needs one %s"));
        assert!(
            config(r#"{"MachineDriver":"none","MachineName":"a b %s"}"#).check().unwrap_err().contains("takes letters")
        );
        let named = config(r#"{"MachineDriver":"none","MachineName":"m-%s","MachineOptionsWithName":["tag=x"]}"#);
        assert!(named.check().unwrap_err().contains("has no %s"));
    }

    #[test]
    fn names_are_the_groups_own() {
        let names = config(r#"{"MachineDriver":"none","MachineName":"auto-%s-vm","prefix":"runner-abc-"}"#).names();
        let name = names.make(1_700_000_000, 0xbeef);
        assert_eq!(name, "runner-abc-auto-1700000000-0000beef-vm");
        assert!(names.is_ours(&name));
        for other in
            ["runner-abc-auto-x-0000beef-vm", "auto-1700000000-0000beef-vm", "runner-abc-auto-1-0000beef", "mine"]
        {
            assert!(!names.is_ours(other), "{other}");
        }
    }

    #[test]
    fn removals_are_thirty_where_nothing_is_said() {
        assert_eq!(config("{}").removals(), 30);
        assert_eq!(config(r#"{"MaxRemovalAttempts":-1}"#).removals(), 30);
        assert_eq!(config(r#"{"MaxRemovalAttempts":3}"#).removals(), 3);
    }
}
