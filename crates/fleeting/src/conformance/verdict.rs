//! Verdicts, and who collects them.

use std::time::{Duration, Instant};

use super::cases::{CASES, Case};
use super::plan::Plan;
use super::report::Report;

/// Why what was left is skipped.
const STOPPED: &str = "the run was stopped";
const EARLIER_FAILED: &str = "an earlier case failed";

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// As it should be.
    Pass,
    /// Hosts can live with it; better is possible.
    Warn(String),
    /// A host would stumble.
    Fail(String),
    /// It could not be seen.
    Skip(String),
}

/// What is to be said of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Which.
    pub case: Case,
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
}

impl Verdict {
    /// Whether it was not come to at all, since the run ended before: nothing is known of the case.
    #[must_use]
    pub fn is_left_out(&self) -> bool {
        matches!(&self.outcome, Outcome::Skip(why) if why == STOPPED || why == EARLIER_FAILED)
    }
}

/// The verdicts of a run as they come.
pub(super) struct Run<'a> {
    pub(super) plan: &'a Plan,
    tell: &'a mut (dyn FnMut(&Verdict) + Send),
    verdicts: Vec<Verdict>,
    since: Instant,
    /// What the plugin's processes wrote to stderr.
    pub(super) log: Vec<String>,
}

impl<'a> Run<'a> {
    pub(super) fn new(plan: &'a Plan, tell: &'a mut (dyn FnMut(&Verdict) + Send)) -> Self {
        Self { plan, tell, verdicts: Vec::new(), since: Instant::now(), log: Vec::new() }
    }

    /// Tells how a case ended: the first word on it counts. Whether it did not fail.
    pub(super) fn say(&mut self, id: &str, outcome: Outcome) -> bool {
        let fine = !matches!(outcome, Outcome::Fail(_));
        let Some(case) = CASES.iter().find(|case| case.id == id) else { return fine };
        if self.verdicts.iter().all(|verdict| verdict.case.id != id) {
            let verdict = Verdict { case: *case, outcome, took: self.since.elapsed() };
            (self.tell)(&verdict);
            self.verdicts.push(verdict);
        }
        self.since = Instant::now();
        fine
    }

    /// [`Outcome::Pass`], or [`Outcome::Fail`] with the reason.
    pub(super) fn judge(&mut self, id: &str, result: Result<(), String>) -> bool {
        self.say(id, result.map_or_else(Outcome::Fail, |()| Outcome::Pass))
    }

    /// Whether a case has failed.
    pub(super) fn has_failed(&self, id: &str) -> bool {
        self.verdicts.iter().any(|verdict| verdict.case.id == id && matches!(verdict.outcome, Outcome::Fail(_)))
    }

    /// Those that were not seen are skipped.
    pub(super) fn skip(&mut self, ids: &[&str], why: &str) {
        for id in ids {
            self.say(id, Outcome::Skip(why.to_owned()));
        }
    }

    pub(super) fn finish(mut self) -> Report {
        let why = if self.plan.stop.is_cancelled() { STOPPED } else { EARLIER_FAILED };
        for case in CASES {
            self.say(case.id, Outcome::Skip(why.to_owned()));
        }
        let plugin = self.plan.executable.display().to_string();
        // In the order of the list.
        let at = |verdict: &Verdict| CASES.iter().position(|case| *case == verdict.case);
        self.verdicts.sort_by_key(at);
        Report { plugin, verdicts: self.verdicts }
    }
}
