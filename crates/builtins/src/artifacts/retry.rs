//! Retries of transfers.

use std::time::Duration;

use muster_runner_api::client::ClientError;
use muster_runner_api::retry::{Backoff, Policy};
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;
use tokio::time::Instant;

/// Time after which a transfer fails if the coordinator is unreachable or unavailable.
const UNAVAILABLE_TIMEOUT: Duration = Duration::from_secs(3600);
const BACKOFF: Policy = Policy { first: Duration::from_millis(500), cap: Duration::from_secs(30), attempts: None };

/// When to retry a failed transfer. Permanent errors are never retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Retries transient errors for an hour. If other errors occur, makes at most three attempts. Used by jobs.
    UntilTimeout,
    /// Limits the number of attempts, also after transient errors. Used by commands outside of a job.
    FixedAttempts {
        /// Maximum number of attempts.
        attempts: u32,
        /// Maximum number of attempts if the response is 503.
        unavailable_attempts: u32,
        /// Delays between the attempts.
        backoff: Policy,
    },
}

pub(super) struct RetryState {
    retry_policy: RetryPolicy,
    backoff: Backoff,
    /// Time from which [`RetryPolicy::UntilTimeout`] no longer retries transient errors.
    deadline: Instant,
    /// Number of failed attempts, without those that may be repeated without limit until `deadline`.
    attempts: u32,
}

impl RetryState {
    pub(super) fn new(retry_policy: RetryPolicy) -> Self {
        let backoff = match retry_policy {
            RetryPolicy::UntilTimeout => BACKOFF,
            RetryPolicy::FixedAttempts { backoff, .. } => backoff,
        };
        Self {
            retry_policy,
            backoff: Backoff::new(backoff),
            deadline: Instant::now() + UNAVAILABLE_TIMEOUT,
            attempts: 0,
        }
    }

    /// Returns the delay before the next attempt. `None` means that the transfer must not be retried.
    pub(super) fn next_delay(&mut self, error: &ClientError) -> Option<Duration> {
        /// Maximum number of attempts, including the first, if the errors are not transient.
        const MAX_REJECTED_ATTEMPTS: u32 = 3;
        if matches!(error, ClientError::Rejected { code: 413, .. }) || error.is_job_closed() {
            return None;
        }
        let max_attempts = match (self.retry_policy, error) {
            (RetryPolicy::UntilTimeout, ClientError::Transient { .. }) if Instant::now() < self.deadline => u32::MAX,
            (RetryPolicy::UntilTimeout, ClientError::Transient { .. }) => 0,
            (RetryPolicy::UntilTimeout, _) => MAX_REJECTED_ATTEMPTS,
            (
                RetryPolicy::FixedAttempts { unavailable_attempts, .. },
                ClientError::Transient { code: Some(503), .. },
            ) => unavailable_attempts,
            (RetryPolicy::FixedAttempts { attempts, .. }, _) => attempts,
        };
        if max_attempts < u32::MAX {
            self.attempts = self.attempts.saturating_add(1);
        }
        (self.attempts < max_attempts).then(|| self.backoff.next_wait(error.transient().flatten())).flatten()
    }
}

pub(super) async fn pause(time: Duration, stop: &StopToken) -> Result<(), Failure> {
    tokio::select! {
        cause = stop.stopped() => Err(Failure::Stopped(cause)),
        () = tokio::time::sleep(time) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16) -> ClientError {
        ClientError::Transient {
            call: "test",
            code: Some(code),
            retry_after: None,
            status: None,
            message: String::new(),
        }
    }

    fn rejected(code: u16) -> ClientError {
        ClientError::Rejected { call: "test", code, message: String::new() }
    }

    /// Returns the number of attempts if each fails with this error.
    fn count(retry_policy: RetryPolicy, error: &ClientError) -> usize {
        let mut retries = RetryState::new(retry_policy);
        1 + std::iter::from_fn(|| retries.next_delay(error)).take(100).count()
    }

    #[tokio::test(start_paused = true)]
    async fn transient_errors_are_retried_for_an_hour() {
        let unreachable = ClientError::unreachable("test", "no route");
        let (mut retries, mut total) = (RetryState::new(RetryPolicy::UntilTimeout), Duration::ZERO);
        while let Some(delay) = retries.next_delay(&unreachable) {
            tokio::time::advance(delay).await;
            total += delay;
        }
        assert!(total >= UNAVAILABLE_TIMEOUT && total < UNAVAILABLE_TIMEOUT + BACKOFF.cap, "{total:?}");
        assert_eq!(count(RetryPolicy::UntilTimeout, &rejected(413)), 1);
        assert_eq!(count(RetryPolicy::UntilTimeout, &rejected(400)), 3);
        let forbidden = ClientError::Forbidden { call: "test", code: 403, status: None, message: String::new() };
        assert_eq!(count(RetryPolicy::UntilTimeout, &forbidden), 1);
    }

    #[tokio::test]
    async fn fixed_attempts_has_a_separate_limit_for_status_503() {
        let counted = RetryPolicy::FixedAttempts { attempts: 3, unavailable_attempts: 6, backoff: BACKOFF };
        assert_eq!(count(counted, &status(503)), 6);
        assert_eq!(count(counted, &status(500)), 3);
        assert_eq!(count(counted, &ClientError::unreachable("test", "no route")), 3);
        assert_eq!(count(counted, &rejected(400)), 3);
        assert_eq!(count(counted, &rejected(413)), 1);
    }
}
