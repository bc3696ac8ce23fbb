//! A received job that cannot be stored, for instance on a full disk.
//!
//! Storing is retried for a few seconds, and then the job is reported as failed. Few coordinators assign a job twice, so a job that is
//! dropped here would be lost (J1).

use std::time::Duration;

use bytes::Bytes;
use muster_job::{FailureReason, JobStatus};
use muster_runner_api::client::{Client, ClientError};
use muster_runner_api::payload::JobPayload;
use muster_runner_api::retry::{Backoff, Policy};
use tokio::time::{sleep, timeout};

use super::Request;
use crate::failure;
use crate::state::OwnEnd;
use crate::store::{NotTaken, StoreError, StoredJob};

/// Backoff while a job cannot be stored. A few seconds in total: the job waits, and no other job is requested.
const TAKE_AGAIN: Policy = Policy { first: Duration::from_millis(100), cap: Duration::from_secs(1), attempts: Some(8) };
/// Time to send the trace, and then to send the report. The manager exits after that.
const TELL_LIMIT: Duration = Duration::from_secs(30);
/// Time after which a report is repeated that the coordinator is still working on, unless it sets another one.
const ASK_AGAIN: Duration = Duration::from_secs(1);

impl Request {
    /// Stores the job that could not be stored, or reports it as failed. Returns `None` if it was stored before.
    pub(super) async fn take_again(
        &self,
        client: &Client,
        mut failed: Box<NotTaken>,
    ) -> Result<Option<StoredJob>, StoreError> {
        // Held until this returns: no more jobs are requested.
        let _waiting = self.waiting.upgrade();
        let mut backoff = Backoff::new(TAKE_AGAIN);
        loop {
            let NotTaken { error, payload, known } = *failed;
            let Some(wait) = backoff.next_wait(None) else {
                // A job that was stored before has its actor, which reports it.
                if !known {
                    give_up(client, &payload, &error).await;
                }
                return Err(error);
            };
            let wait_ms = wait.as_millis();
            tracing::error!(job = payload.id.0, %error, wait_ms, "the job cannot be stored, will be tried again");
            sleep(wait).await;
            failed = match self.take(payload) {
                Ok(taken) => return Ok(taken),
                Err(failed) => failed,
            };
        }
    }
}

/// Reports a job that cannot be stored as a failure of the runner.
async fn give_up(client: &Client, payload: &JobPayload, error: &StoreError) {
    let reason = FailureReason::RunnerSystemFailure;
    let message = failure::masked(&format!("the job cannot be stored: {error}"), &crate::lower::secrets(payload, &[]));
    let words = failure::last_words(reason, &message);
    let told = timeout(TELL_LIMIT, say(client, payload, &words)).await.is_ok_and(|said| said.is_ok());
    let words = if told { words } else { String::new() };
    let end = OwnEnd { reason, exit_code: None, words, at: 0 };
    let reported = match timeout(TELL_LIMIT, report(client, payload, &end)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", TELL_LIMIT.as_secs())),
    };
    let job = payload.id.0;
    match reported {
        Ok(()) => tracing::error!(job, message, "the job is reported as failed"),
        Err(error) => tracing::error!(job, message, error, "the job is given up, and the coordinator does not hear it"),
    }
}

/// Sends the whole trace.
async fn say(client: &Client, payload: &JobPayload, words: &str) -> Result<(), ClientError> {
    let mut backoff = Backoff::new(Policy::SHORT);
    loop {
        let bytes = Bytes::copy_from_slice(words.as_bytes());
        match client.patch_trace(payload.id, &payload.token, 0, bytes, false).await {
            Ok(_) => return Ok(()),
            Err(error) => pause(&mut backoff, error).await?,
        }
    }
}

/// Sends the final update until the coordinator accepts it.
async fn report(client: &Client, payload: &JobPayload, end: &OwnEnd) -> Result<(), ClientError> {
    let update = failure::of_own_end(payload, end);
    let mut backoff = Backoff::new(Policy::SHORT);
    loop {
        match client.update_job(payload.id, &update).await {
            Ok(reply) if reply.applied || reply.resend_trace => return Ok(()),
            Ok(reply) if matches!(reply.status, Some(JobStatus::Canceled | JobStatus::Failed)) => return Ok(()),
            Ok(reply) => sleep(reply.interval.unwrap_or(ASK_AGAIN)).await,
            Err(error) => pause(&mut backoff, error).await?,
        }
    }
}

/// Waits before the next attempt. Returns the error if there is none.
async fn pause(backoff: &mut Backoff, error: ClientError) -> Result<(), ClientError> {
    match error.transient().and_then(|retry_after| backoff.next_wait(retry_after)) {
        Some(wait) => {
            sleep(wait).await;
            Ok(())
        }
        None => Err(error),
    }
}
