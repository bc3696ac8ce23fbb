//! Tokens of jobs and runners: creation and verification.
//!
//! The token of a job contains the job's ID and the number of the assignment, signed with the coordinator's key. Job tokens are not
//! stored: the same assignment gets the same token again, and the token of an earlier assignment is recognized as such. The token of a
//! runner is random, and only its SHA-256 is stored.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use muster_job::JobId;
use ring::hmac;
use sha2::{Digest, Sha256};

use crate::jwt::Signer;

/// Name of the file in the state directory with the key that signs job tokens.
const FILE: &str = "token.key";
/// Name of the file in the state directory with the key that signs ID tokens.
const SIGNER_FILE: &str = "id-token.key";
/// Length of the key that signs job tokens, in bytes.
const KEY_LEN: usize = 32;
/// Prefix of job tokens, the same as GitLab's: runner managers mask the text after it.
const JOB_PREFIX: &str = "glcbt-";
/// Number of characters in a random token.
const RANDOM_LEN: usize = 24;

/// The key that signs job tokens.
#[derive(Clone)]
pub(crate) struct Keys {
    key: hmac::Key,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys([masked])")
    }
}

impl Keys {
    /// Reads the key of a state directory. Creates the key if necessary, readable by this user only.
    ///
    /// # Errors
    /// Errors of reading and writing the file.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let new = || Ok(rand::random::<[u8; KEY_LEN]>().to_vec());
        let bytes = read_or_create(&dir.join(FILE), new)?;
        Ok(Self { key: hmac::Key::new(hmac::HMAC_SHA256, &bytes) })
    }

    /// Creates a key that is not stored.
    pub(crate) fn random() -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, &rand::random::<[u8; KEY_LEN]>()) }
    }

    /// Returns the token of one assignment of a job.
    pub(crate) fn job_token(&self, job: JobId, assignment: u32) -> String {
        let body = format!("{job}-{assignment}");
        let tag = hmac::sign(&self.key, body.as_bytes());
        format!("{JOB_PREFIX}{body}-{}", hex::encode(tag))
    }

    /// Returns the number of the assignment of `job` for which a token was created. `None` for invalid tokens and tokens of other jobs.
    pub(crate) fn assignment_of(&self, job: JobId, token: &str) -> Option<u32> {
        let (token_job, assignment) = self.read(token)?;
        (token_job == job).then_some(assignment)
    }

    /// Returns the job and the number of the assignment of a valid token.
    pub(crate) fn read(&self, token: &str) -> Option<(JobId, u32)> {
        let (body, tag) = token.strip_prefix(JOB_PREFIX)?.rsplit_once('-')?;
        hmac::verify(&self.key, body.as_bytes(), &hex::decode(tag).ok()?).ok()?;
        let (job, assignment) = body.split_once('-')?;
        Some((job.parse().ok()?, assignment.parse().ok()?))
    }
}

/// Returns the signer of ID tokens of a state directory. Creates its key if necessary, readable by this user only.
///
/// # Errors
/// Errors of reading and writing the file, or of a file that is not a valid key.
pub(crate) fn open_signer(dir: &Path) -> io::Result<Signer> {
    let bytes = read_or_create(&dir.join(SIGNER_FILE), || Signer::new_key().map_err(io::Error::other))?;
    Signer::from_pkcs8(&bytes).map_err(io::Error::other)
}

/// Returns a signer of ID tokens whose key is not stored.
///
/// # Errors
/// Error of the system's random number generator.
pub(crate) fn random_signer() -> io::Result<Signer> {
    Signer::from_pkcs8(&Signer::new_key().map_err(io::Error::other)?).map_err(io::Error::other)
}

/// Returns the content of a key file, which is created if necessary. The creation is atomic.
fn read_or_create(path: &Path, new: impl FnOnce() -> io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        read => return read,
    }
    let bytes = new()?;
    // Temporary files are created with access for this user only.
    let mut part = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(Path::new(".")))?;
    part.write_all(&bytes)?;
    part.persist(path).map_err(|error| error.error)?;
    Ok(bytes)
}

/// Returns a new random token for a runner.
///
/// gitlab-runner interprets `glrt-` as the prefix of runners that were created on the server. A runner that registered itself with a
/// registration token gets a token without this prefix (docs/spec/runner-api.md, section 1.1).
pub(crate) fn runner_token(registered_itself: bool) -> String {
    use rand::Rng;
    let mut random = rand::rng();
    let text: String = (0..RANDOM_LEN).map(|_| char::from(random.sample(rand::distr::Alphanumeric))).collect();
    if registered_itself { format!("t1_{text}") } else { format!("glrt-t1_{text}") }
}

/// Returns the SHA-256 of a runner's token, which is stored instead of the token.
pub(crate) fn hash(token: &str) -> String {
    hex::encode(Sha256::digest(token.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_token_is_valid_for_one_assignment() {
        let dir = tempfile::tempdir().expect("failed to create a directory");
        let keys = Keys::open(dir.path()).expect("failed to create the key");
        let token = keys.job_token(JobId(7), 2);
        assert_eq!(keys.assignment_of(JobId(7), &token), Some(2));
        assert_eq!(keys.assignment_of(JobId(8), &token), None);
        assert_eq!(keys.assignment_of(JobId(7), &token.replace("-2-", "-3-")), None);
        assert_eq!(keys.assignment_of(JobId(7), "glcbt-7-2-"), None);
        let reopened = Keys::open(dir.path()).expect("failed to read the key");
        assert_eq!(reopened.job_token(JobId(7), 2), token);
    }
}
