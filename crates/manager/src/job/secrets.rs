//! Fetches a job's secrets before an agent gets the job, so that they are masked from the first line (J6).

use std::time::Duration;

use muster_job::{FailureReason, Secret, Variable};
use muster_runner_api::payload::JobPayload;
use muster_secret_store::{VaultError, VaultOptions, VaultSession};

use crate::lower::secrets::{SecretRequests, requests};
use crate::lower::{JobContext, LowerError, job_timeout};

/// Fails if a secret cannot be fetched. Cancel-safe, because reading changes nothing.
pub(super) async fn fetch(payload: &JobPayload, job: &JobContext) -> Result<Vec<Variable>, LowerError> {
    if payload.secrets.is_empty() {
        return Ok(Vec::new());
    }
    let requests = requests(payload, job)?;
    let timeout = job_timeout(payload);
    tokio::time::timeout(timeout, fetch_with_retries(&requests)).await.unwrap_or_else(|_| {
        let timeout = muster_job::go_duration(timeout);
        let message = format!("the secrets of the job were not fetched within {timeout}; check the secret manager");
        Err(LowerError::of_reason(FailureReason::RunnerExternalDependencyFailure, message))
    })
}

/// Retries only failures of the secret manager.
async fn fetch_with_retries(requests: &SecretRequests) -> Result<Vec<Variable>, LowerError> {
    let (mut wait_ms, max_wait_ms) = requests.retry_wait_ms;
    let mut attempt = 1;
    loop {
        match fetch_once(requests).await {
            Err(error)
                if attempt < requests.attempts && error.reason == FailureReason::RunnerExternalDependencyFailure =>
            {
                tracing::warn!(attempt, error = error.message, "failed to fetch the secrets of the job, retrying");
            }
            result => return result,
        }
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        (attempt, wait_ms) = (attempt + 1, (wait_ms * 2).min(max_wait_ms));
    }
}

async fn fetch_once(requests: &SecretRequests) -> Result<Vec<Variable>, LowerError> {
    let opened = async {
        let options = VaultOptions::from_environment(|name| std::env::var(name).ok())?;
        VaultSession::open(&options).await
    };
    let invalid = |error: VaultError| LowerError::configuration(muster_job::error_chain(&error));
    let mut session = opened.await.map_err(invalid)?;
    let mut variables = Vec::new();
    for request in &requests.list {
        match session.fetch(&request.secret).await {
            Ok(value) => variables.push(request.variable(&value)),
            Err(error) if error.is_not_found() && !requests.missing_fails => {
                variables.push(request.variable(&Secret::default()));
            }
            Err(error) => return Err(request.error(&error)),
        }
    }
    Ok(variables)
}
