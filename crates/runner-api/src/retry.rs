//! When to repeat a call that failed, and how long to wait before: the one retry policy of the runner API's callers.
//!
//! Waits double from a first to a cap, with jitter in the upper half, so that many callers do not come back at once.
//! `Retry-After` of the server is obeyed as a least wait. Time is tokio's (a test can pause it), chance is a seed.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::client::ClientError;

/// The longest `Retry-After` that is obeyed; what a server asks beyond it is taken as this.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(15 * 60);

/// How often and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The wait after the first failure, before jitter.
    pub first: Duration,
    /// The longest wait, before jitter.
    pub cap: Duration,
    /// Calls in all; none means that only the caller's cancel ends it.
    pub attempts: Option<u32>,
}

impl Policy {
    /// A handful of tries within about a minute: calls that someone waits for.
    pub const SHORT: Self = Self { first: Duration::from_millis(200), cap: Duration::from_secs(20), attempts: Some(8) };
    /// For ever, up to a minute apart: reports that must not get lost (life-of-a-job R5).
    pub const UNTIL_ACKNOWLEDGED: Self =
        Self { first: Duration::from_millis(200), cap: Duration::from_secs(60), attempts: None };
}

/// The waits of one sequence of failures.
#[derive(Debug)]
pub struct Backoff {
    policy: Policy,
    failures: u32,
    rng: SmallRng,
}

impl Backoff {
    /// A sequence at its start, with chance from the system.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy, failures: 0, rng: SmallRng::from_rng(&mut rand::rng()) }
    }

    /// A sequence at its start that always gives the same waits.
    #[must_use]
    pub fn seeded(policy: Policy, seed: u64) -> Self {
        Self { policy, failures: 0, rng: SmallRng::seed_from_u64(seed) }
    }

    /// Failures since the last success.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// From now on no wait is longer than `cap`, before jitter.
    pub fn set_cap(&mut self, cap: Duration) {
        self.policy.cap = cap;
    }

    /// Something worked: the next failure is a first one.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Counts one failure; the wait before the next try, or none where the tries are used up.
    pub fn next_wait(&mut self, retry_after: Option<Duration>) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        if self.policy.attempts.is_some_and(|attempts| self.failures >= attempts) {
            return None;
        }
        let doublings = (self.failures - 1).min(20);
        let full = self.policy.first.saturating_mul(1 << doublings).min(self.policy.cap);
        let wait = full.mul_f64(self.rng.random_range(0.5..=1.0));
        Some(wait.max(retry_after.unwrap_or_default().min(RETRY_AFTER_MAX)))
    }
}

/// Calls until it works, the error is one that no repetition mends, or the tries are used up. Cancel-safe between calls.
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
        tracing::warn!(call = name, failures, wait_ms, %error, "runner API call failed, will be repeated");
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_the_cap_and_keep_half_as_the_least() {
        let policy = Policy { first: Duration::from_secs(1), cap: Duration::from_secs(4), attempts: Some(6) };
        let mut backoff = Backoff::seeded(policy, 7);
        for full in [1.0, 2.0, 4.0, 4.0, 4.0] {
            let wait = backoff.next_wait(None).map(|wait| wait.as_secs_f64()).unwrap();
            assert!((full / 2.0..=full).contains(&wait), "{wait} is not in the upper half of {full}");
        }
        assert_eq!(backoff.next_wait(None), None, "the sixth failure is the last");
    }

    #[test]
    fn the_server_may_ask_for_more_up_to_a_limit() {
        let mut backoff = Backoff::seeded(Policy::UNTIL_ACKNOWLEDGED, 1);
        assert_eq!(backoff.next_wait(Some(Duration::from_secs(60))), Some(Duration::from_secs(60)));
        assert_eq!(backoff.next_wait(Some(Duration::from_secs(86_400))), Some(RETRY_AFTER_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_can_heal_is_repeated() {
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
