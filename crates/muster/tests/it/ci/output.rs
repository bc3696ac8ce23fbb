//! Snapshots of the output of runs, without the parts that differ between runs.

use std::io::{BufRead as _, Read as _};

use super::run::{interrupt, start_and_wait_for};
use super::{CommandOutput, Project};

fn check(name: &str, project: &Project, output: &CommandOutput) {
    let CommandOutput { code, out, err } = output;
    let text = format!("exit status: {}\n---- stdout\n{out}---- stderr\n{err}", code.unwrap());
    let text = text.replace(&project.home().display().to_string(), "[home]");
    let filters =
        [(r"\b\d+ms\b|\b\d+\.\d+s\b|\b\d+m\d\ds\b", "[time]"), (r"\([0-9a-f]{8}\b", "([commit]"), (r" {2,}", "  ")];
    insta::with_settings!({ filters => filters, omit_expression => true }, { insta::assert_snapshot!(name, text) });
}

#[test]
fn successful_run_output() {
    let project = Project::new(
        "stages: [build, test]\ncompile: {stage: build, script: ['true']}\nunit: {stage: test, script: ['true']}\n\
         release: {stage: test, when: manual, script: ['true']}\n",
    );
    check("run-succeeds", &project, &project.ci(&[]));
    check("run-is-listed", &project, &project.ci(&["show", "last"]));
}

#[test]
fn failed_run_output() {
    let project = Project::new(
        "stages: [test, deploy]\nunit: {stage: test, script: ['echo one; exit 3']}\nship: {stage: deploy, script: ['true']}\n",
    );
    check("run-fails", &project, &project.ci(&["--log", "none"]));
    check("failed-run-is-listed", &project, &project.ci(&["show", "last"]));
    project.configure("[keep]\ndays = 30\n[remote]\ntimeout = \"soon\"\n");
    check("config-is-invalid", &project, &project.ci(&[]));
}

#[test]
fn canceled_run_output() {
    let project = Project::new("unit: {script: ['echo now', 'sleep 600']}\nship: {stage: deploy, script: ['true']}\n");
    let (mut child, out) = start_and_wait_for(&project, "now");
    interrupt(&child);
    // The order of the lines about the two jobs, and the log after the signal, differ between runs.
    let mut out: Vec<String> = out.lines().map(Result::unwrap).filter(|line| !line.contains('│')).collect();
    out.sort();
    let mut err = String::new();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    let output = CommandOutput { code: child.wait().unwrap().code(), out: out.join("\n") + "\n", err };
    check("run-is-canceled", &project, &output);
}
