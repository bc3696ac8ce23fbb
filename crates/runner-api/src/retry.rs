//! Retry policy for calls of the runner API.
//!
//! The waits between attempts double up to a maximum. Each wait is shortened by a random part of up to a half, so that
//! callers do not retry together. `Retry-After` is a minimum.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::client::ClientError;

/// Maximum `Retry-After`. Longer values are reduced.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(15 * 60);

/// Number of attempts, and waits between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Wait after the first failure, before jitter.
    pub first: Duration,
    /// Maximum wait, before jitter.
    pub cap: Duration,
    /// Maximum number of calls. `None` means no limit.
    pub attempts: Option<u32>,
}

impl Policy {
    /// Eight attempts, with waits of at most 26 s in total, unless the server requires longer waits.
    pub const SHORT: Self = Self { first: Duration::from_millis(200), cap: Duration::from_secs(20), attempts: Some(8) };
    /// Unlimited attempts for important reports (docs/spec/life-of-a-job.md, rule R5).
    pub const UNTIL_ACKNOWLEDGED: Self =
        Self { first: Duration::from_millis(200), cap: Duration::from_secs(60), attempts: None };
}

/// Computes the waits after a sequence of failures.
#[derive(Debug)]
pub struct Backoff {
    policy: Policy,
    failures: u32,
    rng: SmallRng,
}

impl Backoff {
    /// Starts a sequence with a random seed.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy, failures: 0, rng: SmallRng::from_rng(&mut rand::rng()) }
    }

    /// Starts a sequence with a fixed seed.
    #[must_use]
    pub fn seeded(policy: Policy, seed: u64) -> Self {
        Self { policy, failures: 0, rng: SmallRng::seed_from_u64(seed) }
    }

    /// Returns the number of failures since the last reset.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Sets the maximum wait, before jitter.
    pub fn set_cap(&mut self, cap: Duration) {
        self.policy.cap = cap;
    }

    /// Restarts the sequence.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Records a failure. Returns the next wait. `None` means that no attempts are left.
    pub fn next_wait(&mut self, retry_after: Option<Duration>) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        if self.policy.attempts.is_some_and(|attempts| self.failures >= attempts) {
            return None;
        }
        let doublings = (self.failures - 1).min(20);
        let full = self.policy.first.saturating_mul(1 << doublings).min(self.policy.cap);
        let wait = full.mul_f64(self.rng.random_range(0.5..=1.0));
        Some(wait.max(retry_after.unwrap_or_default().min(MAX_RETRY_AFTER)))
    }
}

/// Retries a call until it succeeds, fails permanently, or has no attempts left.
///
/// # Errors
/// The last error of `call`.
pub async fn retry<T, F>(mut backoff: Backoff, name: &str, mut call: F) -> Result<T, ClientError>
where
    F: AsyncFnMut() -> Result<T, ClientError>,
{
    loop {
        let error = match call().await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let Some(retry_after) = error.transient() else { return Err(error) };
        let Some(wait) = backoff.next_wait(retry_after) else { return Err(error) };
        let (failures, wait_ms) = (backoff.failures(), wait.as_millis());
        tracing::warn!(call = name, failures, wait_ms, %error, "runner API call failed, retrying");
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap_with_jitter() {
        let policy = Policy { first: Duration::from_secs(1), cap: Duration::from_secs(4), attempts: Some(6) };
        let mut backoff = Backoff::seeded(policy, 7);
        for full in [1.0, 2.0, 4.0, 4.0, 4.0] {
            let wait = backoff.next_wait(None).map(|wait| wait.as_secs_f64()).unwrap();
            assert!((full / 2.0..=full).contains(&wait), "{wait} is not in the upper half of {full}");
        }
        assert_eq!(backoff.next_wait(None), None, "the sixth failure must be the last");
    }

    #[test]
    fn honors_retry_after_up_to_the_maximum() {
        let mut backoff = Backoff::seeded(Policy::UNTIL_ACKNOWLEDGED, 1);
        assert_eq!(backoff.next_wait(Some(Duration::from_secs(60))), Some(Duration::from_secs(60)));
        assert_eq!(backoff.next_wait(Some(Duration::from_secs(86_400))), Some(MAX_RETRY_AFTER));
    }

    #[tokio::test(start_paused = true)]
    async fn retries_only_transient_errors() {
        let mut calls = 0;
        let done = retry(Backoff::seeded(Policy::SHORT, 1), "test", async || {
            calls += 1;
            if calls < 4 { Err(ClientError::unreachable("test", "no route")) } else { Ok(calls) }
        });
        assert_eq!(done.await.unwrap(), 4);
        let mut calls = 0;
        let refused = retry::<(), _>(Backoff::seeded(Policy::SHORT, 1), "test", async || {
            calls += 1;
            Err(ClientError::Forbidden { call: "test", code: 403, status: None, message: String::new() })
        });
        refused.await.unwrap_err();
        assert_eq!(calls, 1);
    }
}
