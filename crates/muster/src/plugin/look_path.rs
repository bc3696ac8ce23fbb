//! `look-path`: the executable that a name stands for.

use muster_fleeting::install::resolve;

use super::error::PluginError;
use super::serve::surroundings;
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
    let found = resolve(&args.plugin, &surroundings())?;
    let words = [found.executable().display().to_string()].into_iter().chain(found.arguments());
    ui::outln(&words.collect::<Vec<_>>().join(" "));
    Ok(true)
}
