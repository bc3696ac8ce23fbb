//! `[runners.autoscaler]`: what instances are made by, how they are reached, and what the scaler acts on.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use muster_taskscaler::config::{Config, GroupConfig};
use muster_taskscaler::driver::Buckets;

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
    /// The keys that the scaler acts on.
    pub scaling: Scaling,
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

/// `[runners.autoscaler.vm_isolation]`, where it is enabled. The image is each job's to say.
#[derive(Clone, Default, PartialEq)]
pub struct IsolationSettings {
    /// Where the daemon listens, as an instance sees it.
    pub nesting_host: String,
    /// What the daemon is initialised with, as JSON; `null` where there is nothing.
    pub nesting_config: serde_json::Value,
    /// How a machine is reached from its instance.
    pub connector: ConnectorSettings,
}

/// `[runners.autoscaler.sticky_context]`, where it is enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the field names are those of config.toml")]
pub struct StickySettings {
    pub max_size_bytes: u64,
    pub max_age: Duration,
}

impl Default for StickySettings {
    fn default() -> Self {
        Self { max_size_bytes: 10 << 30, max_age: Duration::from_secs(7 * 24 * 3600) }
    }
}

/// What the scaler is configured with.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaling {
    /// Its configuration; a value that it cannot act on is as if it were not set. A group that is not listed has no name.
    pub config: Config,
    /// Upper bounds of its histograms.
    pub buckets: Buckets,
    /// Values that it cannot act on, each with its key below `[runners.autoscaler]`. With one of them it does not start.
    pub problems: Vec<String>,
}

impl Default for Scaling {
    fn default() -> Self {
        let config = Config::new(GroupConfig::new("", 0));
        Self { config, buckets: Buckets::default(), problems: Vec::new() }
    }
}

impl Scaling {
    /// The configuration; `name` is that of the group if none is listed.
    ///
    /// # Errors
    /// [`Self::problems`], if there are any.
    pub fn named(&self, name: &str) -> Result<Config, &[String]> {
        if !self.problems.is_empty() {
            return Err(&self.problems);
        }
        let mut config = self.config.clone();
        for group in config.groups.iter_mut().filter(|group| !group.is_named) {
            name.clone_into(&mut group.name);
        }
        Ok(config)
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
            scaling: Scaling::default(),
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_in_what_is_printed() {
        let connector = ConnectorSettings { password: "hunter2".to_owned(), ..ConnectorSettings::default() };
        let plugin_config = serde_json::json!({ "key": "hunter2" });
        // Commands hold tokens.
        let instance_ready_command = Some("login hunter2".to_owned());
        let settings =
            AutoscalerSettings { connector, plugin_config, instance_ready_command, ..AutoscalerSettings::default() };
        assert!(!format!("{settings:?}").contains("hunter2"));
    }
}
