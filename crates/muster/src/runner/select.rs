//! Flags that select runners of the file, for `verify`, `unregister` and `reset-token`.

use crate::config_file::ConfigArg;

/// Flags for the file, and for the name and URL of a runner.
#[derive(Debug, clap::Args)]
pub(super) struct SelectArgs {
    #[command(flatten)]
    pub(super) config: ConfigArg,
    /// Runner with this name.
    #[arg(short, long)]
    name: Option<String>,
    /// Runner with this URL. Requires another flag that selects a runner.
    #[arg(short, long)]
    url: Option<String>,
}

impl SelectArgs {
    pub(super) fn name(&self) -> Option<&str> {
        non_empty(&self.name)
    }

    pub(super) fn url(&self) -> Option<&str> {
        non_empty(&self.url)
    }
}

pub(super) fn non_empty(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

pub(super) fn same_url(one: &str, other: &str) -> bool {
    one.trim_end_matches('/') == other.trim_end_matches('/')
}
