//! The client of one runner's coordinator.

use muster_runner_api::client::{Client, ClientError, ConnectionAge};

use crate::settings::RunnerSettings;

/// A client with the runner's URL and certificates, whose connections are used again up to `age`.
///
/// # Errors
/// [`ClientError::Setup`] where they are not usable.
pub(crate) fn of(runner: &RunnerSettings, age: ConnectionAge) -> Result<Client, ClientError> {
    Client::aging(&runner.url, &runner.tls, age)
}

/// The same for jobs that are there already: where the certificates are not usable, they are waited for.
///
/// # Errors
/// [`ClientError::Setup`] where the URL is not usable.
pub(crate) fn patient(runner: &RunnerSettings, age: ConnectionAge) -> Result<Client, ClientError> {
    Client::patient(&runner.url, &runner.tls, age)
}
