//! The pipelines in `examples/`, each run as a reader would: copied, committed, and run with `muster ci`.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A copy of an example in its own repository, with its own home directory.
struct Example {
    directory: TempDir,
}

impl Example {
    fn new(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let source = root().join("examples").join(name);
        assert!(source.is_dir(), "no example {name}");
        let copied =
            Command::new("cp").arg("-R").arg(&source).arg(directory.path().join("project")).status().unwrap().success();
        assert!(copied);
        let example = Self { directory };
        example.git(&["init", "-q", "-b", "main"]);
        example.git(&["add", "-A"]);
        example.git(&["commit", "-q", "-m", "first"]);
        example
    }

    fn project(&self) -> PathBuf {
        self.directory.path().join("project")
    }

    fn git(&self, arguments: &[&str]) {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]).args(arguments);
        assert!(git.current_dir(self.project()).status().unwrap().success(), "git {arguments:?}");
    }

    fn run(&self, arguments: &[&str]) -> (Vec<serde_json::Value>, bool) {
        let home = self.directory.path().join("home");
        let output = Command::new(env!("CARGO_BIN_EXE_muster"))
            // With the default executor, a machine with an engine would pull the images of the examples.
            .args(["ci", "run", "--executor", "host", "--output", "json"])
            .args(arguments)
            .current_dir(self.project())
            .env("HOME", &home)
            .env_remove("XDG_STATE_HOME")
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_CACHE_HOME")
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
        if !output.status.success() {
            println!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
        }
        (lines, output.status.success())
    }

    fn passed_jobs(&self, arguments: &[&str]) -> Vec<String> {
        let (lines, passed) = self.run(arguments);
        assert!(passed);
        let mut names: Vec<String> = lines
            .iter()
            .filter(|line| line["event"] == "job" && line["status"] == "success")
            .map(|line| line["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[track_caller]
fn has(command: &str) -> bool {
    muster_test_prerequisites::program(command, "--version", command)
}

#[test]
fn node_example_passes() {
    if has("node") {
        assert_eq!(Example::new("node").passed_jobs(&[]), ["bundle", "smoke", "unit"]);
    }
}

#[test]
fn python_example_has_matrix_dotenv_and_coverage() {
    if !has("python3") {
        return;
    }
    let (lines, passed) = Example::new("python").run(&[]);
    assert!(passed);
    let success_event = |name: &str| {
        lines.iter().find(|line| line["event"] == "job" && line["name"] == name && line["status"] == "success")
    };
    for name in ["unit: [EUR, 0]", "unit: [EUR, 2]", "unit: [USD, 0]", "unit: [USD, 2]", "summary"] {
        assert!(success_event(name).is_some(), "{name}");
    }
    assert_eq!(success_event("coverage").unwrap()["coverage"], 100.0);
}

#[test]
fn child_pipelines_example_passes() {
    let names = Example::new("children").passed_jobs(&[]);
    assert_eq!(names, ["build-search", "build-shop", "builds", "checks", "done", "generate", "source"]);
}

#[test]
fn monorepo_example_runs_only_changed_parts() {
    let example = Example::new("monorepo");
    std::fs::write(example.project().join("api/openapi.json"), r#"{"openapi":"3.1.1"}"#).unwrap();
    example.git(&["commit", "-q", "-a", "-m", "a newer interface"]);
    let names = example.passed_jobs(&["--changed-since", "HEAD~1"]);
    assert_eq!(names, ["overview", "package-api", "test-api"]);
}

#[test]
fn pipeline_of_this_repository_runs_the_suite_only_on_merge_requests() {
    let list = |event: &str| {
        let home = tempfile::tempdir().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_muster"))
            .args(["ci", "list", "--output", "json", "--event", event])
            .current_dir(root())
            .env("HOME", home.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let push = list("push");
    assert!(push.contains("\"format\"") && !push.contains("\"suite\""), "{push}");
    assert!(list("merge_request_event").contains("\"suite\""));
}
