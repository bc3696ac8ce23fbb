//! The client for the coordinator of a runner.

use muster_config::settings::{ConnectionAge, RunnerSettings, TlsFiles};
use muster_runner_api::client::{self as api, Client, ClientError};

/// Returns a client. `age` limits the reuse of its connections. Fails if the URL or the certificates are invalid.
pub(crate) fn new(runner: &RunnerSettings, age: ConnectionAge) -> Result<Client, ClientError> {
    Client::with_max_connection_age(&runner.url, &tls(runner), api_age(age))
}

/// Returns a client for existing jobs. Unlike [`new`], does not fail if the certificates are invalid: until their files
/// change, calls are made without certificates.
pub(crate) fn with_deferred_tls(runner: &RunnerSettings, age: ConnectionAge) -> Result<Client, ClientError> {
    Client::with_deferred_tls(&runner.url, &tls(runner), api_age(age))
}

fn tls(runner: &RunnerSettings) -> api::TlsFiles {
    let TlsFiles { ca, certificate, key } = runner.tls.clone();
    api::TlsFiles { ca, certificate, key }
}

fn api_age(age: ConnectionAge) -> api::ConnectionAge {
    match age {
        ConnectionAge::Any => api::ConnectionAge::Any,
        ConnectionAge::UpTo(age) => api::ConnectionAge::UpTo(age),
        ConnectionAge::NoReuse => api::ConnectionAge::NoReuse,
    }
}
