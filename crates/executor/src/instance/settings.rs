//! Converts a runner's settings to settings of the scaler and of the plugin protocol.

use std::path::PathBuf;
use std::time::Duration;

use muster_config::settings::{AutoscalerSettings, ConnectorSettings};
use muster_fleeting::connector::DialOptions;
use muster_fleeting::model::ConnectorConfig;
use muster_taskscaler::config::Config;
use muster_taskscaler::driver::Buckets;

use super::connect::TraceAddresses;

/// Reason why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The scaler cannot use these settings, for the listed reasons.
    #[error("[runners.autoscaler]: {}", .0.join("; "))]
    Scaling(Vec<String>),
    /// `nesting_host` is missing.
    #[error(
        "[runners.autoscaler.vm_isolation]: nesting_host is missing; set the address of the nesting daemon on an instance, \
         for example unix:///run/nesting.sock"
    )]
    NoNestingHost,
    /// The private key cannot be read.
    #[error("{table}: failed to read key_path {}", path.display())]
    Key {
        /// Configuration table that names the key.
        table: &'static str,
        /// Path of the key.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}

/// Returns the configuration of the scaler and the bounds of its histograms.
///
/// `name` names the group if the settings list no groups, and `seed` initializes the jitter.
///
/// # Errors
/// [`SettingsError::Scaling`] if the scaler cannot use the settings.
pub(super) fn scaler_config(
    settings: &AutoscalerSettings,
    name: &str,
    seed: u64,
) -> Result<(Config, Buckets), SettingsError> {
    let scaling = &settings.scaling;
    let config = scaling.named(name).map_err(|problems| SettingsError::Scaling(problems.to_vec()))?;
    let config = Config { jitter_seed: seed, jobs_are_isolated: settings.isolation.is_some(), ..config };
    Ok((config, scaling.buckets.clone()))
}

/// # Errors
/// [`SettingsError`] if the settings of `vm_isolation` are not valid.
pub(super) fn validate_isolation(settings: &AutoscalerSettings) -> Result<(), SettingsError> {
    match &settings.isolation {
        Some(isolation) if isolation.nesting_host.trim().is_empty() => Err(SettingsError::NoNestingHost),
        Some(isolation) => vm_connector(&isolation.connector).map(drop),
        None => Ok(()),
    }
}

pub(super) fn shutdown_timeout(settings: &AutoscalerSettings) -> Duration {
    let config = &settings.scaling.config;
    config.shutdown_deletion_interval.saturating_mul(config.shutdown_deletion_retries)
}

pub(super) fn trace_addresses(settings: &AutoscalerSettings) -> TraceAddresses {
    TraceAddresses { internal: settings.log_internal_ip, external: settings.log_external_ip }
}

/// These options are not sent to plugins.
pub(super) fn dial_options(settings: &ConnectorSettings) -> DialOptions {
    DialOptions { use_external_addr: settings.use_external_addr, allow_unencrypted: settings.allow_unencrypted }
}

/// # Errors
/// [`SettingsError::Key`] if the private key cannot be read.
pub(super) fn vm_connector(settings: &ConnectorSettings) -> Result<ConnectorConfig, SettingsError> {
    connector(settings, "vm_isolation.connector_config")
}

/// # Errors
/// [`SettingsError::Key`] if the private key cannot be read.
pub(super) fn plugin_connector(settings: &ConnectorSettings) -> Result<ConnectorConfig, SettingsError> {
    connector(settings, "connector_config")
}

fn connector(settings: &ConnectorSettings, table: &'static str) -> Result<ConnectorConfig, SettingsError> {
    let key = match &settings.key_path {
        None => Vec::new(),
        Some(path) => std::fs::read(path).map_err(|source| SettingsError::Key { table, path: path.clone(), source })?,
    };
    let default = ConnectorConfig::default();
    Ok(ConnectorConfig {
        os: settings.os.clone(),
        arch: settings.arch.clone(),
        protocol: settings.protocol.clone(),
        protocol_port: settings.protocol_port,
        username: settings.username.clone(),
        password: settings.password.clone(),
        key,
        use_static_credentials: settings.use_static_credentials,
        keepalive: settings.keepalive.unwrap_or(default.keepalive),
        timeout: settings.timeout.unwrap_or(default.timeout),
    })
}

#[cfg(test)]
mod tests {
    use muster_config::settings::{IsolationSettings, Scaling};

    use super::*;

    #[test]
    fn vm_isolation_needs_a_nesting_host_and_a_configured_key_must_be_readable() {
        let with_isolation =
            |isolation| AutoscalerSettings { isolation: Some(isolation), ..AutoscalerSettings::default() };
        let error = validate_isolation(&with_isolation(IsolationSettings::default())).unwrap_err().to_string();
        assert!(error.contains("nesting_host is missing") && error.contains("unix:///run/nesting.sock"), "{error}");
        let connector = ConnectorSettings { key_path: Some("/nonexistent/key".into()), ..ConnectorSettings::default() };
        let host = "unix:///run/nesting.sock".to_owned();
        let mut isolation = IsolationSettings { nesting_host: host, connector, ..IsolationSettings::default() };
        let error = validate_isolation(&with_isolation(isolation.clone())).unwrap_err().to_string();
        assert!(
            error.starts_with("vm_isolation.connector_config: failed to read key_path /nonexistent/key"),
            "{error}"
        );
        isolation.connector = ConnectorSettings::default();
        validate_isolation(&with_isolation(isolation)).unwrap();
    }

    #[test]
    fn all_problems_of_scaling_settings_are_reported() {
        let problems = vec!["policy[2].periods: one".to_owned(), "policy[2].timezone: two".to_owned()];
        let scaling = Scaling { problems, ..Scaling::default() };
        let settings = AutoscalerSettings { scaling, ..AutoscalerSettings::default() };
        let error = scaler_config(&settings, "main", 0).unwrap_err().to_string();
        assert_eq!(error, "[runners.autoscaler]: policy[2].periods: one; policy[2].timezone: two");
    }
}
