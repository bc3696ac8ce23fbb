//! Where includes that are not files of the project come from: the user's `ci.toml` says it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

/// The largest file that is read from the network, in bytes: what GitLab takes for one file.
const REMOTE_LIMIT: usize = 2 << 20;
/// How long one file may take.
const REMOTE_TIMEOUT: Duration = Duration::from_secs(30);

/// What stands in for other projects, components, templates and URLs.
#[derive(Debug, Clone, Default)]
pub struct IncludeConfig {
    /// Local checkouts by project path, `group/app`.
    pub projects: BTreeMap<String, PathBuf>,
    /// Local checkouts by component address without the name, `host/group/app`.
    pub components: BTreeMap<String, PathBuf>,
    /// The folder that `include:template` names are looked up in.
    pub templates: Option<PathBuf>,
    /// Whether URLs are fetched.
    pub remote: RemotePolicy,
    /// Where fetched files are kept, for times without a network.
    pub cache: Option<PathBuf>,
    /// The name of the file that the user can write all this to, for messages.
    pub config_file: PathBuf,
}

/// What happens to `include:remote`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RemotePolicy {
    /// Fetched; if that fails, the kept file is used.
    #[default]
    Allowed,
    /// Only kept files are used.
    Offline,
}

/// Why a URL could not be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum RemoteError {
    #[error("the network is switched off by `remote = \"offline\"`, and there is no kept copy")]
    Offline,
    #[error("the server answered {0}")]
    Status(reqwest::StatusCode),
    #[error("the file is larger than {} MiB", REMOTE_LIMIT >> 20)]
    TooLarge,
    #[error("{0}")]
    Http(String),
}

/// Gets the bytes behind a URL, and keeps them.
pub(super) async fn remote(url: &str, config: &IncludeConfig) -> Result<Vec<u8>, RemoteError> {
    let kept = config.cache.as_ref().map(|folder| folder.join(hex::encode(Sha256::digest(url))));
    if config.remote == RemotePolicy::Offline {
        return kept.and_then(|file| std::fs::read(file).ok()).ok_or(RemoteError::Offline);
    }
    match fetch(url).await {
        Ok(bytes) => {
            if let Some(file) = &kept
                && let Err(error) = keep(file, &bytes)
            {
                tracing::debug!(%error, file = %file.display(), "cannot keep a fetched include");
            }
            Ok(bytes)
        }
        // A server that says no is believed; a network that is down is not.
        Err(error @ RemoteError::Http(_)) => match kept.and_then(|file| std::fs::read(file).ok()) {
            Some(bytes) => {
                tracing::warn!(url, %error, "cannot fetch the include; the copy of an earlier run is used");
                Ok(bytes)
            }
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

async fn fetch(url: &str) -> Result<Vec<u8>, RemoteError> {
    let said = |error: reqwest::Error| RemoteError::Http(chain(&error));
    let client = reqwest::Client::builder().timeout(REMOTE_TIMEOUT).build().map_err(said)?;
    let mut response = client.get(url).send().await.map_err(said)?;
    if !response.status().is_success() {
        return Err(RemoteError::Status(response.status()));
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(said)? {
        if bytes.len() + chunk.len() > REMOTE_LIMIT {
            return Err(RemoteError::TooLarge);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// An error with its causes: reqwest's own text leaves out the one that matters.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

fn keep(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    io::Write::write_all(&mut new, bytes)?;
    new.persist(file).map(drop).map_err(|error| error.error)
}
