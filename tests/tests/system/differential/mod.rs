//! Compares Muster with gitlab-runner v16.6.0: state, failure reason, exit code, artifacts and trace of jobs.
//!
//! Both run the same payloads with the same coordinator and the same `config.toml`.
//!
//! ```text
//! differential/<executor>/cases/*.toml      the payloads
//! differential/<executor>/recorded/*.txt    the results of gitlab-runner, normalized
//! differential/<executor>/differences.toml  the known differences with their reasons; an unused entry is an error
//! ```
//! Every test run compares Muster with the recorded results. If `MUSTER_TEST_GITLAB_RUNNER` is the path of
//! gitlab-runner, the tests also run it and compare its results with the recorded results. For containers, this also
//! requires `MUSTER_TEST_GITLAB_RUNNER_HELPER`, the path of its helper program. `MUSTER_TEST_RECORD=1` replaces the
//! recorded results.

mod case;
mod docker;
mod normal;
mod observed;
mod runners;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use case::Case;
use docker::Docker;
use runners::{CaseRunner, Executor};

/// Results of the cases by name.
type Observations = BTreeMap<String, String>;

struct Suite {
    executor: Executor,
    cases: Vec<Case>,
}

impl Suite {
    fn new(executor: Executor) -> Self {
        let cases = Case::all(&directory(executor.name()).join("cases"));
        Self { executor, cases }
    }

    fn recorded_path(&self, case: &str) -> PathBuf {
        directory(self.executor.name()).join("recorded").join(format!("{case}.txt"))
    }

    /// Returns the lines of a result. For containers, sorts them: gitlab-runner reads stdout and stderr of a container
    /// separately, so their relative order varies.
    fn comparable<'a>(&self, observation: &'a str) -> Vec<&'a str> {
        let mut lines: Vec<&str> = observation.lines().collect();
        if matches!(self.executor, Executor::Docker(_)) {
            lines.sort_unstable();
        }
        lines
    }

    async fn compare_muster(&self) {
        let observations = CaseRunner::new(&self.cases, &self.executor).run_muster().await;
        let mut table = table::Differences::read(&directory(self.executor.name()).join("differences.toml"));
        for (name, muster) in &observations {
            let stock = std::fs::read_to_string(self.recorded_path(name));
            table.compare(name, &stock.unwrap_or_else(|error| panic!("{name}: {error}")), muster);
        }
        let problems = table.problems();
        assert!(problems.is_empty(), "{problems}");
        println!("{} cases agree, except for the listed differences", observations.len());
    }

    async fn compare_recording(&self) {
        let Some(executable) = std::env::var_os("MUSTER_TEST_GITLAB_RUNNER") else {
            println!("skipped: MUSTER_TEST_GITLAB_RUNNER is not set");
            return;
        };
        let observations = CaseRunner::new(&self.cases, &self.executor).run_stock(&executable).await;
        if std::env::var_os("MUSTER_TEST_RECORD").is_some() {
            for (name, observation) in &observations {
                std::fs::write(self.recorded_path(name), observation).unwrap();
            }
        }
        for (name, observation) in &observations {
            let recorded = std::fs::read_to_string(self.recorded_path(name)).unwrap_or_default();
            let (found, expected) = (self.comparable(observation), self.comparable(&recorded));
            assert_eq!(found, expected, "{name}: set MUSTER_TEST_RECORD=1 to record again, and review the changes");
        }
    }
}

fn directory(executor: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("differential").join(executor)
}

#[tokio::test(flavor = "multi_thread")]
async fn muster_matches_recorded_results_of_stock_runner() {
    Suite::new(Executor::Shell).compare_muster().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn muster_matches_recorded_results_of_stock_runner_in_containers() {
    let Some(docker) = Docker::start() else { return };
    Suite::new(Executor::Docker(docker)).compare_muster().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recording_matches_stock_runner() {
    Suite::new(Executor::Shell).compare_recording().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recording_matches_stock_runner_in_containers() {
    let Some(helper) = std::env::var_os("MUSTER_TEST_GITLAB_RUNNER_HELPER") else {
        println!("skipped: MUSTER_TEST_GITLAB_RUNNER_HELPER is not set");
        return;
    };
    let Some(docker) = Docker::start() else { return };
    docker.create_helper_image(Path::new(&helper));
    Suite::new(Executor::Docker(docker)).compare_recording().await;
}

#[test]
fn every_recording_belongs_to_a_case() {
    // Detects that cases were lost.
    for (executor, min_cases) in [("shell", 60), ("docker", 85)] {
        let cases: Vec<_> = Case::all(&directory(executor).join("cases"))
            .into_iter()
            .map(|case| format!("{}.txt", case.name))
            .collect();
        assert!(cases.len() >= min_cases, "{} cases of {executor}", cases.len());
        let files = std::fs::read_dir(directory(executor).join("recorded")).unwrap();
        let mut unknown: Vec<_> = files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned()).collect();
        unknown.retain(|file| !cases.contains(file));
        assert_eq!(unknown, Vec::<String>::new(), "each recording must have a case");
    }
}
