//! `remove`: removes installed plugins.

use muster_fleeting::install::{DEFAULTS, Store};
use muster_oci::Reference;

use super::error::PluginError;
use crate::ci::ui;

/// Arguments of `remove`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Plugins; with :VERSION only those versions, else all of them.
    #[arg(value_name = "PLUGIN", required = true)]
    plugins: Vec<String>,
    /// Forget their digests too: the same versions may be other content when they are installed again.
    #[arg(long)]
    forget: bool,
}

/// Runs the command.
pub(super) async fn run(args: &Args) -> Result<bool, PluginError> {
    let store = Store::from_environment()?;
    let mut all = true;
    for plugin in &args.plugins {
        let reference = Reference::parse(plugin, &DEFAULTS)?;
        match store.remove(&reference, args.forget).await {
            Ok(removed) => {
                for one in removed {
                    ui::outln(&format!("removed {} {}", one.repository, one.version));
                }
            }
            Err(error) => {
                ui::report(&error);
                all = false;
            }
        }
    }
    Ok(all)
}
