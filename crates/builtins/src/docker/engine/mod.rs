//! Connection to a Docker or Podman engine.

mod command;
mod endpoint;
#[cfg(test)]
pub(crate) mod fake;
mod inspect;
#[cfg(test)]
mod tests;
mod tls;
mod transport;

use std::collections::BTreeSet;
use std::path::PathBuf;

use bollard::Docker;
use bollard::errors::Error as ApiError;
use muster_agent_api::builtin::DockerEngine;
use muster_job::{error_chain, go_architecture};
use muster_steps::failure::Failure;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use endpoint::{Endpoint, Variables};
pub(crate) use inspect::inspect_container;
use transport::Connector;
pub(crate) use transport::UnansweredCreation;

/// Timeout of a call in seconds.
const CALL_TIMEOUT_S: u64 = 120;
const BAD_REQUEST: u16 = 400;
const NOT_FOUND: u16 = 404;
/// Status if an object already exists or is in use.
const CONFLICT: u16 = 409;
const INTERNAL_ERROR: u16 = 500;

/// Locations of engines whose platform was checked, as a cache.
static CHECKED: parking_lot::Mutex<BTreeSet<String>> = parking_lot::Mutex::new(BTreeSet::new());

/// Forgets the checked platforms. Called if a job cannot start, possibly because the engine was replaced.
pub(super) fn forget_checked_platforms() {
    CHECKED.lock().clear();
}

/// Reason why an engine cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineError {
    #[error(
        "`{0}` is not a valid address of a Docker engine; use unix:///path, tcp://host:port or ssh://user@host in `host`"
    )]
    Address(String),
    #[error("failed to use {} for TLS to the Docker engine: {message}; correct `tls_cert_path`", path.display())]
    Certificate { path: PathBuf, message: String },
    #[error("failed to reach the Docker engine at {location}: {message}; start it, or set `host` in [runners.docker]")]
    Unreachable { location: String, message: String },
    #[error("the Docker engine at {location} runs {os} containers; use an engine that runs Linux containers")]
    OperatingSystem { location: String, os: String },
    #[error(
        "the Docker engine at {location} runs on {architecture}, and this agent is for {}; use an engine with this architecture, or \
         run the manager on a machine with the architecture of the engine",
        go_architecture()
    )]
    Architecture { location: String, architecture: String },
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Address(_) | EngineError::Certificate { .. } => Self::Configuration(error.to_string()),
            EngineError::Unreachable { .. }
            | EngineError::OperatingSystem { .. }
            | EngineError::Architecture { .. } => Self::System(error.to_string()),
        }
    }
}

/// Connects to an engine, and waits for an answer.
pub(crate) async fn connect(settings: &DockerEngine) -> Result<Docker, EngineError> {
    connect_to_create(settings).await.map(|(engine, _)| engine)
}

/// Connects to an engine, and waits for an answer. Also returns the record of calls that create something, but get no
/// answer.
pub(crate) async fn connect_to_create(settings: &DockerEngine) -> Result<(Docker, UnansweredCreation), EngineError> {
    let (endpoint, location) = Endpoint::new(settings, &Variables::of_process())?;
    let unreachable =
        |error: ApiError| EngineError::Unreachable { location: location.clone(), message: reason(&error) };
    let (engine, unanswered) = transport::client(Connector::new(endpoint), CALL_TIMEOUT_S).map_err(unreachable)?;
    if CHECKED.lock().contains(&location) {
        engine.ping().await.map_err(unreachable)?;
    } else {
        let version = engine.version().await.map_err(unreachable)?;
        check_platform(location.clone(), version.os, version.arch)?;
        CHECKED.lock().insert(location);
    }
    Ok((engine, unanswered))
}

/// Fails if the engine cannot run the executable of this agent.
fn check_platform(location: String, os: Option<String>, architecture: Option<String>) -> Result<(), EngineError> {
    if let Some(os) = os.filter(|os| os != "linux") {
        return Err(EngineError::OperatingSystem { location, os });
    }
    match architecture.filter(|name| !name.is_empty() && name != go_architecture()) {
        Some(architecture) => Err(EngineError::Architecture { location, architecture }),
        None => Ok(()),
    }
}

/// Returns the addresses of engines to try if none is configured, in order.
pub(crate) fn candidates() -> Vec<String> {
    endpoint::candidates(&Variables::of_process())
}

/// Returns the URL of the engine, or the configured text if it is not a valid URL.
pub(crate) fn location(settings: &DockerEngine) -> String {
    Endpoint::new(settings, &Variables::of_process()).map_or_else(|_| settings.host.clone(), |(_, location)| location)
}

/// Returns whether the engine has a socket on this machine, and can therefore mount files of this machine.
pub(crate) fn is_local(settings: &DockerEngine) -> Result<bool, EngineError> {
    Ok(matches!(Endpoint::new(settings, &Variables::of_process())?.0, Endpoint::Unix(_)))
}

/// Returns the engine's time, for the ages of its objects.
pub(crate) async fn time_at_engine(engine: &Docker) -> Result<OffsetDateTime, String> {
    let info = engine.info().await.map_err(|error| reason(&error))?;
    let text = info.system_time.unwrap_or_default();
    OffsetDateTime::parse(&text, &Rfc3339).map_err(|error| format!("{text:?} is not a valid time: {error}"))
}

/// Returns the reason for a failed call.
pub(crate) fn reason(error: &ApiError) -> String {
    match error {
        ApiError::DockerResponseServerError { status_code, message } if message.is_empty() => {
            format!("the engine answered with status {status_code}")
        }
        ApiError::DockerResponseServerError { message, .. } => message.clone(),
        ApiError::RequestTimeoutError => format!("no answer within {CALL_TIMEOUT_S} s"),
        other => error_chain(other),
    }
}

/// Returns a function that converts the error of a call. `operation` is the text before the reason.
///
/// A rejected request is a configuration failure, as in gitlab-runner (docs/spec/job-execution.md, section 5.3).
pub(crate) fn failed(operation: impl std::fmt::Display) -> impl FnOnce(ApiError) -> Failure {
    move |error| {
        let message = format!("{operation}: {}", reason(&error));
        match error {
            ApiError::DockerResponseServerError { status_code: BAD_REQUEST, .. } => Failure::Configuration(message),
            _ => Failure::System(message),
        }
    }
}

/// Returns whether the error is an answer of the engine.
pub(crate) fn is_answer(error: &ApiError) -> bool {
    matches!(error, ApiError::DockerResponseServerError { .. })
}

/// Returns whether the object does not exist.
pub(crate) fn is_not_found(error: &ApiError) -> bool {
    match error {
        ApiError::DockerResponseServerError { status_code: NOT_FOUND, .. } => true,
        // Podman 4 returns this if the container is removed during the call.
        ApiError::DockerResponseServerError { status_code: INTERNAL_ERROR, message } => {
            message.contains("no such container")
        }
        _ => false,
    }
}

/// Returns whether the object already exists or is in use.
pub(crate) fn is_conflict(error: &ApiError) -> bool {
    match error {
        ApiError::DockerResponseServerError { status_code: CONFLICT, .. } => true,
        // Podman 4 returns this for a used name, and for a volume that another call creates at the same time.
        ApiError::DockerResponseServerError { status_code: INTERNAL_ERROR, message } => {
            message.contains("name is already in use") || message.contains("volume already exists")
        }
        _ => false,
    }
}
