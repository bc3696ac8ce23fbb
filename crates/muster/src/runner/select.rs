//! Which runners of the file a command is about: flags that `verify`, `unregister` and `reset-token` share.

use crate::config_file::ConfigArg;

/// The file, and what a runner of it may be known by.
#[derive(Debug, clap::Args)]
pub(super) struct SelectArgs {
    #[command(flatten)]
    pub(super) config: ConfigArg,
    /// The runner of this name.
    #[arg(short, long)]
    name: Option<String>,
    /// The runner with this URL; it is not enough alone.
    #[arg(short, long)]
    url: Option<String>,
}

impl SelectArgs {
    pub(super) fn name(&self) -> Option<&str> {
        filled(&self.name)
    }

    pub(super) fn url(&self) -> Option<&str> {
        filled(&self.url)
    }
}

/// A text that says something.
pub(super) fn filled(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

/// Whether both are the same server, with or without a slash at the end.
pub(super) fn same_url(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}
