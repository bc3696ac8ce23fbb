//! Inputs of the step that updates a machine's mirror of a repository.

use serde::{Deserialize, Serialize};

use super::{Inputs, Tls};

/// Gets the commit of a job into the machine's mirror of its repository, and creates a view for the job: hard links to
/// packs, and the refs that the job may fetch.
///
/// Runs on the machine, even for a job in containers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GitMirror {
    /// Directory of all mirrors on the machine.
    pub root: String,
    /// Directory name of the repository's mirror in `root`.
    pub name: String,
    /// Directory name of the job's view of the mirror.
    pub view: String,
    /// URL of the repository, with credentials.
    pub repo_url: String,
    /// Commit that the job checks out.
    pub sha: String,
    /// Refspecs that the job fetches.
    pub refspecs: Vec<String>,
    /// Whether the job also fetches tags.
    pub tags: bool,
    /// Whether a credential helper provides the job's token, so that no URL contains the token.
    pub credential_helper: bool,
    /// Certificates for the connection to the server.
    pub tls: Tls,
    /// Time without use after which a mirror is deleted, in seconds. 0 means never.
    pub max_age_s: u64,
}

impl GitMirror {
    /// Returns the directory with the job's view. This is the value of [`super::Checkout::mirror`] for a job that runs
    /// without containers.
    #[must_use]
    pub fn view_dir(&self) -> String {
        format!("{}/{}/views/{}/repository", self.root.trim_end_matches('/'), self.name, self.view)
    }
}

impl Inputs for GitMirror {
    const BUILTIN: &'static str = "git_mirror";
}
