//! `builtin://artifacts/upload`, `builtin://artifacts/download` and `builtin://artifacts/list`
//! (docs/spec/job-execution.md, section 9).

mod download;
mod list;
mod offer;
mod provenance;
mod retry;
mod upload;

use std::sync::Arc;

use async_trait::async_trait;
use muster_agent_api::builtin::{ArtifactsDownload, ArtifactsList, ArtifactsUploadList};
use muster_job::JobId;
use muster_runner_api::client::{Client, ClientError};
use muster_steps::builtin::{Builtin, Offer};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use muster_steps::style;

use crate::context::Context;

pub use download::fetch;
pub use provenance::Provenance;
pub use retry::RetryPolicy;
pub use upload::Upload;

/// Artifacts of one job at the coordinator.
#[derive(Debug, Clone)]
pub struct ArtifactEndpoint {
    /// Client of the coordinator.
    pub client: Client,
    /// ID of the job.
    pub job: JobId,
    /// Token for the requests.
    pub token: String,
}

#[async_trait]
impl Builtin<Context> for ArtifactsDownload {
    fn is_idle(&self) -> bool {
        self.from.is_empty()
    }

    fn offer(&self, context: &Context) -> Option<Offer> {
        Some(offer::download(context, self))
    }

    async fn run(&self, context: &Arc<Context>, stop: &StopToken) -> Result<(), Failure> {
        download::download(context, self, stop).await
    }
}

#[async_trait]
impl Builtin<Context> for ArtifactsUploadList {
    fn is_idle(&self) -> bool {
        self.artifacts.is_empty()
    }

    fn offer(&self, context: &Context) -> Option<Offer> {
        Some(offer::upload(context, self))
    }

    async fn run(&self, context: &Arc<Context>, stop: &StopToken) -> Result<(), Failure> {
        let added = context.added_artifacts.lock().clone();
        if !added.is_empty() && !self.artifacts.iter().any(list::is_archive) {
            let line =
                "files that steps of the runner's configuration added are not uploaded, as the job has no archive";
            context.print(&style::warning(line));
        }
        for upload in &self.artifacts {
            upload::upload(context, &list::with_added_paths(upload, &added), stop).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Builtin<Context> for ArtifactsList {
    fn is_idle(&self) -> bool {
        self.artifacts.is_empty()
    }

    async fn run(&self, context: &Arc<Context>, stop: &StopToken) -> Result<(), Failure> {
        list::list(context, self, stop).await
    }
}

/// Returns the result of a failed request as text for the trace.
fn status_text(error: &ClientError) -> String {
    match error {
        ClientError::Forbidden { code: 401, .. } => "unauthorized".to_owned(),
        ClientError::Forbidden { code: 404 | 410, .. } => "not found".to_owned(),
        ClientError::Forbidden { .. } => "forbidden".to_owned(),
        ClientError::Rejected { code: 413, .. } => "too large".to_owned(),
        other => format!("failed ({other})"),
    }
}
