//! gitlab-runner v16.6.0 runs jobs of Muster's coordinator.
//!
//! `MUSTER_TEST_GITLAB_RUNNER` is the path of its executable. If it is not set, the tests are skipped.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use muster_tests::process::{Running, muster, repository};

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

/// Returns `MUSTER_TEST_GITLAB_RUNNER`, or prints why the test is skipped.
pub(crate) fn stock_runner() -> Option<OsString> {
    let runner = std::env::var_os("MUSTER_TEST_GITLAB_RUNNER");
    if runner.is_none() {
        println!("skipped: MUSTER_TEST_GITLAB_RUNNER does not name a gitlab-runner");
    }
    runner
}

pub(crate) fn clean(program: impl AsRef<OsStr>, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("HOME", home).env("PATH", std::env::var_os("PATH").unwrap()).current_dir(home);
    command
}

/// Muster's coordinator, and a gitlab-runner that is registered there.
pub(crate) struct Registered {
    pub(crate) home: PathBuf,
    pub(crate) project: PathBuf,
    /// Process `muster ci run --executor external`.
    pub(crate) coordinator: Running,
    pub(crate) url: String,
    /// Configuration that `register` wrote.
    pub(crate) config: PathBuf,
}

impl Registered {
    /// Starts both in the directory `place`, with a repository that contains this pipeline.
    pub(crate) fn start(peer: &OsStr, place: &Path, executor: &str, pipeline: &str) -> Self {
        let (home, project) = (place.join("home"), place.join("project"));
        std::fs::create_dir(&home).unwrap();
        repository(&project, &[(".gitlab-ci.yml", pipeline)]);
        let mut ours = clean(muster(), &home);
        ours.args(["ci", "run", "--executor", "external", "--output", "json", "--var", "SECRET=plain"])
            .current_dir(&project);
        let mut coordinator = Running::start(ours);
        let line = coordinator.line("the address", |line| line.contains("waiting_for_runner"));
        let waiting: Value = serde_json::from_str(&line).unwrap();
        let (url, token) = (waiting["url"].as_str().unwrap(), waiting["registration_token"].as_str().unwrap());
        let config = home.join("config.toml");
        let mut register = clean(peer, &home);
        register.args(["register", "--non-interactive", "--executor", executor, "--shell", "bash", "--name", "peer"]);
        register.args(["--url", url, "--registration-token", token, "--config"]).arg(&config);
        let output = register.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { url: url.to_owned(), home, project, coordinator, config }
    }

    /// Starts gitlab-runner.
    pub(crate) fn run(&self, peer: &OsStr) -> Running {
        let mut run = clean(peer, &self.home);
        run.args(["run", "--config"]).arg(&self.config).arg("--working-directory").arg(&self.home);
        Running::start(run)
    }

    /// Returns the output of `muster ci show` for the run.
    pub(crate) fn show(home: &Path, project: &Path, arguments: &[&str]) -> String {
        let mut command = clean(muster(), home);
        let output = command.args(["ci", "show", "1"]).args(arguments).current_dir(project).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn a_stock_runner_registers_takes_jobs_and_uploads_traces_and_artifacts() {
    let Some(peer) = stock_runner() else { return };
    let place = tempfile::tempdir().unwrap();
    let world = Registered::start(&peer, place.path(), "shell", PIPELINE);
    let config = &world.config;
    let text = std::fs::read_to_string(config).unwrap();
    std::fs::write(
        config,
        text.replace("concurrent = 1", "concurrent = 3").replace("check_interval = 0", "check_interval = 1"),
    )
    .unwrap();
    let runner = world.run(&peer);
    let Registered { home, project, coordinator, .. } = world;

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

    let show = |arguments: &[&str]| Registered::show(&home, &project, arguments);
    assert!(show(&["use"]).contains("after success"), "{}", show(&["use"]));
    let line = "x".repeat(100);
    assert_eq!(show(&["large", "--log"]).lines().filter(|shown| *shown == line).count(), 30_000);
    let extracted = place.path().join("extracted");
    show(&["make", "--extract", extracted.to_str().unwrap()]);
    let artifact =
        walk(&extracted).into_iter().find(|path| path.ends_with("out/text")).expect("out/text is in the archive");
    assert_eq!(std::fs::read_to_string(artifact).unwrap(), "hello from make on main\n");
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() { found.extend(walk(&path)) } else { found.push(path) }
    }
    found
}
