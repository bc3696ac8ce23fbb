//! `look-path`: prints the command line that starts a plugin.

use muster_fleeting::install::resolve;

use super::error::PluginError;
use super::serve::lookup_context;
use crate::ci::ui;

/// Arguments of `muster plugin look-path`.
#[derive(Debug, clap::Args)]
pub(crate) struct LookPathArgs {
    /// Value of `plugin = "..."`: a path, fleeting-plugin-NAME, or a plugin reference with or without a version.
    #[arg(value_name = "PLUGIN")]
    plugin: String,
}

pub(super) fn run(args: &LookPathArgs) -> Result<bool, PluginError> {
    let found = resolve(&args.plugin, &lookup_context())?;
    let command_line = [found.executable().display().to_string()].into_iter().chain(found.arguments());
    ui::outln(&command_line.collect::<Vec<_>>().join(" "));
    Ok(true)
}
