//! Counters of one plugin: starts, calls, dropped log lines.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Upper bounds of the call duration buckets, in seconds.
pub const CALL_SECONDS: [f64; 10] = [0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 120.0, 300.0];

/// Counters of one plugin over all its processes. Clones share the counters.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<Mutex<Counts>>);

/// Values of the counters at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    /// Whether the plugin is running and can be called.
    pub is_up: bool,
    /// Number of successful starts.
    pub starts: u64,
    /// Number of failed starts.
    pub failed_starts: u64,
    /// Counters by the name of the call.
    pub calls: BTreeMap<&'static str, Calls>,
    /// Number of log lines that were dropped because the plugin logged too many.
    pub log_lines_dropped: u64,
}

/// Counters of the calls with one name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calls {
    /// Number of calls by result.
    pub results: BTreeMap<CallResult, u64>,
    /// Number of responses that were invalid, completely or in part.
    pub invalid_responses: u64,
    /// Number of calls in each duration bucket of [`CALL_SECONDS`].
    /// The last bucket has the calls that took longer than every bound.
    pub times: [u64; CALL_SECONDS.len() + 1],
    /// Total duration of all calls in seconds.
    pub seconds: f64,
}

/// Result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallResult {
    /// The plugin responded.
    Ok,
    /// The plugin returned an error.
    Error,
    /// The plugin does not implement the call.
    Unimplemented,
    /// The plugin did not respond in time.
    Timeout,
    /// The connection broke.
    Disconnected,
}

impl CallResult {
    /// All results.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Error, Self::Unimplemented, Self::Timeout, Self::Disconnected];

    /// Returns the value of the metric's `result` label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Unimplemented => "unimplemented",
            Self::Timeout => "timeout",
            Self::Disconnected => "disconnected",
        }
    }
}

impl Meter {
    /// Returns the current values.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record_start(&self) {
        let mut counts = self.lock();
        counts.starts += 1;
        counts.is_up = true;
    }

    pub(super) fn record_failed_start(&self) {
        self.lock().failed_starts += 1;
    }

    pub(super) fn record_down(&self) {
        self.lock().is_up = false;
    }

    pub(super) fn record_call(&self, call: &'static str, duration: Duration, result: CallResult) {
        let mut counts = self.lock();
        let calls = counts.calls.entry(call).or_default();
        *calls.results.entry(result).or_default() += 1;
        let seconds = duration.as_secs_f64();
        let bucket = CALL_SECONDS.iter().position(|bound| seconds <= *bound).unwrap_or(CALL_SECONDS.len());
        if let Some(count) = calls.times.get_mut(bucket) {
            *count += 1;
        }
        calls.seconds += seconds;
    }

    pub(super) fn record_invalid_response(&self, call: &'static str) {
        self.lock().calls.entry(call).or_default().invalid_responses += 1;
    }

    pub(super) fn record_dropped_lines(&self, lines: u64) {
        self.lock().log_lines_dropped += lines;
    }
}
