//! The ID of a job at agents and in `state.log`.

use std::fmt;

use muster_job::JobId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use url::Url;

const DIGITS: usize = 8;

/// ID of a job, unique among all coordinators: its number, and a short hash of the coordinator's URL.
///
/// Coordinators count their jobs independently, and all jobs of a machine share one spool.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobRunId(String);

impl JobRunId {
    /// Returns the ID of job `id` of the coordinator at `url`.
    #[must_use]
    pub fn new(id: JobId, url: &Url) -> Self {
        Self(format!("{id}-{}", short(url.as_str().trim_end_matches('/'))))
    }

    /// Returns the ID as it is stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the prefix of the job's run IDs at agents. The number of the attempt follows.
    ///
    /// A spool may have jobs with the same number from an earlier coordinator, so `token` makes the ID unique.
    #[must_use]
    pub fn agent_run_prefix(&self, token: &str) -> String {
        format!("{}-{}", self.0, short(token))
    }
}

fn short(text: &str) -> String {
    let digest = format!("{:x}", Sha256::digest(text));
    digest.get(..DIGITS).unwrap_or(&digest).to_owned()
}

impl fmt::Display for JobRunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_id_differs_for_same_job_number_with_other_token() {
        let url = Url::parse("http://127.0.0.1:8873").unwrap();
        let job = JobRunId::new(JobId(100_000), &url);
        let run = |token: &str| job.agent_run_prefix(token);
        assert_ne!(run("of the first run"), run("of the second run"));
        assert_eq!(run("of the first run"), run("of the first run"), "the same token gives the same ID");
        assert!(!run("of the first run").contains("first"));
    }
}
