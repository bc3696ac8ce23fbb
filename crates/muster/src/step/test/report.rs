//! Reports about tests: text in the form of `cargo test`, and JUnit XML.

use std::time::Duration;

use super::suite::Verdict;
use crate::ci::ui;
use crate::junit::{Case, Outcome, Suite};

pub(super) fn print_start(count: usize) {
    let noun = if count == 1 { "test" } else { "tests" };
    ui::out(&format!("running {count} {noun}\n"));
}

pub(super) fn print_verdict(verdict: &Verdict) {
    let result = if verdict.mismatches.is_empty() { ui::paint(ui::GOOD, "ok") } else { ui::paint(ui::BAD, "FAILED") };
    ui::out(&format!("test {} ... {result}\n", verdict.case.title()));
}

/// Prints the failures and the summary. Returns whether all tests have passed.
pub(super) fn print_summary(verdicts: &[Verdict], time: Duration) -> bool {
    let failed: Vec<&Verdict> = verdicts.iter().filter(|verdict| !verdict.mismatches.is_empty()).collect();
    if !failed.is_empty() {
        ui::out("\nfailures:\n");
    }
    for verdict in &failed {
        ui::out(&format!("\n---- {} ----\n{}", verdict.case.title(), mismatches(verdict)));
        if !verdict.log.is_empty() {
            let log: String = verdict.log.lines().map(|line| format!("    {line}\n")).collect();
            ui::out(&format!("log:\n{log}"));
        }
    }
    let (style, word) = if failed.is_empty() { (ui::GOOD, "ok") } else { (ui::BAD, "FAILED") };
    let passed = verdicts.len() - failed.len();
    let (word, failed, seconds) = (ui::paint(style, word), failed.len(), time.as_secs_f64());
    ui::out(&format!("\ntest result: {word}. {passed} passed; {failed} failed; finished in {seconds:.2}s\n"));
    failed == 0
}

fn mismatches(verdict: &Verdict) -> String {
    let path = verdict.case.path.display();
    verdict.mismatches.iter().map(|mismatch| format!("{path}:{}: {}\n", mismatch.line, mismatch.message)).collect()
}

/// Returns the report as JUnit XML, with one suite for each test file.
pub(super) fn junit(verdicts: &[Verdict]) -> String {
    let mut suites: Vec<Suite> = Vec::new();
    for verdict in verdicts {
        let file = verdict.case.path.display().to_string();
        let case = Case {
            name: verdict.case.test.name.clone(),
            class: file.clone(),
            time: verdict.duration,
            outcome: match verdict.mismatches.first() {
                None => Outcome::Passed,
                Some(first) => Outcome::Failed { message: first.message.clone(), details: mismatches(verdict) },
            },
            output: verdict.log.clone(),
        };
        match suites.last_mut().filter(|suite| suite.name == file) {
            Some(suite) => suite.cases.push(case),
            None => suites.push(Suite { name: file, cases: vec![case] }),
        }
    }
    crate::junit::report(&suites)
}
