//! A received job that cannot be stored, for instance on a full disk.
//!
//! After retries, it is reported as failed, because most coordinators assign a job only once (J1).

use std::time::Duration;

use bytes::Bytes;
use muster_job::{FailureReason, JobStatus, error_chain};
use muster_runner_api::client::{Client, ClientError};
use muster_runner_api::payload::JobPayload;
use muster_runner_api::retry::{Backoff, Policy};
use tokio::time::{sleep, timeout};

use super::Request;
use crate::failure;
use crate::state::ManagerOutcome;
use crate::store::{Insertion, StoreError, StoreJobError};

/// The attempts take a few seconds, in which no other job is requested.
const STORE_RETRY: Policy =
    Policy { first: Duration::from_millis(100), cap: Duration::from_secs(1), attempts: Some(8) };
/// Maximum time for the trace, and again for the report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(30);
/// Default delay before repeating a report that the coordinator still processes.
const REPORT_RETRY_DELAY: Duration = Duration::from_secs(1);

impl Request {
    /// Tries again to store the job. Reports it as failed if no attempt succeeds.
    pub(super) async fn retry_store(
        &self,
        client: &Client,
        mut failed: Box<StoreJobError>,
    ) -> Result<Insertion, StoreError> {
        // No more jobs are requested until this is dropped.
        let _unstored_job = self.unstored_jobs.upgrade();
        let mut backoff = Backoff::new(STORE_RETRY);
        loop {
            let StoreJobError { error, payload, known } = *failed;
            let Some(wait) = backoff.next_wait(None) else {
                // If the job is known, it has an actor, which reports it.
                if !known {
                    report_unstorable(client, &payload, &error).await;
                }
                return Err(error);
            };
            let wait_ms = muster_job::milliseconds(wait);
            tracing::error!(
                job = payload.id.0,
                error = &error as &dyn std::error::Error,
                wait_ms,
                "failed to store the job, retrying"
            );
            sleep(wait).await;
            failed = match self.insert_job(payload) {
                Ok(stored) => return Ok(stored),
                Err(failed) => failed,
            };
        }
    }
}

async fn report_unstorable(client: &Client, payload: &JobPayload, error: &StoreError) {
    let reason = FailureReason::RunnerSystemFailure;
    let message = format!("failed to store the job: {}", error_chain(error));
    let message = failure::masked(&message, &crate::lower::values_to_mask(payload, &[]));
    let line = failure::final_trace_line(reason, &message);
    let is_sent = timeout(REPORT_TIMEOUT, send_trace(client, payload, &line)).await.is_ok_and(|sent| sent.is_ok());
    let trace_message = if is_sent { line } else { String::new() };
    let outcome = ManagerOutcome { reason, exit_code: None, trace_message, trace_offset: 0 };
    let reported = match timeout(REPORT_TIMEOUT, report(client, payload, &outcome)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", REPORT_TIMEOUT.as_secs())),
    };
    let job = payload.id.0;
    match reported {
        Ok(()) => tracing::error!(job, message, "job reported as failed"),
        Err(error) => tracing::error!(job, message, error, "failed to report the job, giving up"),
    }
}

async fn send_trace(client: &Client, payload: &JobPayload, text: &str) -> Result<(), ClientError> {
    let mut backoff = Backoff::new(Policy::SHORT);
    loop {
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        match client.patch_trace(payload.id, &payload.token, 0, bytes, false).await {
            Ok(_) => return Ok(()),
            Err(error) => pause(&mut backoff, error).await?,
        }
    }
}

/// Repeats the final update until the coordinator accepts it.
async fn report(client: &Client, payload: &JobPayload, outcome: &ManagerOutcome) -> Result<(), ClientError> {
    let update = failure::from_manager_outcome(payload, outcome);
    let mut backoff = Backoff::new(Policy::SHORT);
    loop {
        match client.update_job(payload.id, &update).await {
            Ok(reply) if reply.applied || reply.resend_trace => return Ok(()),
            Ok(reply) if matches!(reply.status, Some(JobStatus::Canceled | JobStatus::Failed)) => return Ok(()),
            Ok(reply) => sleep(reply.interval.unwrap_or(REPORT_RETRY_DELAY)).await,
            Err(error) => pause(&mut backoff, error).await?,
        }
    }
}

/// Waits until the next attempt. Returns the error if it is permanent, or if no attempt is left.
async fn pause(backoff: &mut Backoff, error: ClientError) -> Result<(), ClientError> {
    match error.transient().and_then(|retry_after| backoff.next_wait(retry_after)) {
        Some(wait) => {
            sleep(wait).await;
            Ok(())
        }
        None => Err(error),
    }
}
