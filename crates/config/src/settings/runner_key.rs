//! Identities of runners.

use std::fmt;

use muster_job::{Secret, without_user_info};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use url::Url;

/// Number of hexadecimal digits of a token's hash in a key.
const TOKEN_DIGITS: usize = 12;

/// Identity of a `[[runners]]` entry. It survives a restart, a change of the order and, if the entry has an `id`, a new token.
///
/// Job counters, request lanes and jobs in `state.log` refer to it.
///
/// The key consists of the URL without user and password, and the coordinator's runner ID or a hash of the token.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunnerKey(pub(super) String);

impl RunnerKey {
    /// Returns the key of an entry. `id` is 0 if the entry has none.
    #[must_use]
    pub fn new(url: &Url, id: i64, token: &Secret) -> Self {
        let url = without_user_info(url.as_str().trim_end_matches('/'));
        if id > 0 {
            return Self(format!("{url}#{id}"));
        }
        let digest = format!("{:x}", Sha256::digest(token.expose()));
        Self(format!("{url}#token-{}", digest.get(..TOKEN_DIGITS).unwrap_or(&digest)))
    }

    /// Returns the key as it is stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunnerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
