//! `[runners.autoscaler]`: the plugin that creates instances, the connection to them, and the scaling settings.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use muster_taskscaler::config::{Config, GroupConfig};
use muster_taskscaler::driver::Buckets;

/// `[runners.autoscaler]` with defaults.
#[derive(Clone, PartialEq)]
#[expect(missing_docs, reason = "the field names are those of config.toml")]
pub struct AutoscalerSettings {
    pub plugin: String,
    /// Configuration of the plugin as JSON. `null` means none.
    pub plugin_config: serde_json::Value,
    /// Whether the plugin's `prefix` was derived from the runner's token (`[runners.machine]`).
    /// A new token does not change such a prefix, because existing machines have it in their names.
    pub has_token_prefix: bool,
    pub connector: ConnectorSettings,
    /// Instance groups that substitute for each other. If empty, the fields above describe the only group.
    pub groups: Vec<GroupSettings>,
    pub instance_ready_command: Option<String>,
    pub instance_acquire_timeout: Duration,
    pub log_internal_ip: bool,
    pub log_external_ip: bool,
    /// Settings of sticky contexts. `None` disables them.
    pub sticky: Option<StickySettings>,
    /// Settings of virtual machines for jobs. `None` means that jobs run on the instances themselves.
    pub isolation: Option<IsolationSettings>,
    /// Settings of the scaler.
    pub scaling: Scaling,
}

/// `[[runners.autoscaler.groups]]`: the plugin of a group's instances, and the connection to them.
///
/// The number of instances and the order of the groups are in [`Scaling`].
#[derive(Clone, Default, PartialEq)]
#[expect(missing_docs, reason = "the field names are those of config.toml")]
pub struct GroupSettings {
    pub name: String,
    pub plugin: String,
    pub plugin_config: serde_json::Value,
    pub connector: ConnectorSettings,
}

/// `[runners.autoscaler.connector_config]`. An empty string, 0 or `None` means the value of the plugin, or else the default.
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

/// `[runners.autoscaler.vm_isolation]`, if it is enabled.
#[derive(Clone, Default, PartialEq)]
pub struct IsolationSettings {
    /// Address of the nesting daemon as seen from the instance.
    pub nesting_host: String,
    /// Configuration of the nesting daemon as JSON. `null` means none.
    pub nesting_config: serde_json::Value,
    /// How a virtual machine is reached from its instance.
    pub connector: ConnectorSettings,
}

/// `[runners.autoscaler.sticky_context]`, if it is enabled.
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

/// Configuration of the scaler.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaling {
    /// Configuration. An invalid value is treated as not set. If `[[runners.autoscaler.groups]]` is empty, the only group has no name yet.
    pub config: Config,
    /// Upper bounds of the scaler's histograms.
    pub buckets: Buckets,
    /// Invalid values, each with its key below `[runners.autoscaler]`. If there are any, the scaler does not start.
    pub problems: Vec<String>,
}

impl Default for Scaling {
    fn default() -> Self {
        let config = Config::new(GroupConfig::new("", 0));
        Self { config, buckets: Buckets::default(), problems: Vec::new() }
    }
}

impl Scaling {
    /// Returns the configuration. `name` is the name of the group if none is listed.
    ///
    /// # Errors
    /// [`Self::problems`] if there are any.
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
    /// Prints the settings without values that may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AutoscalerSettings").field("plugin", &self.plugin).finish_non_exhaustive()
    }
}

impl AutoscalerSettings {
    /// Returns the groups in the scaler's order: the listed ones, or one group with this name.
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
    fn debug_output_has_no_secrets() {
        let connector = ConnectorSettings { password: "hunter2".to_owned(), ..ConnectorSettings::default() };
        let plugin_config = serde_json::json!({ "key": "hunter2" });
        // Commands may contain tokens.
        let instance_ready_command = Some("login hunter2".to_owned());
        let settings =
            AutoscalerSettings { plugin_config, connector, instance_ready_command, ..AutoscalerSettings::default() };
        assert!(!format!("{settings:?}").contains("hunter2"));
    }
}
