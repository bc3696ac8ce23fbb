//! What `[runners.autoscaler]` says (fleeting.md 5.1), and what the scaler makes of it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use muster_fleeting::connector::DialOptions;
use muster_fleeting::model::ConnectorConfig;
use muster_taskscaler::config::Config;
use muster_taskscaler::driver::Buckets;
use muster_taskscaler::need::Density;
use muster_taskscaler::settings::Settings;

use super::reach::Told;
use super::share::StickySettings;

/// `[runners.autoscaler]`, with the defaults filled in.
#[derive(Clone, PartialEq)]
#[expect(missing_docs, reason = "the field names are those of config.toml")]
pub struct AutoscalerSettings {
    pub plugin: String,
    /// As JSON; `null` where there is none.
    pub plugin_config: serde_json::Value,
    /// The plugin's `prefix` is made of the runner's token (`[runners.machine]`): the first one stays, since the machines
    /// that exist go by it.
    pub has_token_prefix: bool,
    pub connector: ConnectorSettings,
    /// Those that stand in for each other; none: there is one, of the fields before.
    pub groups: Vec<GroupSettings>,
    pub instance_ready_command: Option<String>,
    pub instance_acquire_timeout: Duration,
    pub log_internal_ip: bool,
    pub log_external_ip: bool,
    /// None: there are no sticky contexts.
    pub sticky: Option<StickySettings>,
    /// None: jobs run on the instances themselves.
    pub isolation: Option<IsolationSettings>,
    /// The keys that the scaler acts on, as an object.
    pub scaling: serde_json::Value,
}

/// `[[runners.autoscaler.groups]]`: where its instances come from, and how they are reached. How many there are, and which
/// group is asked first, is the scaler's.
#[derive(Clone, Default, PartialEq)]
#[expect(missing_docs, reason = "the field names are those of config.toml")]
pub struct GroupSettings {
    pub name: String,
    pub plugin: String,
    pub plugin_config: serde_json::Value,
    pub connector: ConnectorSettings,
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
    pub allow_unencrypted: bool,
}

/// `[runners.autoscaler.vm_isolation]`, where it is enabled. The image is each job's to say ([`crate::Asking::image`]).
#[derive(Clone, Default, PartialEq)]
pub struct IsolationSettings {
    /// Where the daemon listens, as an instance sees it.
    pub nesting_host: String,
    /// What the daemon is initialised with, as JSON; `null` where there is nothing.
    pub nesting_config: serde_json::Value,
    /// How a machine is reached from its instance.
    pub connector: ConnectorSettings,
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// What the scaler cannot act on.
    #[error("[runners.autoscaler]: {}", .0.join("; "))]
    Scaling(Vec<String>),
    /// Nobody knows where the nesting daemon is.
    #[error(
        "[runners.autoscaler.vm_isolation]: nesting_host is missing: where the nesting daemon listens on an instance, as in \
         unix:///run/nesting.sock"
    )]
    NoNestingHost,
    /// The private key cannot be read.
    #[error("{table}: key_path {} cannot be read", path.display())]
    Key {
        /// Which table names it.
        table: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// What the scaler cannot act on of `[runners.autoscaler]`: the keys below it, and what is wrong with each. Parts of lists
/// are counted from 1: `policy[1].idle_count`.
#[must_use]
pub fn scaling_problems(scaling: serde_json::Value) -> Vec<(String, String)> {
    match serde_json::from_value::<Settings>(scaling) {
        Ok(settings) => {
            let problems = settings.config("").err().unwrap_or_default();
            problems.into_iter().map(|problem| (problem.key, problem.message)).collect()
        }
        Err(error) => vec![(String::new(), error.to_string())],
    }
}

impl Default for AutoscalerSettings {
    fn default() -> Self {
        Self {
            plugin: String::new(),
            plugin_config: serde_json::Value::Null,
            has_token_prefix: false,
            connector: ConnectorSettings::default(),
            groups: Vec::new(),
            instance_ready_command: None,
            instance_acquire_timeout: Duration::from_secs(15 * 60),
            log_internal_ip: false,
            log_external_ip: false,
            sticky: None,
            isolation: None,
            scaling: serde_json::json!({}),
        }
    }
}

impl fmt::Debug for AutoscalerSettings {
    /// Without what may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AutoscalerSettings").field("plugin", &self.plugin).finish_non_exhaustive()
    }
}

impl AutoscalerSettings {
    /// The scaler's own form, and the bounds of its histograms. `name` is the group's, `seed` where jitter comes from.
    ///
    /// # Errors
    /// [`SettingsError::Scaling`].
    pub(super) fn scaling(&self, name: &str, seed: u64) -> Result<(Config, Buckets), SettingsError> {
        let settings: Settings = serde_json::from_value(self.scaling.clone())
            .map_err(|error| SettingsError::Scaling(vec![error.to_string()]))?;
        let config = settings
            .config(name)
            .map_err(|problems| SettingsError::Scaling(problems.iter().map(ToString::to_string).collect()))?;
        let config = Config { jitter_seed: seed, jobs_leave_nothing: self.isolation.is_some(), ..config };
        Ok((config, settings.buckets()))
    }

    /// What slots stand for.
    pub(super) fn density(&self) -> Density {
        muster_taskscaler::settings::density(&self.scaling)
    }

