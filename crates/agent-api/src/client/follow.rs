//! Follows a job until it ends, even over several connections.

use std::time::Duration;

use super::{AgentError, Reach, Silence};
use crate::result::JobResult;

/// Passes each byte of a job's log to `log` once, and returns the job's result of at most `max_result_bytes`.
///
/// Reconnects until the agent has been silent for `max_silence`.
///
/// # Errors
/// [`AgentError::Unknown`], [`AgentError::Refused`] and [`AgentError::InvalidResult`] immediately, any other error
/// after `max_silence`.
pub async fn follow_to_end(
    agent: &(impl Reach + ?Sized),
    id: &str,
    max_silence: Duration,
    max_result_bytes: usize,
    mut log: impl FnMut(&[u8]) + Send,
) -> Result<JobResult, AgentError> {
    let mut offset = 0;
    let mut silence = Silence::new(max_silence);
    let mut last_error = AgentError::Broken(format!("no answer within {} s", max_silence.as_secs()));
    loop {
        let connecting = async {
            let connection = agent.reach().await?;
            let chunks = connection.follow(id, offset).await?;
            Ok::<_, AgentError>((connection, chunks))
        };
        let connected = tokio::select! {
            connected = connecting => connected,
            () = silence.exceeded() => return Err(last_error),
        };
        let error = match connected {
            Ok((connection, mut chunks)) => {
                silence = Silence::new(max_silence);
                let following = async {
                    while let Some(chunk) = chunks.message().await.map_err(|status| connection.error(status))? {
                        offset += chunk.data.len() as u64;
                        log(&chunk.data);
                    }
                    connection.wait(id, max_result_bytes).await
                };
                match following.await {
                    Ok(result) if offset >= result.log_bytes => return Ok(result),
                    Ok(_) => AgentError::Broken("the log ended before the job".to_owned()),
                    Err(error) => {
                        connection.mark_suspect();
                        error
                    }
                }
            }
            Err(error) => error,
        };
        if matches!(error, AgentError::Unknown | AgentError::Refused(_) | AgentError::InvalidResult(_)) {
            return Err(error);
        }
        tracing::warn!(%error, "failed to follow the job at the agent, retrying");
        last_error = error;
        let pause = silence.next_pause();
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = silence.exceeded() => return Err(last_error),
        }
    }
}
