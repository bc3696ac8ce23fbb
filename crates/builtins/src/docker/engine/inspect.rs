//! Reads the state of a container, even if Podman reports the state `stopped`.

use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as ApiError;
use bollard::models::{ContainerInspectResponse, ContainerState};
use bollard::query_parameters::WaitContainerOptions;
use futures::StreamExt;
use tokio::time::{Instant, sleep};

/// Maximum time to wait until Podman has cleaned up an ended container.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the engine's description of a container.
///
/// Podman reports an ended container as `stopped` until it has cleaned up the container. The client cannot parse this
/// state, so this function waits for the cleanup. If that takes too long, only the exit code is returned.
pub(crate) async fn inspect_container(engine: &Docker, id: &str) -> Result<ContainerInspectResponse, ApiError> {
    let start = Instant::now();
    loop {
        match engine.inspect_container(id, None).await {
            Err(error) if is_stopped(&error) && start.elapsed() < CLEANUP_TIMEOUT => sleep(POLL_INTERVAL).await,
            Err(error) if is_stopped(&error) => return Ok(ended(exit_code(engine, id).await)),
            inspected => return inspected,
        }
    }
}

/// Returns whether the error is due to the state `stopped`.
fn is_stopped(error: &ApiError) -> bool {
    matches!(error, ApiError::JsonDataError { message, .. } if message.contains("unknown variant `stopped`"))
}

async fn exit_code(engine: &Docker, id: &str) -> Option<i64> {
    match engine.wait_container(id, None::<WaitContainerOptions>).next().await? {
        Ok(end) => Some(end.status_code),
        Err(ApiError::DockerContainerWaitError { code, .. }) => Some(code),
        Err(_) => None,
    }
}

fn ended(exit_code: Option<i64>) -> ContainerInspectResponse {
    let state = ContainerState { running: Some(false), exit_code, ..ContainerState::default() };
    ContainerInspectResponse { state: Some(state), ..ContainerInspectResponse::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_state_stopped_is_recognized() {
        let parse = |json: &str| {
            let error = serde_json::from_str::<ContainerInspectResponse>(json).unwrap_err();
            ApiError::JsonDataError { message: error.to_string(), column: error.column() }
        };
        assert!(is_stopped(&parse(r#"{"State":{"Status":"stopped"}}"#)));
        assert!(!is_stopped(&parse(r#"{"State":{"Status":"gone"}}"#)));
        assert!(!is_stopped(&ApiError::RequestTimeoutError));
    }
}
