//! What is counted of a plugin: its starts, its calls, and what it was refused.
//!
//! Nothing here knows how the numbers are exposed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Upper bounds of the times of calls, in seconds: most answers are there at once, some wait for a cloud.
pub const CALL_SECONDS: [f64; 10] = [0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 120.0, 300.0];

/// Counts of one plugin, over all its processes. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<Mutex<Counts>>);

/// The counts at a moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    /// It runs, and can be called.
    pub is_up: bool,
    /// Starts that gave a plugin that can be called.
    pub starts: u64,
    /// Starts that did not.
    pub failed_starts: u64,
    /// By the name of the call.
    pub calls: BTreeMap<&'static str, Calls>,
    /// Lines of its log that were left out, since there were too many.
    pub lines_left_out: u64,
}

/// Calls of one name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calls {
    /// By what came of them.
    pub results: BTreeMap<CallResult, u64>,
    /// Answers, or parts of them, that made no sense.
    pub nonsense: u64,
    /// Those that took up to each of [`CALL_SECONDS`] and no less; the last took longer than all.
    pub times: [u64; CALL_SECONDS.len() + 1],
    /// The time of all together.
    pub seconds: f64,
}

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallResult {
    /// An answer.
    Ok,
    /// The plugin's own error.
    Refused,
    /// The plugin does not have the call.
    Unimplemented,
    /// No answer in time.
    Late,
    /// The connection broke.
    Broken,
}

impl CallResult {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Refused, Self::Unimplemented, Self::Late, Self::Broken];

    /// A word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::Unimplemented => "unimplemented",
            Self::Late => "late",
            Self::Broken => "broken",
        }
    }
}

impl Meter {
    /// The counts now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn started(&self) {
        let mut counts = self.lock();
        counts.starts += 1;
        counts.is_up = true;
    }

    pub(super) fn start_failed(&self) {
        self.lock().failed_starts += 1;
    }

    pub(super) fn went_down(&self) {
        self.lock().is_up = false;
    }

    pub(super) fn called(&self, call: &'static str, took: Duration, result: CallResult) {
        let mut counts = self.lock();
        let calls = counts.calls.entry(call).or_default();
        *calls.results.entry(result).or_default() += 1;
        let seconds = took.as_secs_f64();
        let place = CALL_SECONDS.iter().position(|bound| seconds <= *bound).unwrap_or(CALL_SECONDS.len());
        if let Some(count) = calls.times.get_mut(place) {
            *count += 1;
        }
        calls.seconds += seconds;
    }

    pub(super) fn heard_nonsense(&self, call: &'static str) {
        self.lock().calls.entry(call).or_default().nonsense += 1;
    }

    pub(super) fn left_out(&self, lines: u64) {
        self.lock().lines_left_out += lines;
    }
}
