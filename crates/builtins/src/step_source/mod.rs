//! Fetches remote steps. Implements [`muster_steps::remote::StepSource`] for Git repositories and OCI registries.
//!
//! ```text
//! source --server, with the job's credentials--> digest --cache, or server--> verified content --> directory of the job
//! ```
//!
//! Every job queries the server for each source, so a job does not get content that its credentials cannot read. The content comes from the
//! [`StepCache`] of the agent if an earlier job has fetched it. The content is verified against its digest each time it is read, and each job
//! gets its own copy of the files.

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

/// Fetches the remote steps of one job, or of one command.
#[derive(Debug, Clone)]
pub struct StepFetcher {
    /// Content that earlier jobs have fetched.
    pub cache: Arc<StepCache>,
    /// Directory for the content of this job. It is created if necessary, and may contain files of the job.
    pub directory: PathBuf,
    /// URLs of the job's GitLab server, in addition to `CI_SERVER_URL`. They get the token of the job.
    pub servers: Vec<String>,
    /// Certificates for the job's own server. Other servers do not get the client certificate.
    pub tls: TlsFiles,
    /// Docker configuration of the user, for a command. `None` means that only variables of the job have credentials of registries.
    pub docker: Option<DockerConfig>,
}

impl StepFetcher {
    /// Returns a fetcher without credentials, which writes into `directory`.
    #[must_use]
    pub fn new(cache: Arc<StepCache>, directory: PathBuf) -> Self {
        let (servers, tls, docker) = (Vec::new(), TlsFiles::default(), None);
        Self { cache, directory, servers, tls, docker }
    }

    /// Creates an empty directory for the content of a source. Its name is random, so that a job cannot put files into it in advance.
    fn new_directory(&self) -> Result<PathBuf, PortError> {
        let create = || {
            std::fs::create_dir_all(&self.directory)?;
            Ok(tempfile::Builder::new().prefix("step-").tempdir_in(&self.directory)?.keep())
        };
        create().map_err(system("failed to create the directory of a step"))
    }
}

/// Returns the name of content in the cache.
///
/// The name depends on the source, because the server of each source decides who may read its content.
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

/// Returns a function that turns an I/O error into a failure of the machine.
fn system(operation: &str) -> impl FnOnce(std::io::Error) -> PortError {
    let operation = operation.to_owned();
    move |error| PortError::System(format!("{operation}: {error}"))
}
