//! `install`: installs plugins from their registries.

use muster_fleeting::install::{DEFAULTS, InstallOptions, InstallOutcome, InstallResult, Store};
use muster_oci::{DockerConfig, Reference};

use super::error::PluginError;
use super::runners;
use crate::ci::ui;

/// Arguments of `muster plugin install`.
#[derive(Debug, clap::Args)]
pub(crate) struct PluginInstallArgs {
    /// Plugins to install: NAME, GROUP/NAME or REGISTRY/GROUP/NAME, optionally with :VERSION (1, 1.2, 1.2.3 or ^1.2). By default, installs
    /// the plugins that the configuration uses.
    #[arg(value_name = "PLUGIN", conflicts_with = "config")]
    plugins: Vec<String>,
    #[command(flatten)]
    flags: InstallFlags,
    #[command(flatten)]
    config: crate::config_file::ConfigArg,
}

/// Flags that control an installation.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct InstallFlags {
    /// Install the newest matching version, even if another matching version is installed.
    #[arg(long)]
    upgrade: bool,
    /// Accept a plugin whose content has changed since the same version was first installed.
    #[arg(long)]
    accept_new_digest: bool,
}

impl InstallFlags {
    /// Returns whether to query the registry even if a matching version is installed.
    pub(super) fn must_query_registry(self) -> bool {
        self.upgrade || self.accept_new_digest
    }
}

/// Returns whether all plugins were installed.
pub(super) async fn run(args: &PluginInstallArgs) -> Result<bool, PluginError> {
    if args.plugins.is_empty() {
        let path = args.config.path();
        if !path.exists() {
            return Err(PluginError::Config(format!(
                "{} does not exist; name the plugins to install, or set --config",
                path.display()
            )));
        }
        return runners::install_all(&args.config, args.flags).await;
    }
    let store = Store::from_environment()?;
    let mut all_succeeded = true;
    for plugin in &args.plugins {
        match install_one(&store, plugin, args.flags).await {
            Ok(result) => ui::outln(&outcome_text(plugin, &result)),
            Err(error) => {
                ui::report(&error);
                all_succeeded = false;
            }
        }
    }
    Ok(all_succeeded)
}

pub(super) async fn install_one(
    store: &Store,
    plugin: &str,
    flags: InstallFlags,
) -> Result<InstallResult, PluginError> {
    let reference = Reference::parse(plugin, &DEFAULTS)?;
    // Without a home directory, no credentials are stored.
    let docker = DockerConfig::from_environment().ok();
    let options = InstallOptions { upgrade: flags.upgrade, accept_new_digest: flags.accept_new_digest };
    Ok(store.install(&reference, options, docker.as_ref()).await?)
}

fn outcome_text(plugin: &str, result: &InstallResult) -> String {
    let outcome = match result.outcome {
        InstallOutcome::Present => "is already installed",
        InstallOutcome::Unchanged => "is the newest matching version",
        InstallOutcome::Installed => "is installed",
        InstallOutcome::Repaired => "was modified locally and has been repaired",
    };
    let installed = &result.installed;
    format!("{plugin}: version {} {outcome}: {}", installed.version, installed.executable.display())
}