    /// Each instance goes with its first job.
    pub(super) fn instances_have_one_job(&self) -> bool {
        self.scaling.get("max_use_count").and_then(serde_json::Value::as_i64) == Some(1)
    }

    /// The groups, in the scaler's order: those that are listed, else one, of this name.
    #[must_use]
    pub fn all_groups(&self, name: &str) -> Vec<GroupSettings> {
        if !self.groups.is_empty() {
            return self.groups.clone();
        }
        let (plugin, plugin_config, connector) =
            (self.plugin.clone(), self.plugin_config.clone(), self.connector.clone());
        vec![GroupSettings { name: name.to_owned(), plugin, plugin_config, connector }]
    }

    /// Looks at what is used only when there are instances.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub(super) fn check(&self) -> Result<(), SettingsError> {
        match &self.isolation {
            Some(isolation) if isolation.nesting_host.trim().is_empty() => Err(SettingsError::NoNestingHost),
            Some(isolation) => isolation.connector().map(drop),
            None => Ok(()),
        }
    }

    /// How long the end waits for removals: so many retries (`shutdown_deletion_retries`), each after its interval.
    pub(super) fn shutdown_limit(&self) -> Option<Duration> {
        let (config, _) = self.scaling("", 0).ok()?;
        Some(config.shutdown_deletion_interval.saturating_mul(config.shutdown_deletion_retries))
    }

    /// What the trace tells.
    pub(super) fn told(&self) -> Told {
        Told { internal: self.log_internal_ip, external: self.log_external_ip }
    }
}

impl IsolationSettings {
    /// How a machine is reached.
    ///
    /// # Errors
    /// [`SettingsError::Key`].
    pub(super) fn connector(&self) -> Result<ConnectorConfig, SettingsError> {
        self.connector.config("vm_isolation.connector_config")
    }
}

impl ConnectorSettings {
    /// Settings that no plugin gets.
    pub(super) fn dial_options(&self) -> DialOptions {
        DialOptions { use_external_addr: self.use_external_addr, allow_unencrypted: self.allow_unencrypted }
    }

    /// What a plugin is told of connecting, or how a machine is reached; `table` is where they stand.
    ///
    /// # Errors
    /// [`SettingsError::Key`].
    pub(super) fn config(&self, table: &'static str) -> Result<ConnectorConfig, SettingsError> {
        let key = match &self.key_path {
            None => Vec::new(),
            Some(path) => {
                std::fs::read(path).map_err(|source| SettingsError::Key { table, path: path.clone(), source })?
            }
        };
        let default = ConnectorConfig::default();
        Ok(ConnectorConfig {
            os: self.os.clone(),
            arch: self.arch.clone(),
            protocol: self.protocol.clone(),
            protocol_port: self.protocol_port,
            username: self.username.clone(),
            password: self.password.clone(),
            key,
            use_static_credentials: self.use_static_credentials,
            keepalive: self.keepalive.unwrap_or(default.keepalive),
            timeout: self.timeout.unwrap_or(default.timeout),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_on_instances_need_a_daemon_and_a_key_that_can_be_read() {
        let with = |isolation| AutoscalerSettings { isolation: Some(isolation), ..AutoscalerSettings::default() };
        let error = with(IsolationSettings::default()).check().unwrap_err().to_string();
        assert!(error.contains("nesting_host is missing") && error.contains("unix:///run/nesting.sock"), "{error}");
        let connector = ConnectorSettings { key_path: Some("/nonexistent/key".into()), ..ConnectorSettings::default() };
        let host = "unix:///run/nesting.sock".to_owned();
        let mut isolation = IsolationSettings { nesting_host: host, connector, ..IsolationSettings::default() };
        let error = with(isolation.clone()).check().unwrap_err().to_string();
        assert!(
            error.starts_with("vm_isolation.connector_config: key_path /nonexistent/key cannot be read"),
            "{error}"
        );
        isolation.connector = ConnectorSettings::default();
        with(isolation).check().unwrap();
    }

    #[test]
    fn what_the_scaler_cannot_act_on_is_told_all_at_once() {
        let with = |scaling| AutoscalerSettings { scaling, ..AutoscalerSettings::default() };
        let policies = serde_json::json!([{}, { "periods": ["* 25 * * *"], "timezone": "Moon/Base" }]);
        let error = with(serde_json::json!({ "policy": policies })).scaling("main", 0).unwrap_err().to_string();
        assert!(error.starts_with("[runners.autoscaler]: policy[2].periods: "), "{error}");
        assert!(error.contains("; policy[2].timezone: `Moon/Base` is no time zone"), "{error}");
        let error = with(serde_json::json!({ "max_instances": "two" })).scaling("main", 0).unwrap_err().to_string();
        assert!(error.contains("expected i64"), "{error}");
    }

    #[test]
    fn secrets_are_not_in_what_is_printed() {
        let connector = ConnectorSettings { password: "hunter2".to_owned(), ..ConnectorSettings::default() };
        let plugin_config = serde_json::json!({ "key": "hunter2" });
        // Commands hold tokens.
        let scaling = serde_json::json!({ "instance_ready_command": "login hunter2" });
        let settings = AutoscalerSettings { connector, plugin_config, scaling, ..AutoscalerSettings::default() };
        assert!(!format!("{settings:?}").contains("hunter2"));
    }
}
