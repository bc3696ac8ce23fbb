//! gitlab-runner v16.6.0 runs jobs of Muster's coordinator.
//!
//! `MUSTER_TEST_GITLAB_RUNNER` is the path of gitlab-runner. Without it, the tests are skipped.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use muster_tests::process::{RunningProcess, create_repository, muster};

const PIPELINE: &str = r#"
stages: [build, test, deploy]
variables:
  GREETING: hello
make:
  stage: build
  cache: {key: k, paths: [cached/]}
  script:
    - mkdir -p out cached && echo "$GREETING from $CI_JOB_NAME on $CI_COMMIT_BRANCH" > out/text && touch cached/file
    - echo "VERSION=1.2.3" > build.env
    - printf '%s' "$SECRET" > out/secret-length && echo "the secret is $SECRET"
  artifacts:
    paths: [out/]
    reports: {dotenv: build.env}
use:
  stage: test
  coverage: '/coverage is (\d+)%/'
  script:
    - test "$VERSION" = 1.2.3
    - grep -q 'hello from make on main' out/text
    - test "$(git status --porcelain --untracked-files=no)" = ""
    - echo "coverage is 87%"
  after_script:
    - echo "after $CI_JOB_STATUS"
warns:
  stage: test
  allow_failure: {exit_codes: [42]}
  script: [exit 42]
large:
  stage: test
  needs: []
  script: ['head -c 3000000 /dev/zero | tr "\0" x | fold -w 100']
last:
  stage: deploy
  script: [exit 7]
"#;

/// Returns `MUSTER_TEST_GITLAB_RUNNER`, or reports that the test is skipped.
pub(crate) fn stock_runner() -> Option<OsString> {
    let runner = std::env::var_os("MUSTER_TEST_GITLAB_RUNNER");
    if runner.is_none() {
        println!("skipped: MUSTER_TEST_GITLAB_RUNNER is not set");
    }
    runner
}

/// Returns a command whose environment has only `HOME` and `PATH`.
pub(crate) fn clean_command(program: impl AsRef<OsStr>, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("HOME", home).env("PATH", std::env::var_os("PATH").unwrap()).current_dir(home);
    command
}

/// Muster's coordinator, and a gitlab-runner that is registered there.
pub(crate) struct RegisteredRunner {
    pub(crate) home: PathBuf,
    pub(crate) project: PathBuf,
    /// Process `muster ci run --executor external`.
    pub(crate) coordinator: RunningProcess,
    pub(crate) url: String,
    /// Configuration that `register` wrote.
    pub(crate) config: PathBuf,
}

impl RegisteredRunner {
    /// Starts the coordinator with this pipeline, and registers gitlab-runner. All files are in `directory`.
    pub(crate) fn start(stock: &OsStr, directory: &Path, executor: &str, pipeline: &str) -> Self {
        let (home, project) = (directory.join("home"), directory.join("project"));
        std::fs::create_dir(&home).unwrap();
        create_repository(&project, &[(".gitlab-ci.yml", pipeline)]);
        let mut command = clean_command(muster(), &home);
        command
            .args(["ci", "run", "--executor", "external", "--output", "json", "--var", "SECRET=plain"])
            .current_dir(&project);
        let mut coordinator = RunningProcess::start(command);
        let line = coordinator.wait_for_line("the address", |line| line.contains("waiting_for_runner"));
        let waiting: Value = serde_json::from_str(&line).unwrap();
        let (url, token) = (waiting["url"].as_str().unwrap(), waiting["registration_token"].as_str().unwrap());
        let config = home.join("config.toml");
        let mut register = clean_command(stock, &home);
        register.args(["register", "--non-interactive", "--executor", executor, "--shell", "bash", "--name", "peer"]);
        register.args(["--url", url, "--registration-token", token, "--config"]).arg(&config);
        let output = register.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { url: url.to_owned(), home, project, coordinator, config }
    }

    pub(crate) fn run(&self, stock: &OsStr) -> RunningProcess {
        let mut run = clean_command(stock, &self.home);
        run.args(["run", "--config"]).arg(&self.config).arg("--working-directory").arg(&self.home);
        RunningProcess::start(run)
    }

    pub(crate) fn show(home: &Path, project: &Path, arguments: &[&str]) -> String {
        let mut command = clean_command(muster(), home);
        let output = command.args(["ci", "show", "1"]).args(arguments).current_dir(project).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn stock_runner_registers_runs_jobs_and_uploads_results() {
    let Some(stock) = stock_runner() else { return };
    let directory = tempfile::tempdir().unwrap();
    let registered = RegisteredRunner::start(&stock, directory.path(), "shell", PIPELINE);
    let config = &registered.config;
    let text = std::fs::read_to_string(config).unwrap();
    std::fs::write(
        config,
        text.replace("concurrent = 1", "concurrent = 3").replace("check_interval = 0", "check_interval = 1"),
    )
    .unwrap();
    let runner = registered.run(&stock);
    let RegisteredRunner { home, project, coordinator, .. } = registered;

    let (lines, status) = coordinator.finish();
    drop(runner);
    println!("{}", lines.join("\n"));
    assert_eq!(status, Some(1), "the last job fails");
    let last: Value = lines.iter().rev().find_map(|line| serde_json::from_str(line).ok()).unwrap();
    let job = |name: &str| last["jobs"].as_array().unwrap().iter().find(|job| job["name"] == name).unwrap().clone();
    for (name, state) in
        [("make", "success"), ("use", "success"), ("large", "success"), ("warns", "failed"), ("last", "failed")]
    {
        assert_eq!(job(name)["status"], state, "{name}");
    }
    assert_eq!(job("use")["coverage"], 87.0);
    assert_eq!((job("warns")["exit_code"].as_i64(), job("last")["exit_code"].as_i64()), (Some(42), Some(7)));
    assert_eq!(job("last")["failure_reason"], "script_failure");

    let show = |arguments: &[&str]| RegisteredRunner::show(&home, &project, arguments);
    assert!(show(&["use"]).contains("after success"), "{}", show(&["use"]));
    let line = "x".repeat(100);
    assert_eq!(show(&["large", "--log"]).lines().filter(|shown| *shown == line).count(), 30_000);
    let extracted = directory.path().join("extracted");
    show(&["make", "--extract", extracted.to_str().unwrap()]);
    let artifact = files_below(&extracted)
        .into_iter()
        .find(|path| path.ends_with("out/text"))
        .expect("out/text is in the archive");
    assert_eq!(std::fs::read_to_string(artifact).unwrap(), "hello from make on main\n");
}

fn files_below(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() { found.extend(files_below(&path)) } else { found.push(path) }
    }
    found
}
