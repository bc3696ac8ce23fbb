//! What is known of one runner: how many requests it may have in flight, how healthy it is, when it may ask again.

use std::time::Duration;

use muster_executor::REQUEST_HELD_AFTER;
use muster_runner_api::retry::{Backoff, MAX_RETRY_AFTER, Policy};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use muster_config::settings::{RunnerKey, RunnerSettings};

/// Waits after failures. The cap is what the return of a coordinator may go unnoticed: low, since a manager sends one
/// request then and not a storm of them.
const BACKOFF: Policy = Policy { first: Duration::from_millis(200), cap: Duration::from_secs(10), attempts: None };
/// Waits between the probes of a runner that the coordinator refuses.
const PROBE: Policy = Policy { first: Duration::from_secs(30), cap: Duration::from_secs(300), attempts: None };
/// The longest wait that an answer other than 429 can ask for: what a maintenance page promises is a guess.
const RETRY_AFTER_MAX_ERRORS: Duration = Duration::from_secs(60);

/// A runner, as far as admission goes by it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Limits {
    pub(crate) key: RunnerKey,
    /// Changes with anything that requests are sent with.
    pub(crate) generation: u64,
    /// Whether it is asked for jobs at all.
    pub(crate) enabled: bool,
    /// Jobs and requests at the same time.
    pub(crate) limit: Option<usize>,
    /// Requests at the same time; at least 1.
    pub(crate) request_concurrency: usize,
    /// The number of requests follows what comes of them.
    pub(crate) adaptive: bool,
    /// After a job, wait for the check interval.
    pub(crate) strict: bool,
    /// Refusals in a row that make it unhealthy.
    pub(crate) unhealthy_requests_limit: u32,
    /// The longest wait between probes.
    pub(crate) unhealthy_interval: Duration,
}

impl Limits {
    /// Those of a runner; `has_executor` tells whether there can be environments for it.
    pub(crate) fn of(runner: &RunnerSettings, generation: u64, has_executor: bool) -> Self {
        const ADAPTIVE: &str = "FF_USE_ADAPTIVE_REQUEST_CONCURRENCY";
        // Checks C008 and C020 of the configuration report why the runner is disabled.
        let enabled = has_executor && !runner.token.expose().trim().is_empty();
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

/// What a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A job, stored.
    Job,
    /// None. `changed`: the queue's version is another one than the request knew, so that it is worth asking again.
    Empty { changed: bool },
    /// A job that is here already: the answer to an earlier request.
    Repeated,
    /// It was given up.
    Cut,
    /// No usable answer.
    Failed {
        /// 429 and 5xx.
        overloaded: bool,
        /// 429: what the server asks for is a rule, and not a guess.
        rate_limited: bool,
        /// The least wait that the server asks for.
        retry_after: Option<Duration>,
    },
    /// The runner is not one of the coordinator's, or its settings make no client.
    Refused,
}

/// What people should hear of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// It will be repeated.
    Failed { failures: u32, wait: Duration },
    /// The coordinator refuses the runner once more; `unhealthy` from now on or already.
    Refused { refusals: u32, wait: Duration, unhealthy: bool },
    /// It works again after so many failures or refusals.
    Recovered { failures: u32 },
}

/// What is known of one runner of the file, for metrics and people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunnerFigures {
    /// Which one.
    pub key: RunnerKey,
    /// Jobs under way, from the answer that brought them to their report.
    pub jobs: usize,
    /// Job requests in flight.
    pub requests: usize,
    /// Requests that may be in flight by what came of the last ones.
    pub requests_adaptive: usize,
    /// `request_concurrency`.
    pub requests_hard: usize,
    /// Requests sent since the start of the manager.
    pub requests_total: u64,
    /// Of these, the ones that the coordinator refused (403), or that no client could be made for.
    pub refusals_total: u64,
    /// False while the coordinator refuses it again and again.
    pub healthy: bool,
    /// How long it has to wait until it may ask again, if it has to.
    pub waits: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) limits: Limits,
    /// The most jobs that its provider can have; none until that is known.
    pub(super) capacity: usize,
    /// Its server gives the same job again to the same idempotency key.
    pub(super) repeats: bool,
    /// Number of the last request: who has the lowest has waited longest.
    pub(super) last_turn: u64,
    /// Requests that may be in flight: doubled by a job, since more may wait behind it; one less with an empty answer;
    /// halved by an overloaded coordinator. GitLab Runner's steps are 1.1, 0.95 and 0.5; its bounds are the same.
    adaptive: usize,
    not_before: Option<Instant>,
    /// The last empty answer was followed by a request without a wait.
    eager: bool,
    /// The last answer was a job that was here already.
    repeated: bool,
    backoff: Backoff,
    probes: Backoff,
    refusals: u32,
    failed_at: Option<Instant>,
    pub(super) requests_total: u64,
    refusals_total: u64,
    rng: SmallRng,
}

