//! The client of one runner's coordinator.

use muster_runner_api::client::{Client, ClientError};

use crate::settings::RunnerSettings;

/// A client with the runner's URL and certificates.
///
/// # Errors
/// [`ClientError::Setup`] where they are not usable.
pub(crate) fn of(runner: &RunnerSettings) -> Result<Client, ClientError> {
    Client::with_tls(&runner.url, &runner.tls)
}
