//! What a job is called at agents and in `state.db`.

use std::fmt;

use muster_job::{Attempt, JobId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use url::Url;

/// Hexadecimal digits of the coordinator's hash.
const COORDINATOR_DIGITS: usize = 8;

/// The name of one job over all coordinators: its number, and a short hash of the coordinator's URL. Two coordinators
/// count their jobs on their own, and all jobs of a machine are in one spool.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunName(String);

impl RunName {
    /// The name of job `id` of the coordinator at `url`.
    #[must_use]
    pub fn new(id: JobId, url: &Url) -> Self {
        let digest = format!("{:x}", Sha256::digest(url.as_str().trim_end_matches('/')));
        Self(format!("{id}-{}", digest.get(..COORDINATOR_DIGITS).unwrap_or(&digest)))
    }

    /// A name as it is stored.
    pub(super) fn stored(name: String) -> Self {
        Self(name)
    }

    /// The name as it is stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id of one attempt's run at an agent.
    #[must_use]
    pub fn attempt(&self, attempt: Attempt) -> String {
        format!("{}-{attempt}", self.0)
    }
}

impl fmt::Display for RunName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
