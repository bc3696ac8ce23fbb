//! Copies of repositories that the jobs of a machine share: `[runners.git_mirror]`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Settings of the mirrors on the machines of a runner's jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GitMirrorSettings {
    /// Whether jobs use mirrors.
    pub enabled: bool,
    /// Directory of the mirrors. `None` means `git-mirrors` beside the builds directory of the machine. A relative path is
    /// resolved in the parent directory of the builds directory.
    pub dir: Option<PathBuf>,
    /// Time without use after which the mirror of a repository is deleted. Zero means never. The default in `config.toml` is 14 days.
    pub max_age: Duration,
}

impl GitMirrorSettings {
    /// Returns whether no setting differs from its default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
