//! Simulates the behavior of a cloud: limits, failures and preemptions.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use crate::config::Config;

pub(crate) struct CloudSimulator {
    config: Config,
    random: StdRng,
    /// Number of upcoming requests that will fail.
    remaining_failures: u32,
    /// Number of instances that may be created now.
    tokens: f64,
    refilled_at: Instant,
}

impl CloudSimulator {
    pub(crate) fn new(config: Config) -> Self {
        let seed = if config.seed == 0 { rand::random() } else { config.seed };
        let rates = [config.request_failure_rate, config.boot_failure_rate, config.heartbeat_failure_rate];
        if rates.iter().sum::<f64>() + config.preemptions_per_minute > 0.0 {
            tracing::info!(seed, "random behavior is reproducible with this seed");
        }
        let tokens = f64::from(config.creations_per_second);
        let remaining_failures = config.request_failures;
        Self { config, random: StdRng::seed_from_u64(seed), remaining_failures, tokens, refilled_at: Instant::now() }
    }

    /// Returns how many of `n` instances are accepted.
    ///
    /// # Errors
    /// An error if the whole request fails.
    pub(crate) fn accept_create(&mut self, n: u32, now: Instant) -> Result<u32, &'static str> {
        if self.remaining_failures > 0 {
            self.remaining_failures -= 1;
            return Err("the cloud has no capacity yet (request_failures)");
        }
        if self.random_event(self.config.request_failure_rate) {
            return Err("the cloud has no capacity (request_failure_rate)");
        }
        let mut accepted = n;
        if self.config.acceptance_rate < 1.0 {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most n")]
            let share = (f64::from(n) * self.config.acceptance_rate) as u32;
            accepted = share.clamp(n.min(1), n);
        }
        if self.config.max_instances_per_request > 0 {
            accepted = accepted.min(self.config.max_instances_per_request);
        }
        let rate = f64::from(self.config.creations_per_second);
        if rate > 0.0 {
            let elapsed = now.saturating_duration_since(self.refilled_at).as_secs_f64();
            self.tokens = (self.tokens + elapsed * rate).min(rate);
            self.refilled_at = now;
            while f64::from(accepted) > self.tokens {
                accepted -= 1;
            }
            self.tokens -= f64::from(accepted);
        }
        Ok(accepted)
    }

    pub(crate) fn boot_delay(&mut self) -> Duration {
        let jitter = self.config.boot_jitter;
        let factor = if jitter > 0.0 { self.random.random_range(1.0 - jitter..=1.0 + jitter) } else { 1.0 };
        Duration::from_millis(self.config.boot_delay_ms).mul_f64(factor)
    }

    pub(crate) fn fails_to_boot(&mut self) -> bool {
        self.random_event(self.config.boot_failure_rate)
    }

    pub(crate) fn fails_heartbeat(&mut self) -> bool {
        self.random_event(self.config.heartbeat_failure_rate)
    }

    /// Returns the time until a running instance is preempted. `None` means never.
    pub(crate) fn preemption_after(&mut self) -> Option<Duration> {
        let rate = self.config.preemptions_per_minute / 60.0;
        if rate <= 0.0 {
            return None;
        }
        let sample: f64 = self.random.random_range(f64::EPSILON..1.0);
        Some(Duration::from_secs_f64((-sample.ln() / rate).min(1e9)))
    }

    fn random_event(&mut self, rate: f64) -> bool {
        rate > 0.0 && self.random.random_bool(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simulator(configure: impl FnOnce(&mut Config)) -> CloudSimulator {
        let mut config = Config { seed: 7, ..Config::default() };
        configure(&mut config);
        CloudSimulator::new(config)
    }

    #[tokio::test]
    async fn creation_rate_is_limited_and_recovers() {
        let mut simulator = simulator(|config| config.creations_per_second = 4);
        let start = Instant::now();
        assert_eq!(simulator.accept_create(10, start), Ok(4));
        assert_eq!(simulator.accept_create(10, start), Ok(0));
        assert_eq!(simulator.accept_create(10, start + Duration::from_millis(500)), Ok(2));
        assert_eq!(
            simulator.accept_create(10, start + Duration::from_secs(60)),
            Ok(4),
            "at most the tokens of one second accumulate"
        );
    }

    #[tokio::test]
    async fn requests_are_accepted_partially_or_fail() {
        assert_eq!(simulator(|config| config.max_instances_per_request = 3).accept_create(10, Instant::now()), Ok(3));
        assert_eq!(simulator(|config| config.acceptance_rate = 0.5).accept_create(11, Instant::now()), Ok(5));
        assert_eq!(simulator(|config| config.acceptance_rate = 0.5).accept_create(1, Instant::now()), Ok(1));
        let mut failing_at_start = simulator(|config| config.request_failures = 2);
        let results: Vec<_> = (0..4).map(|_| failing_at_start.accept_create(1, Instant::now()).ok()).collect();
        assert_eq!(results, [None, None, Some(1), Some(1)]);
        let mut failing_at_random = simulator(|config| config.request_failure_rate = 0.5);
        let failed = (0..1000).filter(|_| failing_at_random.accept_create(1, Instant::now()).is_err()).count();
        assert!((400..600).contains(&failed), "{failed} of 1000 with rate 0.5");
    }

    #[tokio::test]
    async fn same_seed_gives_same_preemptions() {
        let preemptions = || {
            let mut simulator = simulator(|config| config.preemptions_per_minute = 2.0);
            (0..100).map(|_| simulator.preemption_after()).collect::<Vec<_>>()
        };
        assert_eq!(preemptions(), preemptions());
        let mean = preemptions().iter().flatten().map(Duration::as_secs_f64).sum::<f64>() / 100.0;
        assert!((20.0..45.0).contains(&mean), "expected a mean of about 30 s, not {mean} s");
    }
}
