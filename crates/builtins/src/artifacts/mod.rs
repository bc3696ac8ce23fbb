//! `builtin://artifacts/upload` and `builtin://artifacts/download` (job-execution 9).

mod download;
mod upload;

use std::time::Duration;

use muster_runner_api::client::ClientError;
use muster_steps::stop::Stop;

pub(crate) use download::download;
pub(crate) use upload::upload;

use crate::failure::Failure;

/// Waits before another try.
async fn pause(time: Duration, stop: &Stop) -> Result<(), Failure> {
    tokio::select! {
        cause = stop.stopped() => Err(Failure::Stopped(cause)),
        () = tokio::time::sleep(time) => Ok(()),
    }
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
