//! Admission state of one runner: requests in flight, health, and time of the next request.

use std::time::Duration;

use muster_executor::REQUEST_HELD_AFTER;
use muster_runner_api::retry::{Backoff, MAX_RETRY_AFTER, Policy};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use muster_config::settings::{RunnerKey, RunnerSettings};

/// Wait times after failed requests. The cap is low, so that the recovery of a coordinator is noticed soon.
const BACKOFF: Policy = Policy { first: Duration::from_millis(200), cap: Duration::from_secs(10), attempts: None };
/// Wait times between probes of an unhealthy runner. `unhealthy_interval` limits them further.
const PROBE_BACKOFF: Policy = Policy { first: Duration::from_secs(30), cap: Duration::from_secs(300), attempts: None };
/// Maximum wait if an answer other than 429 has a `Retry-After`, because its value is then only an estimate.
const MAX_ERROR_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Settings of a runner that limit its job requests.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Limits {
    pub(crate) key: RunnerKey,
    /// Number that changes when any setting of the runner changes.
    pub(crate) generation: u64,
    pub(crate) enabled: bool,
    /// Maximum sum of jobs and requests in flight.
    pub(crate) limit: Option<usize>,
    pub(crate) request_concurrency: usize,
    /// Whether the limit on requests in flight adapts to their results.
    pub(crate) adaptive: bool,
    /// Whether to wait for the check interval even after a request that brought a job.
    pub(crate) strict: bool,
    pub(crate) unhealthy_requests_limit: u32,
    /// Maximum time between probes of an unhealthy runner.
    pub(crate) unhealthy_interval: Duration,
}

