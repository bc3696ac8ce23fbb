//! The client for the coordinator of a runner.

use muster_config::settings::{ConnectionAge, RunnerSettings, TlsFiles};
use muster_runner_api::client::{self as api, Client, ClientError};

/// Returns a client with the runner's URL and certificates, which reuses each connection up to `age`.
///
/// # Errors
/// [`ClientError::Setup`] if the URL or the certificates are not usable.
pub(crate) fn new(runner: &RunnerSettings, age: ConnectionAge) -> Result<Client, ClientError> {
    Client::with_max_connection_age(&runner.url, &tls(runner), limit(age))
}

/// Returns a client for jobs that exist already.
/// If the certificates are not usable, calls are sent without them until their files change. Such calls fail if they need one of the
/// certificates.
///
/// # Errors
/// [`ClientError::Setup`] if the URL is not usable.
pub(crate) fn with_deferred_tls(runner: &RunnerSettings, age: ConnectionAge) -> Result<Client, ClientError> {
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
