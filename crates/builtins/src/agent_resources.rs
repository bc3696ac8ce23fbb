//! Resources that the jobs of one agent share.

use std::sync::Arc;

use muster_runner_api::client::{Client, ClientError, TlsFiles};
use parking_lot::Mutex;
use url::Url;

use crate::docker::prepared::PreparedContainers;
use crate::mirrors::Mirrors;
use crate::step_source::StepCache;
use crate::templates::Templates;
use crate::trash::Trash;

/// Resources that the jobs of one agent share.
#[derive(Debug, Default)]
pub struct AgentResources {
    /// Work trees of commits, from which checkouts are copied.
    pub templates: Templates,
    /// Content of remote steps.
    pub steps: Arc<StepCache>,
    /// Leftovers of earlier jobs, which are removed in the background.
    pub trash: Trash,
    /// Containers that are prepared before a job needs them.
    pub prepared: Arc<PreparedContainers>,
    /// Copies of repositories that jobs share.
    pub(crate) mirrors: Mirrors,
    /// URL and client of the coordinator that was used last.
    client: Mutex<Option<(String, Client)>>,
}

impl AgentResources {
    /// Returns resources with these parts.
    #[must_use]
    pub fn new(templates: Templates, steps: StepCache, prepared: PreparedContainers) -> Self {
        Self { templates, steps: Arc::new(steps), prepared: Arc::new(prepared), ..Self::default() }
    }

    /// Returns a client for the coordinator at `url`, which does not include `/api/v4`.
    ///
    /// Certificates are files of the job, so a client with certificates is not shared.
    pub(crate) fn client(&self, url: &str, tls: &TlsFiles) -> Result<Client, ClientError> {
        let parsed = || Url::parse(url).map_err(|error| ClientError::Setup(error.to_string()));
        if !tls.is_empty() {
            return Client::with_tls(&parsed()?, tls);
        }
        let mut last = self.client.lock();
        if let Some((_, client)) = last.as_ref().filter(|(known, _)| known == url) {
            return Ok(client.clone());
        }
        let client = Client::new(&parsed()?)?;
        *last = Some((url.to_owned(), client.clone()));
        Ok(client)
    }
}
