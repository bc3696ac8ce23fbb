//! `remove`: removes installed plugins.

use muster_fleeting::install::{DEFAULTS, Store};
use muster_oci::Reference;

use super::error::PluginError;
use crate::ci::ui;

/// Arguments of `muster plugin remove`.
#[derive(Debug, clap::Args)]
pub(crate) struct PluginRemoveArgs {
    /// Plugins to remove. With :VERSION, removes only matching versions, else all of them.
    #[arg(value_name = "PLUGIN", required = true)]
    plugins: Vec<String>,
    /// Also forget their digests, so that the same versions can be installed again with different content.
    #[arg(long)]
    forget_digest: bool,
}

/// Returns whether all plugins were removed.
pub(super) async fn run(args: &PluginRemoveArgs) -> Result<bool, PluginError> {
    let store = Store::from_environment()?;
    let mut all_succeeded = true;
    for plugin in &args.plugins {
        let reference = Reference::parse(plugin, &DEFAULTS)?;
        match store.remove(&reference, args.forget_digest).await {
            Ok(removed) => {
                for version in removed {
                    ui::outln(&format!("removed {} {}", version.repository, version.version));
                }
            }
            Err(error) => {
                ui::report(&error);
                all_succeeded = false;
            }
        }
    }
    Ok(all_succeeded)
}
