//! Runs the commands of the tutorial as a reader would type them, and compares their output with the output in the tutorial.

use std::process::Command;

use super::Project;

const OUTPUT_SEPARATOR: &str = "@@@ next command";

pub(crate) struct Step {
    pub(crate) command: String,
    /// Lines that the tutorial shows below the command.
    pub(crate) output: Vec<String>,
}

pub(crate) fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for block in page.split("```console\n").skip(1) {
        for line in block.split("```").next().unwrap().lines() {
            match line.strip_prefix("$ ") {
                Some(command) => steps.push(Step { command: command.to_owned(), output: Vec::new() }),
                None => steps.last_mut().unwrap().output.push(line.to_owned()),
            }
        }
    }
    steps
}

/// Replaces what differs between runs: times, commits, and the column widths that depend on them.
fn normalized(line: &str) -> String {
    let word = |word: &str| {
        let bare = word.trim_matches(['(', ')', ':', ',']);
        let is_time = bare.ends_with('s') && bare.starts_with(|c: char| c.is_ascii_digit());
        let is_commit = bare.len() == 8 && bare.chars().all(|c| c.is_ascii_hexdigit());
        if is_time || is_commit { word.replace(bare, "_") } else { word.to_owned() }
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

/// Returns whether the output consists of these lines, in order. `...` matches any lines.
pub(crate) fn matches_expected(output: &str, expected: &[String]) -> bool {
    // Without a terminal, the start of a job is printed as an extra line.
    let mut output =
        output.lines().filter(|line| !line.starts_with('…')).map(normalized).filter(|line| !line.is_empty());
    let mut skips = false;
    for line in expected.iter().map(|line| normalized(line)).filter(|line| !line.is_empty()) {
        if line == "..." {
            skips = true;
        } else if skips {
            if !output.any(|found| found == line) {
                return false;
            }
            skips = false;
        } else if output.next().as_deref() != Some(&*line) {
            return false;
        }
    }
    skips || output.next().is_none()
}

#[test]
fn tutorial_output_is_current() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tutorials/first-pipeline.md"));
    let page = page.unwrap();
    let configuration = page.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let steps = steps(&page);
    let mut script = String::new();
    for step in &steps {
        let write = if step.command.starts_with("git add") { "cp ../ci.yml .gitlab-ci.yml\n" } else { "" };
        script.push_str(&format!("{write}{} </dev/null\necho '{OUTPUT_SEPARATOR}'\n", step.command));
    }
    // The project provides only the reader's home directory and environment.
    let project = Project::empty();
    let directory = project.path().parent().unwrap().to_owned();
    std::fs::write(directory.join("ci.yml"), configuration).unwrap();
    let ci = project.command(&[]);
    let programs = std::path::Path::new(ci.get_program()).parent().unwrap();
    let path = std::env::join_paths(
        std::iter::once(programs.to_owned()).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec 2>&1\n{script}")]).current_dir(&directory).env_clear();
    shell.envs(ci.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("PATH", path.unwrap());
    for role in ["AUTHOR", "COMMITTER"] {
        shell.env(format!("GIT_{role}_NAME"), "Ada").env(format!("GIT_{role}_EMAIL"), "ada@example.org");
    }
    let output = shell.output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let outputs: Vec<_> = output.split(&format!("{OUTPUT_SEPARATOR}\n")).collect();
    assert_eq!(outputs.len(), steps.len() + 1, "{output}");
    for (step, output) in steps.iter().zip(outputs) {
        assert!(!output.contains("error:"), "$ {}\n{output}", step.command);
        assert!(
            step.output.is_empty() || matches_expected(output, &step.output),
            "$ {}\n--- shown in the tutorial:\n{}\n--- actual output:\n{output}",
            step.command,
            step.output.join("\n")
        );
    }
}
