//! Runs the commands of the tutorial `first-step.md`, and compares the output with the page.

use std::io::Write as _;
use std::process::Stdio;

use super::Project;
use crate::ci::tutorial::{matches_expected, steps};

/// Start of a line that the reader enters at the prompt.
const PROMPT: &str = "(step) ";

/// Writes the YAML files in a part of the page. The name of a file is in the last "Write `NAME`" before its code block.
fn write_files(project: &Project, part: &str) {
    for (before, after) in part.match_indices("```yaml\n").map(|(index, fence)| part.split_at(index + fence.len())) {
        let name = before.rsplit("rite `").next().unwrap().split('`').next().unwrap();
        project.write(name, after.split("```").next().unwrap());
    }
}

#[test]
fn commands_of_the_tutorial_work_when_typed() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tutorials/first-step.md");
    let page = std::fs::read_to_string(page).unwrap();
    let project = Project::empty();
    let programs = std::path::Path::new(env!("CARGO_BIN_EXE_muster")).parent().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths(std::iter::once(programs.to_owned()).chain(std::env::split_paths(&path))).unwrap();
    for part in page.split("\n## ") {
        write_files(&project, part);
        for step in steps(part) {
            let mut shell = project.shell(&step.command);
            shell.env("PATH", &path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
            let mut child = shell.spawn().unwrap();
            let typed = step.output.iter().filter_map(|line| line.strip_prefix(PROMPT));
            let typed: String = typed.map(|line| format!("{line}\n")).collect();
            child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
            let ended = child.wait_with_output().unwrap();
            let output = String::from_utf8(ended.stdout).unwrap().replace(PROMPT, "");
            // Some commands fail on purpose; the tutorial then shows their output.
            assert!(ended.status.success() || !step.output.is_empty(), "$ {}\n{output}", step.command);
            let shown: Vec<String> = step.output.iter().filter(|line| !line.starts_with(PROMPT)).cloned().collect();
            assert!(
                step.output.is_empty() || matches_expected(&output, &shown),
                "$ {}\n--- shown in the tutorial:\n{}\n--- actual output:\n{output}",
                step.command,
                shown.join("\n")
            );
        }
    }
}
