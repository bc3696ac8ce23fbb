//! Rate limits: a token bucket, and a backoff after failures.

use std::time::Duration;

use crate::config::Throttle;
use crate::time::Time;

/// In instances per second (docs/spec/fleeting.md, section 5.1).
const DEFAULT_PER_SECOND: u32 = 100;

#[derive(Debug, Clone)]
pub(crate) struct TokenBucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    at: Time,
}

impl TokenBucket {
    pub(crate) fn new(per_second: f64, burst: f64, at: Time) -> Self {
        Self { per_second, burst, tokens: burst, at }
    }

    /// Creates the bucket for a configuration. Returns `None` if the configuration sets no limit. A `max_instances` of
    /// 0 means no maximum.
    pub(crate) fn from_config(throttle: Throttle, max_instances: u32, at: Time) -> Option<Self> {
        let limit = match throttle.limit {
            ..0 => return None,
            0 => DEFAULT_PER_SECOND,
            limit => u32::try_from(limit).unwrap_or(u32::MAX),
        };
        let burst = [throttle.burst, max_instances, limit].into_iter().find(|burst| *burst > 0).unwrap_or(1);
        Some(Self::new(f64::from(limit), f64::from(burst), at))
    }

    fn refill(&mut self, at: Time) {
        self.tokens = (self.tokens + at.since(self.at).as_secs_f64() * self.per_second).min(self.burst);
        self.at = self.at.max(at);
    }

    /// Returns the number of operations that are possible now.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 <= tokens <= burst, which is a small number"
    )]
    pub(crate) fn available(&mut self, at: Time) -> u32 {
        self.refill(at);
        // Rounding errors can make a sum of fractions slightly smaller than a whole token.
        (self.tokens + 1e-9) as u32
    }

    pub(crate) fn take(&mut self, n: u32) {
        self.tokens = (self.tokens - f64::from(n)).max(0.0);
    }

    pub(crate) fn next_token_at(&self, at: Time) -> Time {
        let missing = (1.0 - self.tokens).max(0.0);
        // Times are rounded down to milliseconds. One more millisecond ensures that the token is complete.
        self.at.max(at)
            + Duration::from_millis(1).max(Duration::from_secs_f64((missing / self.per_second).min(1e6)))
            + Duration::from_millis(1)
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Backoff {
    pub(crate) failures: u32,
    pub(crate) until: Time,
    pub(crate) error: String,
}

impl Backoff {
    const INITIAL: Duration = Duration::from_secs(1);
    const MAX: Duration = Duration::from_secs(60);

    /// Returns the pause before the next attempt.
    pub(crate) fn fail(&mut self, at: Time, error: String, jitter: u64) -> Duration {
        let doubled = Self::INITIAL.saturating_mul(1 << self.failures.min(10)).min(Self::MAX);
        let pause = jittered(doubled, jitter);
        self.failures = self.failures.saturating_add(1);
        self.until = at + pause;
        self.error = error;
        pause
    }

    pub(crate) fn succeed(&mut self) {
        self.failures = 0;
        self.error.clear();
    }

    pub(crate) fn is_active(&self, at: Time) -> bool {
        self.failures > 0 && at < self.until
    }
}

/// 75 % to 125 % of `duration`.
pub(crate) fn jittered(duration: Duration, jitter: u64) -> Duration {
    let parts = u32::try_from(jitter % 512).unwrap_or(0);
    duration * 3 / 4 + duration * parts / 1024
}

/// The output function of the SplitMix64 generator.
pub(crate) fn splitmix64(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_maximum() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u64> = (0..9).map(|_| backoff.fail(Time::ZERO, "quota".to_owned(), 256).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert!(backoff.is_active(Time::from_millis(59_000)) && !backoff.is_active(Time::from_millis(60_000)));
    }

    proptest::proptest! {
        #[test]
        fn bucket_never_exceeds_its_rate(steps in proptest::collection::vec((0u64..700, 0u32..20), 1..100)) {
            let mut bucket = TokenBucket::new(5.0, 8.0, Time::ZERO);
            let (mut now, mut taken) = (0, 0);
            for (pause, wanted) in steps {
                now += pause;
                let n = wanted.min(bucket.available(Time::from_millis(now)));
                bucket.take(n);
                taken += u64::from(n);
                proptest::prop_assert!(taken * 1000 <= 8 * 1000 + now * 5 + 1, "{taken} after {now} ms");
                let next = bucket.next_token_at(Time::from_millis(now));
                proptest::prop_assert!(bucket.clone().available(next) >= 1);
            }
        }
    }
}
