use std::time::Duration;

use rand::Rng as _;

/// Delays that double up to a maximum, each with a jitter of 25 %.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    delay: Duration,
    max: Duration,
}

impl Backoff {
    /// Returns delays that begin with `first` and end with `max`.
    #[must_use]
    pub fn new(first: Duration, max: Duration) -> Self {
        Self { delay: first.min(max), max }
    }

    /// Returns 75 % to 125 % of the current delay, and doubles it for the next call.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.delay;
        self.delay = delay.saturating_mul(2).min(self.max);
        delay.mul_f64(rand::rng().random_range(0.75..1.25))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum_with_jitter() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(3));
        for full in [1.0, 2.0, 3.0, 3.0] {
            let delay = backoff.next_delay().as_secs_f64();
            assert!((full * 0.75..full * 1.25).contains(&delay), "{delay} must be within 25 % of {full}");
        }
    }
}
