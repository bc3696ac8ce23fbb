//! Access of `muster step` to remote steps, with the credentials of the user.

use std::sync::Arc;

use muster_builtins::{StepCache, StepFetcher};
use muster_oci::{DockerConfig, Registry, Repository, credentials_in};

use super::error::StepCommandError;

/// Fetcher with a temporary directory. Dropping it deletes everything that it fetched.
pub(super) struct CommandFetcher {
    pub(super) fetcher: StepFetcher,
    _directory: tempfile::TempDir,
}

impl CommandFetcher {
    /// Returns a fetcher that uses the credentials in the user's Docker configuration and in the environment.
    pub(super) fn new() -> Result<Self, StepCommandError> {
        let directory = tempfile::Builder::new().prefix("muster-steps-").tempdir();
        let directory = directory.map_err(StepCommandError::file(std::env::temp_dir()))?;
        let cache = StepCache::new(directory.path().join("cache"));
        let cache = cache.map_err(StepCommandError::file(directory.path()))?;
        let mut fetcher = StepFetcher::new(Arc::new(cache), directory.path().join("steps"));
        // Without a home directory there are no stored credentials.
        fetcher.docker = DockerConfig::from_environment().ok();
        Ok(Self { fetcher, _directory: directory })
    }
}

pub(super) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

pub(super) async fn registry(repository: Repository) -> Result<Registry, StepCommandError> {
    let text = environment("DOCKER_AUTH_CONFIG").unwrap_or_default();
    let problem = |problem| StepCommandError::Usage(format!("DOCKER_AUTH_CONFIG: {problem}; correct the variable"));
    let mut credentials = credentials_in(&text, &repository).map_err(problem)?;
    if let (None, Ok(docker)) = (&credentials, DockerConfig::from_environment()) {
        credentials = docker.get(&repository.registry).await?;
    }
    Ok(Registry::new(repository, credentials)?)
}
