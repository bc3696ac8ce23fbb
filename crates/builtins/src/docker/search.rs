//! Searches for a local engine, for programs that also work without one.

use std::time::Duration;

use muster_agent_api::builtin::DockerEngine;
use muster_job::error_chain;

use super::engine::{self, EngineError};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// No engine on this machine answers.
#[derive(Debug, thiserror::Error)]
#[error("no Docker or Podman engine on this machine answered ({})", tried.join("; "))]
pub struct NoEngine {
    /// Addresses that were tried, each with the reason why it was not used.
    tried: Vec<String>,
}

/// Returns the URL of the first local engine that answers: of `DOCKER_HOST`, or else of the usual sockets.
///
/// # Errors
/// [`NoEngine`] with the addresses that were tried.
pub async fn find_engine() -> Result<String, NoEngine> {
    let mut tried = Vec::new();
    for url in engine::candidates() {
        let settings = DockerEngine { host: url.clone(), ..DockerEngine::default() };
        match engine::is_local(&settings) {
            Ok(true) => {}
            Ok(false) => {
                tried.push(format!("{url} is not a socket of this machine"));
                continue;
            }
            Err(error) => {
                tried.push(error_chain(&error));
                continue;
            }
        }
        match tokio::time::timeout(ANSWER_TIMEOUT, engine::connect(&settings)).await {
            Ok(Ok(_)) => return Ok(url),
            Ok(Err(EngineError::Unreachable { location, message })) => tried.push(format!("{location}: {message}")),
            Ok(Err(error)) => tried.push(error_chain(&error)),
            Err(_) => tried.push(format!("{url}: no answer within {} s", ANSWER_TIMEOUT.as_secs())),
        }
    }
    Err(NoEngine { tried })
}
