//! Limits on a group's create requests: rate limits, and pauses after failures.

use std::time::Duration;

use crate::config::GroupConfig;
use crate::decision::ScaleUpBlock;
use crate::throttle::{Backoff, TokenBucket};
use crate::time::Time;

/// Maximum rate of `Increase` calls, even without `scale_throttle` (invariant I6 in docs/explanation/taskscaler.md).
const CALLS_PER_SECOND: f64 = 10.0;
/// Maximum number of `Increase` calls at once.
const CALLS_BURST: f64 = 10.0;
/// Consecutive failures after which instances are requested one at a time.
const MAX_READINESS_FAILURES: u32 = 3;
/// Pause after the first partly accepted request. Each further partly accepted request halves the pause, and each
/// rejected request doubles it.
const INITIAL_PARTIAL_PAUSE: Duration = Duration::from_millis(250);
const MIN_PARTIAL_PAUSE: Duration = Duration::from_millis(100);
/// Maximum of `max_request_size`. A larger limit is removed.
const MAX_SIZE_LIMIT: u32 = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Acceptance {
    /// The provider creates instances, or accepted none only because the request came too soon after an earlier one.
    Creating,
    /// The provider accepted none of the requested instances.
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CreationFailure {
    /// Consecutive failures.
    pub(super) failures: u32,
    /// Time until the next attempt.
    pub(super) pause: Duration,
}

#[derive(Debug)]
pub(super) struct CreationControl {
    /// `scale_throttle`. `None` means no limit.
    bucket: Option<TokenBucket>,
    /// Maximum number of instances in the group when the bucket was created. 0 means no limit.
    bucket_max: u32,
    calls: TokenBucket,
    creation: Backoff,
    readiness: Backoff,
    /// Maximum number of instances per request. Halved by failed calls, doubled by completely accepted requests. `None`
    /// means no limit.
    max_request_size: Option<u32>,
    /// End of the pause after the last partly accepted request.
    partial_until: Time,
    /// Length of this pause. Zero if the last request was completely accepted.
    partial_pause: Duration,
}

impl CreationControl {
    pub(super) fn new(config: &GroupConfig, at: Time) -> Self {
        Self {
            bucket: TokenBucket::from_config(config.throttle, config.max_instances, at),
            bucket_max: config.max_instances,
            calls: TokenBucket::new(CALLS_PER_SECOND, CALLS_BURST, at),
            creation: Backoff::default(),
            readiness: Backoff::default(),
            max_request_size: None,
            partial_until: at,
            partial_pause: Duration::ZERO,
        }
    }

    /// Keeps the token bucket if the maximum is unchanged, so that there is no new burst.
    pub(super) fn set_max_instances(&mut self, config: &GroupConfig, max: u32, at: Time) {
        if self.bucket_max != max {
            self.bucket = TokenBucket::from_config(config.throttle, max, at);
            self.bucket_max = max;
        }
    }

    pub(super) fn max_request(&mut self, at: Time) -> u32 {
        let tokens = self.bucket.as_mut().map_or(u32::MAX, |bucket| bucket.available(at));
        let probe = if self.is_probing_readiness() { 1 } else { u32::MAX };
        tokens.min(probe).min(self.max_request_size.unwrap_or(u32::MAX))
    }

    pub(super) fn record_request(&mut self, instances: u32) {
        if let Some(bucket) = &mut self.bucket {
            bucket.take(instances);
        }
        self.calls.take(1);
    }

    /// `longest_pause` limits the pause after a partly accepted request.
    pub(super) fn record_answer(
        &mut self,
        at: Time,
        requested: u32,
        accepted: u32,
        longest_pause: Duration,
    ) -> Acceptance {
        if accepted == 0 {
            // If the provider recently accepted a part, this request only came too early.
            if self.partial_pause.is_zero() || self.partial_pause >= longest_pause {
                return Acceptance::Failed;
            }
            self.pause_after_partial_acceptance(at, (self.partial_pause * 2).min(longest_pause));
            return Acceptance::Creating;
        }
        self.creation.succeed();
        if accepted < requested {
            // The provider limits the rate of creations.
            let pause = match self.partial_pause {
                Duration::ZERO => INITIAL_PARTIAL_PAUSE.min(longest_pause),
                pause => (pause / 2).max(MIN_PARTIAL_PAUSE.min(longest_pause)),
            };
            self.pause_after_partial_acceptance(at, pause);
        } else {
            self.partial_pause = Duration::ZERO;
            let doubled = self.max_request_size.map(|max| max.saturating_mul(2));
            self.max_request_size = doubled.filter(|max| *max <= MAX_SIZE_LIMIT);
        }
        Acceptance::Creating
    }

    fn pause_after_partial_acceptance(&mut self, at: Time, pause: Duration) {
        self.partial_pause = pause;
        self.partial_until = at + pause;
    }

    /// Limits the next requests to half of `requested`.
    pub(super) fn halve_request_size(&mut self, requested: u32) {
        self.max_request_size = Some((requested / 2).max(1));
    }

    pub(super) fn record_creation_failure(&mut self, at: Time, error: String, jitter: u64) -> CreationFailure {
        let pause = self.creation.fail(at, error, jitter);
        CreationFailure { failures: self.creation.failures, pause }
    }

    pub(super) fn record_readiness_failure(&mut self, at: Time, error: String, jitter: u64) -> CreationFailure {
        let pause = self.readiness.fail(at, error, jitter);
        CreationFailure { failures: self.readiness.failures, pause }
    }

    pub(super) fn record_ready(&mut self) {
        self.readiness.succeed();
    }

    fn is_probing_readiness(&self) -> bool {
        self.readiness.failures >= MAX_READINESS_FAILURES
    }

    /// `starting` is the number of instances that are expected, booting or being prepared.
    pub(super) fn failure_block(&self, at: Time, has_unanswered_request: bool, starting: u32) -> Option<ScaleUpBlock> {
        let is_probing = self.is_probing_readiness();
        for (backoff, is_relevant) in [(&self.creation, true), (&self.readiness, is_probing)] {
            if is_relevant && backoff.is_active(at) {
                let (error, failures) = (backoff.error.clone(), backoff.failures);
                return Some(ScaleUpBlock::BackOff { error, failures, pause: backoff.until.since(at) });
            }
        }
        if self.creation.failures > 0 && has_unanswered_request {
            return Some(ScaleUpBlock::Probing { error: self.creation.error.clone() });
        }
        if is_probing && starting > 0 {
            return Some(ScaleUpBlock::Probing { error: self.readiness.error.clone() });
        }
        (at < self.partial_until).then_some(ScaleUpBlock::PartiallyAccepted)
    }

    pub(super) fn is_throttled(&mut self, at: Time) -> bool {
        let is_empty = self.bucket.as_mut().is_some_and(|bucket| bucket.available(at) == 0);
        is_empty || self.calls.available(at) == 0
    }

    pub(super) fn has_no_readiness_failures(&self) -> bool {
        self.readiness.failures == 0
    }

    pub(super) fn provider_accepts(&self) -> bool {
        self.creation.failures == 0 && self.partial_pause.is_zero()
    }

    /// Returns the number of consecutive failures and the last error. `None` means no failures.
    pub(super) fn failure(&self) -> Option<(u32, &str)> {
        let failing = [&self.creation, &self.readiness].into_iter().find(|backoff| backoff.failures > 0)?;
        Some((failing.failures, failing.error.as_str()))
    }

    pub(super) fn remaining_pause(&self, at: Time) -> Duration {
        let backoff = if self.creation.is_active(at) { &self.creation } else { &self.readiness };
        backoff.until.since(at)
    }

    /// Returns the times at which `block` may end without an event.
    pub(super) fn block_ends(&self, block: &ScaleUpBlock, at: Time) -> Vec<Time> {
        match block {
            ScaleUpBlock::BackOff { .. } => {
                let ends = [self.creation.until, self.readiness.until];
                ends.into_iter().filter(|end| *end > at).collect()
            }
            ScaleUpBlock::PartiallyAccepted => vec![self.partial_until],
            ScaleUpBlock::Throttled => {
                let token = self.bucket.as_ref().map_or(at, |bucket| bucket.next_token_at(at));
                vec![token.max(self.calls.next_token_at(at))]
            }
            _ => Vec::new(),
        }
    }
}
