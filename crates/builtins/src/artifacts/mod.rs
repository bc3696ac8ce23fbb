//! `builtin://artifacts/upload` and `builtin://artifacts/download` (job-execution 9).

mod download;
mod provenance;
mod tries;
mod upload;

use muster_job::JobId;
use muster_runner_api::client::{Client, ClientError};

pub(crate) use download::download;
pub(crate) use upload::upload;

pub use download::fetch;
pub use provenance::Provenance;
pub use tries::Endurance;
pub use upload::Upload;

/// The artifacts of one job at its coordinator.
#[derive(Debug, Clone)]
pub struct Door {
    /// The coordinator.
    pub client: Client,
    /// The job.
    pub job: JobId,
    /// The token to ask with.
    pub token: String,
}

/// The status of an answer, in the trace's words.
fn word(error: &ClientError) -> String {
    match error {
        ClientError::Forbidden { code: 401, .. } => "unauthorized".to_owned(),
        ClientError::Forbidden { code: 404 | 410, .. } => "not found".to_owned(),
        ClientError::Forbidden { .. } => "forbidden".to_owned(),
        ClientError::Rejected { code: 413, .. } => "too large".to_owned(),
        other => format!("failed ({other})"),
    }
}
