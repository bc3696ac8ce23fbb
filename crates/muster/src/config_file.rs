//! The configuration file, as the commands use it.

use std::path::PathBuf;

use muster_config::{self as config, Config, HostFacts, Runner, SettingsContext, Severity, system_id};
use muster_runner_api::client::{Client, ClientError, TlsFiles};
use muster_runner_api::wire::{TokenRequest, VersionInfo};
use url::Url;

use crate::{flags, paths};

/// Which file.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ConfigArg {
    /// Configuration file. [default: /etc/gitlab-runner/config.toml for root, else ~/.gitlab-runner/config.toml]
    #[arg(short, long, value_name = "FILE", env = "CONFIG_FILE", hide_env_values = true, value_parser = flags::path())]
    config: Option<PathBuf>,
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be used:\n{problems}", path.display())]
pub(crate) struct ConfigError {
    path: PathBuf,
    problems: String,
}

impl ConfigArg {
    /// The file; an empty name is none.
    pub(crate) fn path(&self) -> PathBuf {
        flags::filled(&self.config).unwrap_or_else(paths::default_config_file)
    }

    /// Reads the file; one that is not there is an empty configuration, and told of.
    pub(crate) fn load(&self) -> Result<Config, ConfigError> {
        let path = self.path();
        if !path.exists() {
            tracing::warn!(path = %path.display(), "the configuration file does not exist; no runner is configured");
        }
        self.load_or_new()
    }

    /// The same for a command that makes the file where there is none.
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

    /// This manager's system id.
    pub(crate) fn system_id(&self) -> String {
        let path = self.path();
        system_id(path.parent().unwrap_or(std::path::Path::new(".")))
    }
}

/// A coordinator, spoken to with one runner's certificates.
pub(crate) fn client(url: &str, table: &config::tree::Table) -> Result<Client, ClientError> {
    let url = Url::parse(url).map_err(|error| ClientError::Setup(format!("`{url}`: {error}")))?;
    let file = |key: &str| table.str(key).map(PathBuf::from);
    let tls = TlsFiles { ca: file("tls-ca-file"), certificate: file("tls-cert-file"), key: file("tls-key-file") };
    let tls = tls.or_from(&paths::certificates(), url.host_str().unwrap_or_default());
    Client::with_tls(&url, &tls)
}

/// The client of an entry of the file.
pub(crate) fn client_of(runner: &Runner) -> Result<Client, ClientError> {
    client(&runner.url, &runner.table)
}

/// What a call about a runner says of its sender.
pub(crate) fn token_request(token: &str, system_id: &str, info: VersionInfo) -> TokenRequest {
    TokenRequest { token: token.to_owned(), system_id: system_id.to_owned(), info: Some(info) }
}

/// Who speaks, and what it can do: the same that it says with each job request (runner-api 1.4, 2.2).
pub(crate) fn info(config: &Config, runner: &Runner) -> VersionInfo {
    let settings = config::runner_settings(config, runner, &SettingsContext::default());
    settings.map(|settings| muster_manager::info(&settings)).unwrap_or_default()
}

/// Whether the token is one of a runner that was made at the server: it is verified, never registered.
pub(crate) fn is_made_at_server(token: &str) -> bool {
    token.starts_with("glrt-")
}

/// Tells for which user this runs, since the configuration depends on it.
pub(crate) fn tell_mode() {
    if paths::is_root() {
        tracing::info!("Running in system-mode.");
    } else {
        tracing::warn!("Running in user-mode.");
        tracing::warn!("The user-mode requires you to manually start builds processing: $ gitlab-runner run");
        tracing::warn!("Use sudo for system-mode: $ sudo gitlab-runner...");
    }
}
