//! The report of a run: as a line of text, as JSON, and as JUnit XML.

use std::fmt::Write as _;

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

    /// Returns the reason why the case did not pass.
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

    /// Returns the outcome of a case.
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

    /// Returns the report as JUnit XML: one test suite with one test case per case.
    /// The reason of a warning is the output (`system-out`) of its test case.
    #[must_use]
    pub fn junit(&self) -> String {
        let mut xml = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" \
             skipped=\"{}\">\n",
            escape_xml(&self.plugin),
            self.verdicts.len(),
            self.count("fail"),
            self.count("skip")
        );
        for verdict in &self.verdicts {
            let name = escape_xml(&format!("{} {}", verdict.case.id, verdict.case.title));
            let (seconds, plugin) = (verdict.duration.as_secs_f64(), escape_xml(&self.plugin));
            let _ = write!(xml, "    <testcase name=\"{name}\" classname=\"{plugin}\" time=\"{seconds:.3}\">");
            let _ = match &verdict.outcome {
                Outcome::Pass => Ok(()),
                Outcome::Warn(reason) => write!(xml, "<system-out>{}</system-out>", escape_xml(reason)),
                Outcome::Fail(reason) => write!(xml, "<failure message=\"{}\"/>", escape_xml(reason)),
                Outcome::Skip(reason) => write!(xml, "<skipped message=\"{}\"/>", escape_xml(reason)),
            };
            xml.push_str("</testcase>\n");
        }
        xml.push_str("  </testsuite>\n</testsuites>\n");
        xml
    }
}

/// Escapes text for XML and drops characters that XML does not allow.
fn escape_xml(text: &str) -> String {
    let allowed = text.chars().filter(|c| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}'));
    let allowed: String = allowed.collect();
    allowed.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::cases::CASES;
    use super::*;

    #[test]
    fn all_report_formats_have_the_same_content() {
        let outcomes =
            [Outcome::Pass, Outcome::Fail("a <b> & \"c\"\u{7}".to_owned()), Outcome::Skip("reason".to_owned())];
        let verdicts = CASES.iter().zip(outcomes);
        let verdicts =
            verdicts.map(|(case, outcome)| Verdict { case: *case, outcome, duration: Duration::from_millis(5) });
        let report = Report { plugin: "example".to_owned(), verdicts: verdicts.collect() };
        assert_eq!(report.summary(), "3 cases: 1 pass, 0 warn, 1 fail, 1 skip");
        assert!(!report.passed());
        let junit = report.junit();
        assert!(junit.contains("tests=\"3\" failures=\"1\" skipped=\"1\""), "{junit}");
        assert!(junit.contains("<failure message=\"a &lt;b&gt; &amp; &quot;c&quot;\"/>"), "{junit}");
        let json = report.json();
        assert_eq!((&json["passed"], &json["cases"][1]["outcome"]), (&json!(false), &json!("fail")));
    }
}