impl Limits {
    /// `has_executor` is false if the executor does not exist or could not be created.
    pub(crate) fn new(runner: &RunnerSettings, generation: u64, has_executor: bool) -> Self {
        const ADAPTIVE: &str = "FF_USE_ADAPTIVE_REQUEST_CONCURRENCY";
        // Checks C008, C020 and C112 report why the runner is disabled.
        let enabled = has_executor && !runner.token.expose().trim().is_empty() && !runner.shares_machines_in_public;
        Self {
            key: runner.key.clone(),
            generation,
            enabled,
            limit: runner.limit,
            request_concurrency: runner.request_concurrency,
            adaptive: runner.feature_flags.get(ADAPTIVE).copied().unwrap_or(true),
            strict: runner.strict_check_interval,
            unhealthy_requests_limit: runner.unhealthy_requests_limit.max(1),
            unhealthy_interval: runner.unhealthy_interval,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A job, which is already stored.
    Job,
    /// No job. `changed` means that the queue has another version than in the request, so a job may be available now.
    Empty { changed: bool },
    /// An earlier answer already contained the job.
    Duplicate,
    /// The request was canceled.
    Canceled,
    /// No usable answer.
    Failed {
        /// Whether the answer is 429 or 5xx.
        overloaded: bool,
        /// Whether the answer is 429, so that its `Retry-After` must be obeyed.
        rate_limited: bool,
        retry_after: Option<Duration>,
    },
    /// The coordinator refuses the runner, or no client can be created from its settings.
    Refused,
}

/// What operators should know about an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// No usable answer.
    Failed { failures: u32, wait: Duration },
    /// `unhealthy` is true if the runner now counts as unhealthy.
    Refused { refusals: u32, wait: Duration, unhealthy: bool },
    /// Requests succeed again.
    Recovered { failures: u32 },
}

/// Statistics of a configured runner, for metrics and operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerStats {
    /// Key of the runner.
    pub key: RunnerKey,
    /// Jobs in progress, from receipt to report.
    pub jobs: usize,
    /// Job requests in flight.
    pub requests: usize,
    /// Current maximum number of requests in flight. It is 1 after a failure.
    pub requests_adaptive: usize,
    /// Value of the setting `request_concurrency`.
    pub requests_hard: usize,
    /// Requests sent since the start of the manager.
    pub requests_total: u64,
    /// Requests that the coordinator refused (403), or for which no client could be created.
    pub refusals_total: u64,
    /// False while the coordinator keeps refusing the runner.
    pub healthy: bool,
    /// Time until the runner may send another request. `None` means at once.
    pub wait: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct RunnerEntry {
    pub(super) limits: Limits,
    /// Maximum number of jobs. 0 until the executor reports it.
    pub(super) capacity: usize,
    /// Whether the runner's coordinator answers the same idempotency key with the same job.
    pub(super) is_repeatable: bool,
    /// Number of the latest request. The runner with the lowest number is next.
    pub(super) last_turn: u64,
    /// Maximum number of requests in flight if the last request succeeded, unless `needed_requests` is higher.
    ///
    /// A job doubles it, an empty answer reduces it by one, and an overloaded coordinator halves it.
    adaptive_requests: usize,
    /// Minimum of the adaptive limit: with this many requests in flight, every request whose answer may have been lost is
    /// repeated.
    pub(super) needed_requests: usize,
    not_before: Option<Instant>,
    /// Time at which a pause was skipped. `None` if the runner has paused since.
    pause_skipped_at: Option<Instant>,
    was_duplicate: bool,
    backoff: Backoff,
    probes: Backoff,
    refusals: u32,
    failed_at: Option<Instant>,
    pub(super) requests_total: u64,
    refusals_total: u64,
    rng: SmallRng,
}

impl RunnerEntry {
    pub(super) fn new(limits: Limits, seed: u64) -> Self {
        Self {
            limits,
            capacity: 0,
            is_repeatable: false,
            last_turn: 0,
            adaptive_requests: 1,
            needed_requests: 0,
            not_before: None,
            pause_skipped_at: None,
            was_duplicate: false,
            backoff: Backoff::seeded(BACKOFF, seed),
            probes: Backoff::seeded(PROBE_BACKOFF, seed),
            refusals: 0,
            failed_at: None,
            requests_total: 0,
            refusals_total: 0,
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    pub(super) fn configure(&mut self, limits: Limits) {
        // The runner may belong to another coordinator now.
        self.is_repeatable &= self.limits.generation == limits.generation;
        self.limits = limits;
        self.forget_failures();
        self.not_before = None;
    }

    /// Returns the maximum number of jobs and requests together.
    pub(super) fn max_jobs(&self) -> usize {
        self.limits.limit.map_or(self.capacity, |limit| limit.min(self.capacity))
    }

    pub(super) fn not_before(&self) -> Option<Instant> {
        self.not_before
    }

    /// Returns the maximum number of requests in flight: one after a failure, as a probe.
    pub(super) fn effective_requests(&self) -> usize {
        if self.failures() > 0 {
            return 1;
        }
        if self.limits.adaptive {
            self.adaptive_requests.max(self.needed_requests).clamp(1, self.max_requests())
        } else {
            self.max_requests()
        }
    }

    pub(super) fn stats(&self, requests: usize, jobs: usize, now: Instant) -> RunnerStats {
        RunnerStats {
            key: self.limits.key.clone(),
            jobs,
            requests,
            requests_adaptive: self.effective_requests(),
            requests_hard: self.max_requests(),
            requests_total: self.requests_total,
            refusals_total: self.refusals_total,
            healthy: !self.is_unhealthy(),
            wait: self
                .not_before
                .map(|earliest| earliest.saturating_duration_since(now))
                .filter(|wait| !wait.is_zero()),
        }
    }

    /// Records the outcome of a request that was sent at `started`.
    pub(super) fn record_outcome(
        &mut self,
        outcome: Outcome,
        started: Instant,
        now: Instant,
        check_interval: Duration,
    ) -> Option<Notice> {
        match outcome {
            Outcome::Canceled => return None,
            Outcome::Failed { overloaded, rate_limited, retry_after } => {
                if overloaded {
                    self.adaptive_requests = (self.adaptive_requests / 2).max(1);
                }
                let max_wait = if rate_limited { MAX_RETRY_AFTER } else { MAX_ERROR_RETRY_AFTER };
                return self.failed(started, now, retry_after.map(|wait| wait.min(max_wait)));
            }
            Outcome::Refused => return self.refused(started, now),
            Outcome::Job | Outcome::Empty { .. } | Outcome::Duplicate => {}
        }
        let failures = self.failures();
        self.forget_failures();
        self.not_before = None;
        match outcome {
            Outcome::Job => {
                self.adaptive_requests = self.adaptive_requests.saturating_mul(2).min(self.max_requests());
                self.pause_skipped_at = None;
                if self.limits.strict {
                    self.pause(now, check_interval);
                }
            }
            Outcome::Empty { changed } => {
                self.adaptive_requests = self.adaptive_requests.saturating_sub(1).max(1);
                let held = now.saturating_duration_since(started) >= REQUEST_HELD_AFTER;
                // Never skips two pauses in a row, because a busy coordinator that does not hold requests changes the
                // version with every answer. An answer does not count if its request was already in flight when the pause was skipped.
                match self.pause_skipped_at {
                    _ if held => self.pause_skipped_at = None,
                    Some(skipped) if started < skipped => {}
                    None if changed => self.pause_skipped_at = Some(now),
                    _ => {
                        self.pause_skipped_at = None;
                        self.pause(now, check_interval);
                    }
                }
            }
            // The coordinator may send one duplicate because an earlier answer was lost. Pauses after a second one in a
            // row, because the coordinator then answers every request with the same job, and immediately.
            Outcome::Duplicate => {
                let held = now.saturating_duration_since(started) >= REQUEST_HELD_AFTER;
                if !held && self.was_duplicate {
                    self.pause(now, check_interval);
                }
            }
            _ => {}
        }
        self.was_duplicate = matches!(outcome, Outcome::Duplicate);
        (failures > 0).then_some(Notice::Recovered { failures })
    }

    fn pause(&mut self, now: Instant, check_interval: Duration) {
        self.not_before = Some(now + check_interval.mul_f64(self.rng.random_range(0.9..1.1)));
    }

    fn failed(&mut self, started: Instant, now: Instant, retry_after: Option<Duration>) -> Option<Notice> {
        // A request that was sent before the last failure does not count as another failure.
        if self.failed_at.is_some_and(|failed| started <= failed) {
            if let Some(wait) = retry_after {
                self.not_before = self.not_before.max(Some(now + wait));
            }
            return None;
        }
        self.failed_at = Some(now);
        let wait = self.backoff.next_wait(retry_after).unwrap_or(BACKOFF.cap);
        self.not_before = Some(now + wait);
        Some(Notice::Failed { failures: self.backoff.failures(), wait })
    }

    fn refused(&mut self, started: Instant, now: Instant) -> Option<Notice> {
        self.refusals_total += 1;
        if self.failed_at.is_some_and(|failed| started <= failed) {
            return None;
        }
        self.failed_at = Some(now);
        self.refusals = self.refusals.saturating_add(1);
        let wait = if self.is_unhealthy() {
            self.probes.next_wait(None).unwrap_or(PROBE_BACKOFF.cap).min(self.limits.unhealthy_interval)
        } else {
            self.backoff.next_wait(None).unwrap_or(BACKOFF.cap)
        };
        self.not_before = Some(now + wait);
        Some(Notice::Refused { refusals: self.refusals, wait, unhealthy: self.is_unhealthy() })
    }

    fn forget_failures(&mut self) {
        self.backoff.reset();
        self.probes.reset();
        self.refusals = 0;
        self.failed_at = None;
    }

    fn failures(&self) -> u32 {
        self.backoff.failures().saturating_add(self.probes.failures())
    }

    fn is_unhealthy(&self) -> bool {
        self.refusals >= self.limits.unhealthy_requests_limit
    }

    fn max_requests(&self) -> usize {
        self.limits.request_concurrency.max(1)
    }
}
