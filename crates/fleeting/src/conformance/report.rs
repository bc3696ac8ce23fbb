//! The report of a run: its summary as text, and the whole report as JSON.

use serde_json::{Value, json};

use super::verdict::{Outcome, Verdict};

/// Verdicts on all cases for one plugin.
#[derive(Debug, Clone)]
pub struct Report {
    /// Path of the plugin's executable.
    pub plugin: String,
    /// One verdict for each case.
    pub verdicts: Vec<Verdict>,
}

impl Outcome {
    /// Returns `pass`, `warn`, `fail` or `skip`.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Warn(_) => "warn",
            Self::Fail(_) => "fail",
            Self::Skip(_) => "skip",
        }
    }

    /// Returns the reason why the case did not pass. `None` means that it passed.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Pass => None,
            Self::Warn(reason) | Self::Fail(reason) | Self::Skip(reason) => Some(reason),
        }
    }
}

impl Report {
    /// Returns the number of cases with this outcome, named as in [`Outcome::label`].
    #[must_use]
    pub fn count(&self, label: &str) -> usize {
        self.verdicts.iter().filter(|verdict| verdict.outcome.label() == label).count()
    }

    /// Returns the outcome of a case. `None` means that no case has this ID.
    #[must_use]
    pub fn outcome(&self, id: &str) -> Option<&Outcome> {
        self.verdicts.iter().find(|verdict| verdict.case.id == id).map(|verdict| &verdict.outcome)
    }

    /// Returns whether no case failed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.count("fail") == 0
    }

    /// Returns a summary such as `34 cases: 30 pass, 2 warn, 0 fail, 2 skip`.
    #[must_use]
    pub fn summary(&self) -> String {
        let counts = ["pass", "warn", "fail", "skip"].map(|label| format!("{} {label}", self.count(label)));
        format!("{} cases: {}", self.verdicts.len(), counts.join(", "))
    }

    /// Returns the report as JSON, in version 1 of its format.
    #[must_use]
    pub fn json(&self) -> Value {
        let case = |verdict: &Verdict| {
            json!({
                "id": verdict.case.id,
                "title": verdict.case.title,
                "outcome": verdict.outcome.label(),
                "reason": verdict.outcome.reason(),
                "took_ms": u64::try_from(verdict.duration.as_millis()).unwrap_or(u64::MAX),
            })
        };
        json!({
            "version": 1,
            "plugin": self.plugin,
            "passed": self.passed(),
            "cases": self.verdicts.iter().map(case).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::cases::CASES;
    use super::*;

    #[test]
    fn summary_and_json_show_a_failed_case() {
        let outcomes = [Outcome::Pass, Outcome::Fail("a".to_owned()), Outcome::Skip("reason".to_owned())];
        let verdicts = CASES.iter().zip(outcomes);
        let verdicts =
            verdicts.map(|(case, outcome)| Verdict { case: *case, outcome, duration: Duration::from_millis(5) });
        let report = Report { plugin: "example".to_owned(), verdicts: verdicts.collect() };
        assert_eq!(report.summary(), "3 cases: 1 pass, 0 warn, 1 fail, 1 skip");
        assert!(!report.passed());
        let json = report.json();
        assert_eq!((&json["passed"], &json["cases"][1]["outcome"]), (&json!(false), &json!("fail")));
    }
}
