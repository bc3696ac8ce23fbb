//! `install`: brings plugins from their registries.

use muster_fleeting::install::{DEFAULTS, InstallOptions, InstallOutcome, InstallResult, Store};
use muster_oci::{DockerConfig, Reference};

use super::error::PluginError;
use super::runners;
use crate::ci::ui;

/// Arguments of `install`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Plugins: NAME, GROUP/NAME or REGISTRY/GROUP/NAME, with :VERSION where needed (1, 1.2, 1.2.3, ^1.2). Without any,
    /// those that the runners of the configuration name.
    #[arg(value_name = "PLUGIN", conflicts_with = "config")]
    plugins: Vec<String>,
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    config: crate::config_file::ConfigArg,
}

/// How to install.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct How {
    /// Ask the registry for the newest version that fits, even where one that fits is installed.
    #[arg(long)]
    upgrade: bool,
    /// Take other content under a version that was installed before with another digest.
    #[arg(long)]
    accept_changed: bool,
}

impl How {
    pub(super) fn upgrades(self) -> bool {
        self.upgrade || self.accept_changed
    }
}

/// Runs the command.
pub(super) async fn run(args: &Args) -> Result<bool, PluginError> {
    if args.plugins.is_empty() {
        let path = args.config.path();
        if !path.exists() {
            let why = "it does not exist; name plugins, or a configuration with --config";
            return Err(PluginError::Config(format!("{}: {why}", path.display())));
        }
        return runners::install_all(&args.config, args.how).await;
    }
    let store = Store::from_environment()?;
    let mut all = true;
    for plugin in &args.plugins {
        match one(&store, plugin, args.how).await {
            Ok(done) => ui::outln(&told(plugin, &done)),
            Err(error) => {
                ui::report(&error);
                all = false;
            }
        }
    }
    Ok(all)
}

/// Installs one plugin.
pub(super) async fn one(store: &Store, plugin: &str, how: How) -> Result<InstallResult, PluginError> {
    let reference = Reference::parse(plugin, &DEFAULTS)?;
    // Without a home directory there is nobody to log in.
    let docker = DockerConfig::from_environment().ok();
    let options = InstallOptions { upgrade: how.upgrade, accept_new_digest: how.accept_changed };
    Ok(store.install(&reference, options, docker.as_ref()).await?)
}

fn told(plugin: &str, done: &InstallResult) -> String {
    let what = match done.outcome {
        InstallOutcome::Present => "is installed already",
        InstallOutcome::Unchanged => "is the newest that fits",
        InstallOutcome::Installed => "is installed",
        InstallOutcome::Repaired => "was changed, and is installed anew",
    };
    let installed = &done.installed;
    format!("{plugin}: version {} {what}: {}", installed.version, installed.executable.display())
}
