//! Starts the build container, even if the connection to the engine is lost during the call.

use std::time::Duration;

use bollard::Docker;
use bollard::models::ContainerStateStatusEnum as Status;
use bollard::query_parameters::StartContainerOptions;
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use tokio::time::{Instant, sleep};

use super::engine::{failed, inspect_container, is_answer};
use super::fail_if_stopped;

/// Maximum time to wait for the engine after the first unanswered call.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Delay between two queries. The engine sends no event when it is reachable again.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Starts a created container. `name` is for messages.
///
/// After an unanswered call, queries whether the container has started, because it must not run twice.
///
/// # Errors
/// [`Failure`] if the engine rejects the call or does not answer in time, or [`Failure::Stopped`].
pub(super) async fn container(engine: &Docker, id: &str, name: &str, stop: &StopToken) -> Result<(), Failure> {
    // The time of the first call does not count, so that the container is queried at least once.
    let mut first_error_at = None;
    loop {
        let started = engine.start_container(id, None::<StartContainerOptions>).await;
        let Err(mut error) = started else { return Ok(()) };
        let silent_since = *first_error_at.get_or_insert_with(Instant::now);
        loop {
            if is_answer(&error) || silent_since.elapsed() >= TIMEOUT {
                return Err(failed(format!("failed to start the container {name}"))(error));
            }
            tracing::warn!(%error, container = name, "failed to start a container, retrying");
            fail_if_stopped(stop)?;
            sleep(RETRY_DELAY).await;
            match inspect_container(engine, id).await {
                Ok(found) if found.state.as_ref().and_then(|state| state.status) == Some(Status::CREATED) => break,
                Ok(_) => return Ok(()),
                Err(again) => error = again,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::docker::engine::fake::{Answer, FakeEngine};

    const START: &str = "POST /containers/a/start";

    /// Returns an engine that breaks the first start of the container, and then reports this state.
    fn engine(state: &'static str) -> FakeEngine {
        let is_broken = AtomicBool::new(false);
        FakeEngine::start(move |call| match call {
            // An invalid HTTP response.
            START if !is_broken.swap(true, Ordering::Relaxed) => Some(Answer::json(0, "")),
            START => Some(Answer::json(204, "")),
            _ => Some(Answer::json(200, &format!(r#"{{"Id":"a","State":{{"Status":"{state}"}}}}"#))),
        })
    }

    #[tokio::test]
    async fn container_is_started_again_only_if_it_has_not_started() {
        for (state, starts) in [("created", 2), ("running", 1), ("exited", 1)] {
            let engine = engine(state);
            container(&engine.client, "a", "a", &StopToken::new()).await.unwrap();
            assert_eq!(engine.count(START), starts, "{state}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn container_is_queried_after_a_call_that_took_longer_than_the_timeout() {
        let engine = FakeEngine::start(|call| match call {
            START => None,
            _ => Some(Answer::json(200, r#"{"Id":"a","State":{"Status":"running"}}"#)),
        });
        let begin = Instant::now();
        container(&engine.client, "a", "a", &StopToken::new()).await.unwrap();
        assert!(begin.elapsed() >= TIMEOUT, "{:?}", begin.elapsed());
        assert_eq!(engine.calls(), [START, "GET /containers/a/json"]);
    }

    #[tokio::test]
    async fn rejected_call_is_not_repeated() {
        let engine = FakeEngine::start(|_| Some(Answer::json(400, r#"{"message":"no such device"}"#)));
        let failure = container(&engine.client, "a", "job", &StopToken::new()).await.unwrap_err();
        assert_eq!(failure, Failure::Configuration("failed to start the container job: no such device".to_owned()));
        assert_eq!(engine.calls(), [START]);
    }
}
