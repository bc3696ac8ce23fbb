//! Tokens of jobs and runners.
//!
//! A job's token is not stored: it contains the job's ID and assignment number, signed with the coordinator's key. Of a
//! runner's random token, only the SHA-256 is stored.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use muster_job::JobId;
use ring::hmac;
use sha2::{Digest, Sha256};

use crate::jwt::Signer;

const JOB_KEY_FILE: &str = "token.key";
const SIGNER_FILE: &str = "id-token.key";
const KEY_LEN: usize = 32;
/// Prefix of job tokens, the same as GitLab's: runner managers mask the text after it.
const JOB_PREFIX: &str = "glcbt-";
const RANDOM_LEN: usize = 24;

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
    /// Reads the key that signs job tokens. Creates it if necessary, readable by this user only.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        let new = || Ok(rand::random::<[u8; KEY_LEN]>().to_vec());
        let bytes = read_or_create(&dir.join(JOB_KEY_FILE), new)?;
        Ok(Self { key: hmac::Key::new(hmac::HMAC_SHA256, &bytes) })
    }

    pub(crate) fn random() -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, &rand::random::<[u8; KEY_LEN]>()) }
    }

    pub(crate) fn job_token(&self, job: JobId, assignment: u32) -> String {
        let body = format!("{job}-{assignment}");
        let tag = hmac::sign(&self.key, body.as_bytes());
        format!("{JOB_PREFIX}{body}-{}", hex::encode(tag))
    }

    /// Returns the assignment number in a token. `None` if the token is not a valid token of `job`.
    pub(crate) fn assignment_of(&self, job: JobId, token: &str) -> Option<u32> {
        let (token_job, assignment) = self.read(token)?;
        (token_job == job).then_some(assignment)
    }

    /// Returns the job and the assignment number in a token. `None` if the token is not valid.
    pub(crate) fn read(&self, token: &str) -> Option<(JobId, u32)> {
        let (body, tag) = token.strip_prefix(JOB_PREFIX)?.rsplit_once('-')?;
        hmac::verify(&self.key, body.as_bytes(), &hex::decode(tag).ok()?).ok()?;
        let (job, assignment) = body.split_once('-')?;
        Some((job.parse().ok()?, assignment.parse().ok()?))
    }
}

/// Reads the key that signs ID tokens. Creates it if necessary, readable by this user only.
pub(crate) fn open_signer(dir: &Path) -> io::Result<Signer> {
    let bytes = read_or_create(&dir.join(SIGNER_FILE), || Signer::new_key().map_err(io::Error::other))?;
    Signer::from_pkcs8(&bytes).map_err(io::Error::other)
}

pub(crate) fn random_signer() -> io::Result<Signer> {
    Signer::from_pkcs8(&Signer::new_key().map_err(io::Error::other)?).map_err(io::Error::other)
}

/// Reads a key file, or creates it atomically.
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
/// gitlab-runner interprets `glrt-` as the prefix of runners that were created on the server, so a runner that
/// registered itself gets a token without it (docs/spec/runner-api.md, section 1.1).
pub(crate) fn runner_token(registered_itself: bool) -> String {
    use rand::Rng;
    let mut random = rand::rng();
    let text: String = (0..RANDOM_LEN).map(|_| char::from(random.sample(rand::distr::Alphanumeric))).collect();
    if registered_itself { format!("t1_{text}") } else { format!("glrt-t1_{text}") }
}

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
