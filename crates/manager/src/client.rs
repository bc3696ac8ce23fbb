//! The client of one runner's coordinator.

use muster_config::settings::{ConnectionAge, RunnerSettings, TlsFiles};
use muster_runner_api::client::{self as api, Client, ClientError};

/// A client with the runner's URL and certificates, whose connections are used again up to `age`.
///
/// # Errors
/// [`ClientError::Setup`] where they are not usable.
pub(crate) fn of(runner: &RunnerSettings, age: ConnectionAge) -> Result<Client, ClientError> {
    Client::with_max_connection_age(&runner.url, &tls(runner), limit(age))
}

/// The same for jobs that are there already: where the certificates are not usable, they are waited for.
///
/// # Errors
/// [`ClientError::Setup`] where the URL is not usable.
pub(crate) fn patient(runner: &RunnerSettings, age: ConnectionAge) -> Result<Client, ClientError> {
    Client::with_deferred_tls(&runner.url, &tls(runner), limit(age))
}

fn tls(runner: &RunnerSettings) -> api::TlsFiles {
    let TlsFiles { ca, certificate, key } = runner.tls.clone();
    api::TlsFiles { ca, certificate, key }
}

fn limit(age: ConnectionAge) -> api::ConnectionAge {
    match age {
        ConnectionAge::Any => api::ConnectionAge::Any,
        ConnectionAge::UpTo(age) => api::ConnectionAge::UpTo(age),
        ConnectionAge::NoReuse => api::ConnectionAge::NoReuse,
    }
}
