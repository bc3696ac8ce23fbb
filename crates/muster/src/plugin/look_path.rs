//! `look-path`: the executable that a name stands for.

use muster_fleeting::install::{Surroundings, resolve};

use super::error::PluginError;
use crate::ci::ui;

/// Arguments of `look-path`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// As in `plugin = "..."`: a path, fleeting-plugin-NAME, or a plugin with or without a version.
    #[arg(value_name = "PLUGIN")]
    plugin: String,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<bool, PluginError> {
    let found = resolve(&args.plugin, &Surroundings::of_environment()?)?;
    ui::outln(&found.executable().display().to_string());
    Ok(true)
}
