//! `list`: lists the installed plugins, or the versions that a registry has.

use muster_fleeting::install::{DEFAULTS, Store, available};
use muster_oci::{DockerConfig, Reference};

use super::error::PluginError;
use crate::ci::ui;

/// Arguments of `muster plugin list`.
#[derive(Debug, clap::Args)]
pub(crate) struct PluginListArgs {
    /// Plugin to list; all by default.
    #[arg(value_name = "PLUGIN")]
    plugin: Option<String>,
    /// List the versions in the plugin's registry instead of the installed ones.
    #[arg(long, requires = "plugin")]
    remote: bool,
}

pub(super) async fn run(args: &PluginListArgs) -> Result<bool, PluginError> {
    let reference = args.plugin.as_deref().map(|plugin| Reference::parse(plugin, &DEFAULTS)).transpose()?;
    // Without a version in the argument, list all versions.
    let any_version =
        args.plugin.as_deref().is_none_or(|plugin| plugin.rsplit('/').next().is_none_or(|name| !name.contains(':')));
    if let Some(reference) = reference.as_ref().filter(|_| args.remote) {
        let docker = DockerConfig::from_environment().ok();
        for version in available(reference, docker.as_ref()).await? {
            ui::outln(&format!("{} {version}", reference.repository));
        }
        return Ok(true);
    }
    for installed in Store::from_environment()?.list() {
        let is_match = reference.as_ref().is_none_or(|reference| {
            reference.repository == installed.repository
                && (any_version || reference.constraint.matches(&installed.version))
        });
        if is_match {
            ui::outln(&format!("{} {} {}", installed.repository, installed.version, installed.executable.display()));
        }
    }
    Ok(true)
}
