//! Fetches remote steps. Implements [`muster_steps::remote::StepSource`] for Git repositories and OCI registries.
//!
//! ```text
//! source --server, with the job's credentials--> digest --cache, or server--> verified content --> directory of the job
//! ```
//!
//! Each job queries the server, which checks the job's credentials. Content comes from the [`StepCache`] if an earlier
//! job fetched it. It is verified by its digest, and each job gets its own copy.

mod cache;
mod git;
mod git_notices;
pub(crate) mod oci;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use muster_oci::DockerConfig;
use muster_runner_api::client::TlsFiles;
use muster_steps::failure::PortError;
use muster_steps::remote::{FetchRequest, FetchedSource, Source, StepSource};
use muster_steps::stop::StopToken;
use sha2::{Digest as _, Sha256};

pub use cache::StepCache;
pub use oci::{CREATED, LAYER_TYPE, NOTICE_TYPE, notice_annotation, registry_notices};

/// Fetches remote steps for a job or command.
#[derive(Debug, Clone)]
pub struct StepFetcher {
    /// Content from earlier jobs.
    pub cache: Arc<StepCache>,
    /// Directory for the content, which may contain files of the job. It is created if necessary.
    pub directory: PathBuf,
    /// URLs of the job's GitLab server besides `CI_SERVER_URL`. They get the job's token.
    pub servers: Vec<String>,
    /// Certificates for the job's server only.
    pub tls: TlsFiles,
    /// Docker configuration of the user. `None` means that only variables of the job provide credentials.
    pub docker: Option<DockerConfig>,
}

impl StepFetcher {
    /// Returns a fetcher that writes below `directory`, and has no credentials.
    #[must_use]
    pub fn new(cache: Arc<StepCache>, directory: PathBuf) -> Self {
        let (servers, tls, docker) = (Vec::new(), TlsFiles::default(), None);
        Self { cache, directory, servers, tls, docker }
    }

    /// Creates a directory. Its random name keeps a job from preparing files in it.
    fn new_directory(&self) -> Result<PathBuf, PortError> {
        let create = || {
            std::fs::create_dir_all(&self.directory)?;
            Ok(tempfile::Builder::new().prefix("step-").tempdir_in(&self.directory)?.keep())
        };
        create().map_err(system("failed to create the directory of a step"))
    }
}

/// Returns the name of content in the cache. It includes the source, because each server decides who may read its
/// content.
fn entry_name(source: &Source, digest: &str) -> String {
    format!(
        "{}-{}",
        Sha256::digest(source.name()).iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>(),
        digest.replace(':', "-")
    )
}

#[async_trait]
impl StepSource for StepFetcher {
    async fn fetch(&self, request: FetchRequest<'_>, stop: &StopToken) -> Result<FetchedSource, PortError> {
        match request.source {
            Source::Git { url, revision } => git::fetch(self, url, revision, request, stop).await,
            Source::Oci { registry, repository, tag } => {
                oci::fetch(self, (registry, repository, tag), request, stop).await
            }
        }
    }
}

/// Returns a function that converts an I/O error.
fn system(operation: &str) -> impl FnOnce(std::io::Error) -> PortError {
    let operation = operation.to_owned();
    move |error| PortError::System(format!("{operation}: {error}"))
}
