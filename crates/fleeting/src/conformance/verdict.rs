//! Verdicts on cases, and their collection during a run.

use std::time::{Duration, Instant};

use super::cases::{CASES, Case};
use super::plan::Plan;
use super::report::Report;

/// Reason for skipping the cases that were not reached because the run was stopped.
const STOPPED: &str = "the run was stopped";
/// Reason for skipping the cases that were not reached because an earlier case failed.
const EARLIER_FAILED: &str = "an earlier case failed";

/// Outcome of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The plugin does what the case requires.
    Pass,
    /// Hosts tolerate the fault, but it should be fixed.
    Warn(String),
    /// A host would fail.
    Fail(String),
    /// The case could not be checked.
    Skip(String),
}

/// Outcome of a case, with the time that it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The case.
    pub case: Case,
    /// Outcome of the case.
    pub outcome: Outcome,
    /// Time since the previous verdict, or since the start of the run for the first one.
    pub duration: Duration,
}

impl Verdict {
    /// Returns whether the case was not reached, because the run was stopped or an earlier case failed.
    #[must_use]
    pub fn is_not_reached(&self) -> bool {
        matches!(&self.outcome, Outcome::Skip(reason) if reason == STOPPED || reason == EARLIER_FAILED)
    }
}

pub(super) struct Run<'a> {
    pub(super) plan: &'a Plan,
    on_verdict: &'a mut (dyn FnMut(&Verdict) + Send),
    verdicts: Vec<Verdict>,
    case_start: Instant,
    /// Lines that the plugin's processes wrote to stderr.
    pub(super) log: Vec<String>,
}

impl<'a> Run<'a> {
    pub(super) fn new(plan: &'a Plan, on_verdict: &'a mut (dyn FnMut(&Verdict) + Send)) -> Self {
        Self { plan, on_verdict, verdicts: Vec::new(), case_start: Instant::now(), log: Vec::new() }
    }

    /// Records the outcome of a case, unless it has one already.
    /// Returns whether `outcome` is not a failure.
    pub(super) fn record(&mut self, id: &str, outcome: Outcome) -> bool {
        let is_ok = !matches!(outcome, Outcome::Fail(_));
        let Some(case) = CASES.iter().find(|case| case.id == id) else { return is_ok };
        if self.verdicts.iter().all(|verdict| verdict.case.id != id) {
            let verdict = Verdict { case: *case, outcome, duration: self.case_start.elapsed() };
            (self.on_verdict)(&verdict);
            self.verdicts.push(verdict);
        }
        self.case_start = Instant::now();
        is_ok
    }

    /// Records [`Outcome::Pass`], or [`Outcome::Fail`] with the reason. Returns whether `result` is `Ok`.
    pub(super) fn record_result(&mut self, id: &str, result: Result<(), String>) -> bool {
        self.record(id, result.map_or_else(Outcome::Fail, |()| Outcome::Pass))
    }

    pub(super) fn has_failed(&self, id: &str) -> bool {
        self.verdicts.iter().any(|verdict| verdict.case.id == id && matches!(verdict.outcome, Outcome::Fail(_)))
    }

    pub(super) fn skip(&mut self, ids: &[&str], reason: &str) {
        for id in ids {
            self.record(id, Outcome::Skip(reason.to_owned()));
        }
    }

    pub(super) fn finish(mut self) -> Report {
        let reason = if self.plan.stop.is_cancelled() { STOPPED } else { EARLIER_FAILED };
        for case in CASES {
            self.record(case.id, Outcome::Skip(reason.to_owned()));
        }
        let plugin = self.plan.executable.display().to_string();
        let case_index = |verdict: &Verdict| CASES.iter().position(|case| *case == verdict.case);
        self.verdicts.sort_by_key(case_index);
        Report { plugin, verdicts: self.verdicts }
    }
}
