//! `list`: what is installed, or what a registry has.

use muster_fleeting::install::{DEFAULTS, Store, available};
use muster_oci::{DockerConfig, Reference};

use super::error::PluginError;
use crate::ci::ui;

/// Arguments of `list`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this plugin.
    #[arg(value_name = "PLUGIN")]
    plugin: Option<String>,
    /// The versions that the plugin's registry has, instead of those that are installed.
    #[arg(long, requires = "plugin")]
    remote: bool,
}

/// Runs the command: one line for each version.
pub(super) async fn run(args: &Args) -> Result<bool, PluginError> {
    let reference = args.plugin.as_deref().map(|plugin| Reference::parse(plugin, &DEFAULTS)).transpose()?;
    // All versions are shown, unless some were asked for.
    let any =
        args.plugin.as_deref().is_none_or(|plugin| plugin.rsplit('/').next().is_none_or(|name| !name.contains(':')));
    if let Some(reference) = reference.as_ref().filter(|_| args.remote) {
        let docker = DockerConfig::from_environment().ok();
        for version in available(reference, docker.as_ref()).await? {
            ui::outln(&format!("{} {version}", reference.repository));
        }
        return Ok(true);
    }
    for installed in Store::from_environment()?.list() {
        let fits = reference.as_ref().is_none_or(|reference| {
            reference.repository == installed.repository && (any || reference.constraint.matches(&installed.version))
        });
        if fits {
            ui::outln(&format!("{} {} {}", installed.repository, installed.version, installed.executable.display()));
        }
    }
    Ok(true)
}
