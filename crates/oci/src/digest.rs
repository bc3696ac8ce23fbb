//! Digests of content.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

/// SHA-256 digest: `sha256:` and 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

/// A text is not a SHA-256 digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a valid digest; expected sha256: and 64 hexadecimal digits")]
pub struct DigestError {
    /// The invalid text.
    pub found: String,
}

impl Digest {
    /// Returns the digest of bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Completes a hash, and returns it as a digest.
    pub(crate) fn finish(hash: Sha256) -> Self {
        Self(hash.finalize().into())
    }

    /// Returns the digest of a file's content.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        let mut hash = Sha256::new();
        feed(&mut hash, &mut std::fs::File::open(path)?)?;
        Ok(Self::finish(hash))
    }
}

/// Adds a reader's data to a hash. Returns the number of bytes.
pub(crate) fn feed(hash: &mut Sha256, reader: &mut impl Read) -> io::Result<u64> {
    let mut buffer = vec![0; 64 * 1024];
    let mut total = 0;
    loop {
        let n = reader.read(&mut buffer)?;
        if n == 0 {
            return Ok(total);
        }
        hash.update(buffer.get(..n).unwrap_or_default());
        total += n as u64;
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", hex::encode(self.0))
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let mut bytes = [0; 32];
        let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64);
        match digits.map(|digits| hex::decode_to_slice(digits, &mut bytes)) {
            Some(Ok(())) => Ok(Self(bytes)),
            _ => Err(DigestError { found: text.to_owned() }),
        }
    }
}
