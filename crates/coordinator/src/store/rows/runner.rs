//! Rows of runners and their managers.

use muster_job::RunnerId;
use muster_runner_api::wire::VersionInfo;

use crate::clock::Timestamp;
use crate::facts::RunnerSpec;

/// A runner. Any number of managers share its authentication token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RunnerRow {
    pub(crate) id: RunnerId,
    pub(crate) token_hash: String,
    /// Time from which the token is rejected. `None` means never.
    pub(crate) token_expires_at: Option<Timestamp>,
    pub(crate) created_at: Timestamp,
    pub(crate) settings: RunnerSpec,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ManagerRow {
    pub(crate) runner: RunnerId,
    pub(crate) system_id: String,
    pub(crate) contacted_at: Timestamp,
    pub(crate) info: VersionInfo,
}
