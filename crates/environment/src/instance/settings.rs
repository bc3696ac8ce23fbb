//! What `[runners.autoscaler]` says (fleeting.md 5.1), and what the scaler makes of it.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use jiff::tz::TimeZone;
use muster_fleeting::model::ConnectorConfig;
use muster_taskscaler::config::{Config, GroupConfig, Throttle};
use muster_taskscaler::driver::Buckets;
use muster_taskscaler::policy::{Placement, Policies, Policy, Wanted};

use super::reach::Told;
use super::share::{DensitySettings, StickySettings};

/// `[runners.autoscaler]`, with the defaults filled in.
#[derive(Clone, PartialEq)]
#[expect(missing_docs, reason = "the field names are those of config.toml")]
pub struct AutoscalerSettings {
    pub plugin: String,
    /// As JSON; `null` where there is none.
    pub plugin_config: serde_json::Value,
    pub connector: ConnectorSettings,
    pub capacity_per_instance: u32,
    /// 0: no limit.
    pub max_use_count: u32,
    /// 0: as many as the plugin can have.
    pub max_instances: u32,
    pub instance_ready_command: Option<String>,
    pub instance_acquire_timeout: Duration,
    pub update_interval: Duration,
    pub update_interval_when_expecting: Duration,
    pub deletion_retry_interval: Duration,
    pub failure_threshold: u32,
    pub reservation_throttling: bool,
    pub log_internal_ip: bool,
    pub log_external_ip: bool,
    pub delete_instances_on_shutdown: bool,
    /// `scale_throttle.limit`; 0: the default, below 0: none.
    pub throttle_limit: i64,
    /// `scale_throttle.burst`; 0: the default.
    pub throttle_burst: u32,
    pub policies: Vec<PolicySettings>,
    /// `instance_*_buckets`.
    pub buckets: Buckets,
    pub density: DensitySettings,
    /// None: there are no sticky contexts.
    pub sticky: Option<StickySettings>,
}

/// `[runners.autoscaler.connector_config]`; empty text is the plugin's choice.
#[derive(Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the field names are those of config.toml")]
pub struct ConnectorSettings {
    pub os: String,
    pub arch: String,
    pub protocol: String,
    pub protocol_port: u16,
    pub username: String,
    pub password: String,
    pub key_path: Option<PathBuf>,
    pub use_static_credentials: bool,
    pub keepalive: Option<Duration>,
    pub timeout: Option<Duration>,
    pub use_external_addr: bool,
}

/// `[[runners.autoscaler.policy]]`.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(missing_docs, reason = "the field names are those of config.toml")]
pub struct PolicySettings {
    /// None: always.
    pub periods: Vec<String>,
    /// Empty: this machine's.
    pub timezone: String,
    pub idle_count: u32,
    pub idle_time: Duration,
    pub scale_factor: f64,
    pub scale_factor_limit: u32,
    pub preemptive_mode: Option<bool>,
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A period is none.
    #[error("policy {number}: period {period:?}: {message}")]
    Period {
        /// Which policy, from 1.
        number: usize,
        /// The text.
        period: String,
        /// What is wrong with it.
        message: String,
    },
    /// A time zone is none.
    #[error("policy {number}: there is no time zone {zone:?}: {message}")]
    Zone {
        /// Which policy, from 1.
        number: usize,
        /// The name.
        zone: String,
        /// What is wrong with it.
        message: String,
    },
    /// The private key cannot be read.
    #[error("connector_config: key_path {}: {source}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl Default for AutoscalerSettings {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self {
            plugin: String::new(),
            plugin_config: serde_json::Value::Null,
            connector: ConnectorSettings::default(),
            capacity_per_instance: 1,
            max_use_count: 0,
            max_instances: 0,
            instance_ready_command: None,
            instance_acquire_timeout: minute * 15,
            update_interval: minute,
            update_interval_when_expecting: Duration::from_secs(2),
            deletion_retry_interval: minute,
            failure_threshold: 3,
            reservation_throttling: true,
            log_internal_ip: false,
            log_external_ip: false,
            delete_instances_on_shutdown: false,
            throttle_limit: 0,
            throttle_burst: 0,
            policies: Vec::new(),
            buckets: Buckets::default(),
            density: DensitySettings::default(),
            sticky: None,
        }
    }
}

impl fmt::Debug for AutoscalerSettings {
    /// Without what may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AutoscalerSettings")
            .field("plugin", &self.plugin)
            .field("capacity_per_instance", &self.capacity_per_instance)
            .field("max_use_count", &self.max_use_count)
            .field("max_instances", &self.max_instances)
            .field("policies", &self.policies)
            .finish_non_exhaustive()
    }
}

