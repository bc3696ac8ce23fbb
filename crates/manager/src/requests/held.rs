//! A job that was handed out and cannot be stored (a full disk): it is held and tried again for a few seconds, and then
//! given up to the coordinator as failed. Few coordinators hand a job out twice: one that is dropped here is lost (J1).

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

/// Some seconds: the job waits, and nothing else is asked for.
const TAKE_AGAIN: Policy = Policy { first: Duration::from_millis(100), cap: Duration::from_secs(1), attempts: Some(8) };
/// How long the trace is tried, and the report after it: the manager ends after that.
const TELL_LIMIT: Duration = Duration::from_secs(30);
/// A server that works on a report is asked again after this, unless it says when.
const ASK_AGAIN: Duration = Duration::from_secs(1);

impl Request {
    /// Stores the job that could not be stored, or reports it. None where it was stored before.
    pub(super) async fn take_again(
        &self,
        client: &Client,
        mut failed: Box<NotTaken>,
    ) -> Result<Option<StoredJob>, StoreError> {
        // Held until this is over: no more jobs are asked for.
        let _waiting = self.waiting.upgrade();
        let mut backoff = Backoff::new(TAKE_AGAIN);
        loop {
            let NotTaken { error, payload, known } = *failed;
            let Some(wait) = backoff.next_wait(None) else {
                // One that has its actor is that one's to report.
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

/// Reports a job that cannot be stored as the runner's failure.
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

/// Says how the job has ended, until it is heard.
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

/// Waits before the next try, where there is one.
async fn pause(backoff: &mut Backoff, error: ClientError) -> Result<(), ClientError> {
    match error.transient().and_then(|retry_after| backoff.next_wait(retry_after)) {
        Some(wait) => {
            sleep(wait).await;
            Ok(())
        }
        None => Err(error),
    }
}
