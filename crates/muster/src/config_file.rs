//! Loads `config.toml` for commands, and creates clients from its entries.

use std::path::PathBuf;

use muster_config::{self as config, Config, HostFacts, Runner, SettingsContext, Severity, system_id};
use muster_runner_api::client::{Client, ClientError, TlsFiles};
use muster_runner_api::wire::{TokenRequest, VersionInfo};
use url::Url;

use crate::{flags, paths};

/// Flag that selects the configuration file.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ConfigArg {
    /// Configuration file. [default: /etc/gitlab-runner/config.toml for root, else ~/.gitlab-runner/config.toml]
    #[arg(short, long, value_name = "FILE", env = "CONFIG_FILE", hide_env_values = true, value_parser = flags::path())]
    config: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
#[error("invalid configuration {}:\n{problems}", path.display())]
pub(crate) struct ConfigError {
    path: PathBuf,
    problems: String,
}

impl ConfigArg {
    /// Returns the path of the configuration file. An empty `--config` counts as not set.
    pub(crate) fn path(&self) -> PathBuf {
        flags::non_empty(&self.config).unwrap_or_else(paths::default_config_file)
    }

    /// If the file is missing, logs a warning and returns an empty configuration.
    pub(crate) fn load(&self) -> Result<Config, ConfigError> {
        let path = self.path();
        if !path.exists() {
            tracing::warn!(path = %path.display(), "the configuration file does not exist; no runner is configured");
        }
        self.load_or_new()
    }

    /// Like [`Self::load`], but a missing file causes no warning.
    pub(crate) fn load_or_new(&self) -> Result<Config, ConfigError> {
        let path = self.path();
        let loaded = config::load(&path, &HostFacts::of(&path));
        match loaded.config {
            Some(config) => Ok(config),
            None => {
                let fatal = loaded.problems.iter().filter(|problem| problem.severity == Severity::Fatal);
                Err(ConfigError { problems: fatal.map(|problem| problem.render(&path)).collect(), path })
            }
        }
    }

    pub(crate) fn system_id(&self) -> String {
        let path = self.path();
        system_id(path.parent().unwrap_or(std::path::Path::new(".")))
    }
}

/// Creates a client for the server at `url`, with the certificates that a runner's table in the configuration names.
pub(crate) fn client(url: &str, table: &config::tree::Table) -> Result<Client, ClientError> {
    let url = Url::parse(url).map_err(|error| ClientError::Setup(format!("`{url}`: {error}")))?;
    let file = |key: &str| table.str(key).map(PathBuf::from);
    let tls = TlsFiles { ca: file("tls-ca-file"), certificate: file("tls-cert-file"), key: file("tls-key-file") };
    let tls = tls.or_from(&paths::certificates(), url.host_str().unwrap_or_default());
    Client::with_tls(&url, &tls)
}

pub(crate) fn client_of(runner: &Runner) -> Result<Client, ClientError> {
    client(&runner.url, &runner.table)
}

pub(crate) fn token_request(token: &str, system_id: &str, info: VersionInfo) -> TokenRequest {
    TokenRequest { token: token.to_owned(), system_id: system_id.to_owned(), info: Some(info) }
}

pub(crate) fn version_info(config: &Config, runner: &Runner) -> VersionInfo {
    let settings = config::runner_settings(config, runner, &SettingsContext::default());
    settings.map(|settings| muster_manager::info(&settings)).unwrap_or_default()
}

/// Returns whether the runner of this token was created on the server. `register` verifies such a token, but registers
/// no runner with it.
pub(crate) fn is_created_at_server(token: &str) -> bool {
    token.starts_with("glrt-")
}

/// Logs whether this process runs in system mode (as root) or user mode.
pub(crate) fn log_system_or_user_mode() {
    if paths::is_root() {
        tracing::info!("Running in system-mode.");
    } else {
        tracing::warn!("Running in user-mode.");
        tracing::warn!("The user-mode requires you to manually start builds processing: $ gitlab-runner run");
        tracing::warn!("Use sudo for system-mode: $ sudo gitlab-runner...");
    }
}
