//! Compares Muster's `step-runner ci` with the command `ci` of GitLab's step-runner 0.11.0: exit status, lines of output, and result tree.
//!
//! `MUSTER_TEST_STEP_RUNNER` is the path of GitLab's program, which has only the legacy dialect. Muster runs each list
//! in both dialects.
//! [`lists`] has a reason for each difference, except those that are removed before the comparison:
//! - The lines before the first step.
//! - The command of a script: Muster passes the text on standard input, because other users can read the arguments of a
//!   process.
//! - Paths of temporary files.
//! - The form of the line before each step in the current dialect.

pub(super) mod lists;

use std::path::Path;

use serde_json::{Value, json};

use self::lists::{CASES, Case};
use super::*;

#[derive(Debug, PartialEq)]
struct Run {
    code: i32,
    /// Lines of standard output and standard error, from the first step or error on.
    lines: Vec<String>,
    results: Value,
}

const DIALECTS: [&str; 2] = ["legacy", "current"];

#[test]
fn step_lists_have_the_results_of_step_runner() {
    let Some(theirs) = std::env::var_os("MUSTER_TEST_STEP_RUNNER") else {
        println!("skipped: MUSTER_TEST_STEP_RUNNER is not set to the path of GitLab's step-runner 0.11.0");
        return;
    };
    let problems: Vec<_> = CASES.iter().flat_map(|case| compare(case, Path::new(&theirs))).collect();
    assert!(problems.is_empty(), "{} problems in {} lists:\n{}", problems.len(), CASES.len(), problems.join("\n"));
    println!("{} lists ran in {} dialects; all differences are listed", CASES.len(), DIALECTS.len());
}

/// Returns a description of each difference that is not listed, and of each listed difference that does not exist.
fn compare(case: &Case, theirs: &Path) -> Vec<String> {
    let steps = case.steps;
    let theirs = run(theirs, &["ci"], steps, "legacy");
    let compare_in = |dialect: &&str| {
        let ours = run(Path::new(env!("CARGO_BIN_EXE_muster")), &["step-runner", "ci"], steps, dialect);
        let is_listed = |difference: &&lists::Difference| match *dialect {
            "legacy" => difference.in_legacy,
            _ => difference.in_current,
        };
        let differs =
            |problem: &str| Some(format!("{steps} ({dialect}): {problem}\n  ours: {ours:?}\n  theirs: {theirs:?}"));
        match case.differences.iter().find(is_listed) {
            None if ours == theirs => None,
            None => differs("no difference is listed"),
            Some(listed) if ours == theirs => differs(&format!("remove the reason {:?}", listed.reason)),
            Some(listed) if listed.has_other_exit_status != (ours.code != theirs.code) => {
                differs("the exit statuses are not as listed")
            }
            Some(_) => None,
        }
    };
    DIALECTS.iter().filter_map(compare_in).collect()
}

fn run(program: &Path, arguments: &[&str], steps: &str, dialect: &str) -> Run {
    let project = Project::new();
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/step_runner/differential/project");
    copy_files(&files, &project.work());
    let work = project.work().to_str().unwrap().to_owned();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = project.program(program, arguments);
    command.arg("--write-steps-results").stdout(writer.try_clone().unwrap()).stderr(writer);
    command.env("CI_STEPS_DIALECT", dialect).env("CI_PROJECT_DIR", &work).env("CI_V", "v");
    command.env("STEPS", steps.replace("/PROJECT", &work));
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut output = Vec::new();
    std::io::Read::read_to_end(&mut reader, &mut output).unwrap();
    let code = child.wait().unwrap().code().unwrap();
    let normalize = |text: &str| {
        let text = text.replace(&work, "<project>").replace(project.tmp().to_str().unwrap(), "<tmp>");
        let words = text.split_inclusive([' ', '"']);
        let word = |word: &str| match word.strip_prefix("<tmp>") {
            Some(_) => format!("<file>{}", word.trim_start_matches(|c| c != ' ' && c != '"')),
            None => word.to_owned(),
        };
        words.map(word).collect::<String>()
    };
    let output = with_legacy_banners(&normalize(&String::from_utf8(output).unwrap()));
    let lines =
        output.split_inclusive('\n').skip_while(|line| !line.starts_with("Running") && !line.starts_with("Error"));
    let results = std::fs::read_to_string(project.work().join("step-results.json"));
    let mut results = serde_json::from_str(&normalize(&results.unwrap_or("null".to_owned()))).unwrap();
    hide_commands_of_scripts(&mut results);
    Run { code, lines: lines.map(str::to_owned).collect(), results }
}

pub(super) fn copy_files(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy_files(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

/// Replaces the current dialect's line before each step with the line of the legacy dialect.
fn with_legacy_banners(output: &str) -> String {
    let mut pieces = output.split("Running step name=");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| {
        let (name, rest) = piece.split_once('\n').unwrap();
        format!("{text}Running step {name:?}\n{rest}")
    })
}

/// Removes the command of each bundled step from a result and its inner results.
fn hide_commands_of_scripts(result: &mut Value) {
    if result["step"]["step"]["protocol"] == "dist" {
        for place in ["/specDefinition/definition/exec", "/execResult/command"] {
            if let Some(command) = result.pointer_mut(place) {
                *command = Value::Null;
            }
        }
        if let Some(definition) = result.pointer_mut("/specDefinition/definition") {
            *definition = json!({"type": "exec"});
        }
    }
    if let Some(inner) = result.get_mut("subStepResults").and_then(Value::as_array_mut) {
        inner.iter_mut().for_each(hide_commands_of_scripts);
    }
}
