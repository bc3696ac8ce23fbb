//! Inputs of the step that updates a machine's mirror of a repository: a copy that all jobs of the machine share.

use serde::{Deserialize, Serialize};

use super::{Inputs, Tls};

/// Brings the commit of a job into the machine's mirror of its repository, and creates a view of the mirror.
///
/// The view is a directory through which this job reads the mirror: hard links to its packs, and the refs that the job may fetch.
///
/// The step runs on the machine itself, also for a job in containers. If the step fails, the checkout fetches from the server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GitMirror {
    /// Directory of all mirrors on the machine.
    pub root: String,
    /// Name of the repository's mirror in `root`. One path segment.
    pub name: String,
    /// Name of the job's view of the mirror. One path segment.
    pub view: String,
    /// URL of the repository, with credentials if it needs them.
    pub repo_url: String,
    /// Commit that the job checks out.
    pub sha: String,
    /// Refspecs that the job fetches.
    pub refspecs: Vec<String>,
    /// Whether the job also fetches tags.
    pub tags: bool,
    /// Whether git gets the job's token from a credential helper, so that no URL contains it.
    pub credential_helper: bool,
    /// Certificates for the connection to the server.
    pub tls: Tls,
    /// Time without use after which the mirror of a repository is deleted, in seconds. 0 means never.
    pub max_age_s: u64,
}

impl GitMirror {
    /// Returns the directory with the job's view of the mirror.
    ///
    /// [`super::Checkout::mirror`] is the path of this directory on the machine, or in the container.
    #[must_use]
    pub fn view_dir(&self) -> String {
        format!("{}/{}/views/{}/repository", self.root.trim_end_matches('/'), self.name, self.view)
    }
}

impl Inputs for GitMirror {
    const BUILTIN: &'static str = "git_mirror";
}