impl Entry {
    pub(super) fn new(limits: Limits, seed: u64) -> Self {
        Self {
            limits,
            capacity: 0,
            repeats: false,
            last_turn: 0,
            adaptive: 1,
            not_before: None,
            eager: false,
            repeated: false,
            backoff: Backoff::seeded(BACKOFF, seed),
            probes: Backoff::seeded(PROBE, seed),
            refusals: 0,
            failed_at: None,
            requests_total: 0,
            refusals_total: 0,
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    pub(super) fn configure(&mut self, limits: Limits) {
        // It may be another server.
        self.repeats &= self.limits.generation == limits.generation;
        self.limits = limits;
        self.forget_failures();
        self.not_before = None;
    }

    /// Jobs and requests at the same time.
    pub(super) fn jobs_max(&self) -> usize {
        self.limits.limit.map_or(self.capacity, |limit| limit.min(self.capacity))
    }

    pub(super) fn not_before(&self) -> Option<Instant> {
        self.not_before
    }

    /// Requests that may be in flight now. After a failure there is one, to see whether it works again.
    pub(super) fn effective_requests(&self) -> usize {
        if self.failures() > 0 {
            return 1;
        }
        if self.limits.adaptive { self.adaptive.clamp(1, self.hard()) } else { self.hard() }
    }

    pub(super) fn figures(&self, requests: usize, jobs: usize, now: Instant) -> RunnerFigures {
        RunnerFigures {
            key: self.limits.key.clone(),
            jobs,
            requests,
            requests_adaptive: self.effective_requests(),
            requests_hard: self.hard(),
            requests_total: self.requests_total,
            refusals_total: self.refusals_total,
            healthy: !self.is_unhealthy(),
            waits: self
                .not_before
                .map(|earliest| earliest.saturating_duration_since(now))
                .filter(|wait| !wait.is_zero()),
        }
    }

    /// Learns from an answer to a request that was sent at `started`.
    pub(super) fn judge(
        &mut self,
        outcome: Outcome,
        started: Instant,
        now: Instant,
        check_interval: Duration,
    ) -> Option<Notice> {
        match outcome {
            Outcome::Cut => return None,
            Outcome::Failed { overloaded, rate_limited, retry_after } => {
                if overloaded {
                    self.adaptive = (self.adaptive / 2).max(1);
                }
                let most = if rate_limited { MAX_RETRY_AFTER } else { RETRY_AFTER_MAX_ERRORS };
                return self.failed(started, now, retry_after.map(|wait| wait.min(most)));
            }
            Outcome::Refused => return self.refused(started, now),
            Outcome::Job | Outcome::Empty { .. } | Outcome::Repeated => {}
        }
        let failures = self.failures();
        self.forget_failures();
        self.not_before = None;
        match outcome {
            Outcome::Job => {
                self.adaptive = self.adaptive.saturating_mul(2).min(self.hard());
                self.eager = false;
                if self.limits.strict {
                    self.pause(now, check_interval);
                }
            }
            Outcome::Empty { changed } => {
                self.adaptive = self.adaptive.saturating_sub(1).max(1);
                let held = now.saturating_duration_since(started) >= REQUEST_HELD_AFTER;
                // Once: a coordinator that holds nothing and is busy has a new version with every answer.
                self.eager = !held && changed && !self.eager;
                if !held && !self.eager {
                    self.pause(now, check_interval);
                }
            }
            // Once: it is the answer to a request whose first answer was lost. A coordinator that says nothing else is one that
            // holds nothing.
            Outcome::Repeated => {
                let held = now.saturating_duration_since(started) >= REQUEST_HELD_AFTER;
                if !held && self.repeated {
                    self.pause(now, check_interval);
                }
            }
            _ => {}
        }
        self.repeated = matches!(outcome, Outcome::Repeated);
        (failures > 0).then_some(Notice::Recovered { failures })
    }

    fn pause(&mut self, now: Instant, check_interval: Duration) {
        self.not_before = Some(now + check_interval.mul_f64(self.rng.random_range(0.9..1.1)));
    }

    fn failed(&mut self, started: Instant, now: Instant, retry_after: Option<Duration>) -> Option<Notice> {
        // Requests that were under way when an earlier one failed tell nothing new.
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
            self.probes.next_wait(None).unwrap_or(PROBE.cap).min(self.limits.unhealthy_interval)
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

    fn hard(&self) -> usize {
        self.limits.request_concurrency.max(1)
    }
}