impl AutoscalerSettings {
    /// The scaler's own form. `name` is the group's, `seed` where jitter comes from.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub(super) fn scaling(&self, name: &str, seed: u64) -> Result<Config, SettingsError> {
        let throttle = Throttle { limit: self.throttle_limit, burst: self.throttle_burst };
        let group = GroupConfig { throttle, ..GroupConfig::new(name, self.max_instances) };
        Ok(Config {
            capacity: NonZeroU32::new(self.capacity_per_instance).unwrap_or(NonZeroU32::MIN),
            uses_max: NonZeroU32::new(self.max_use_count),
            policies: self.policies()?,
            failure_threshold: self.failure_threshold,
            update_interval: self.update_interval,
            update_interval_when_expecting: self.update_interval_when_expecting,
            deletion_retry_interval: self.deletion_retry_interval,
            reservation_throttling: self.reservation_throttling,
            density: self.density.density(),
            delete_on_shutdown: self.delete_instances_on_shutdown,
            jitter_seed: seed,
            ..Config::new(group)
        })
    }

    /// The policies.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub(super) fn policies(&self) -> Result<Policies, SettingsError> {
        let list = self.policies.iter().enumerate().map(|(index, policy)| policy.read(index + 1));
        Ok(Policies::new(list.collect::<Result<_, _>>()?))
    }

    /// What a plugin is told of connecting.
    ///
    /// # Errors
    /// [`SettingsError::Key`].
    pub(super) fn connector(&self) -> Result<ConnectorConfig, SettingsError> {
        let set = &self.connector;
        let key = match &set.key_path {
            None => Vec::new(),
            Some(path) => std::fs::read(path).map_err(|source| SettingsError::Key { path: path.clone(), source })?,
        };
        let default = ConnectorConfig::default();
        Ok(ConnectorConfig {
            os: set.os.clone(),
            arch: set.arch.clone(),
            protocol: set.protocol.clone(),
            protocol_port: set.protocol_port,
            username: set.username.clone(),
            password: set.password.clone(),
            key,
            use_static_credentials: set.use_static_credentials,
            keepalive: set.keepalive.unwrap_or(default.keepalive),
            timeout: set.timeout.unwrap_or(default.timeout),
        })
    }

    /// What the trace tells.
    pub(super) fn told(&self) -> Told {
        Told { internal: self.log_internal_ip, external: self.log_external_ip }
    }
}

impl PolicySettings {
    fn read(&self, number: usize) -> Result<Policy, SettingsError> {
        let always = ["* * * * *".to_owned()];
        let periods = if self.periods.is_empty() { &always[..] } else { &self.periods };
        let periods = periods.iter().map(|period| {
            period.parse().map_err(|error: muster_taskscaler::cron::CronError| SettingsError::Period {
                number,
                period: period.clone(),
                message: error.to_string(),
            })
        });
        // Go's words for this machine's zone.
        let zone = match self.timezone.as_str() {
            "" | "Local" => TimeZone::system(),
            name => TimeZone::get(name).map_err(|error| SettingsError::Zone {
                number,
                zone: name.to_owned(),
                message: error.to_string(),
            })?,
        };
        let wanted = Wanted {
            idle_count: self.idle_count,
            idle_time: self.idle_time,
            scale_factor: self.scale_factor,
            scale_factor_limit: self.scale_factor_limit,
            preemptive: self.preemptive_mode.unwrap_or(self.idle_count > 0),
            placement: Placement::Pack,
        };
        Ok(Policy { periods: periods.collect::<Result<_, _>>()?, zone, wanted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_cannot_be_read_is_named() {
        let with =
            |policy| AutoscalerSettings { policies: vec![PolicySettings::default(), policy], ..Default::default() };
        let period = PolicySettings { periods: vec!["* 25 * * *".to_owned()], ..PolicySettings::default() };
        let error = with(period).policies().unwrap_err().to_string();
        assert!(error.starts_with("policy 2: period \"* 25 * * *\": "), "{error}");
        let zone = PolicySettings { timezone: "Moon/Base".to_owned(), ..PolicySettings::default() };
        let error = with(zone).policies().unwrap_err().to_string();
        assert!(error.starts_with("policy 2: there is no time zone \"Moon/Base\""), "{error}");
    }

    #[test]
    fn jobs_are_asked_for_ahead_only_where_something_is_kept_idle() {
        let preemptive = |idle_count, preemptive_mode| {
            let policy = PolicySettings { idle_count, preemptive_mode, ..PolicySettings::default() };
            let settings = AutoscalerSettings { policies: vec![policy], ..AutoscalerSettings::default() };
            settings.policies().unwrap().at(0).1.preemptive
        };
        assert!(preemptive(1, None) && !preemptive(0, None) && !preemptive(1, Some(false)));
    }

    #[test]
    fn secrets_are_not_in_what_is_printed() {
        let connector = ConnectorSettings { password: "hunter2".to_owned(), ..ConnectorSettings::default() };
        let plugin_config = serde_json::json!({ "key": "hunter2" });
        let settings = AutoscalerSettings { connector, plugin_config, ..AutoscalerSettings::default() };
        assert!(!format!("{settings:?}").contains("hunter2"));
    }
}
