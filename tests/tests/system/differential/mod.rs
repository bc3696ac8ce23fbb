//! Compares Muster with gitlab-runner v16.6.0. Both run the same payloads with the same coordinator and the same `config.toml`. The
//! comparison covers state, failure reason, exit code, artifacts and trace.
//!
//! ```text
//! differential/cases/*.toml      the payloads
//! differential/recorded/*.txt    the results of gitlab-runner, normalized
//! differential/differences.toml  the known differences with their reasons; an unused entry is an error
//! ```
//! Every test run compares Muster with the recorded results. If `MUSTER_TEST_GITLAB_RUNNER` is set, the recorded results are compared
//! with that executable. With `MUSTER_TEST_RECORD=1`, they are recorded again.

mod case;
mod normal;
mod observed;
mod runners;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use case::Case;
use runners::CaseRunner;

/// Results of the cases by name.
type Observations = BTreeMap<String, String>;

/// Returns the directory `tests/differential`.
fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("differential")
}

/// Returns the path of the recorded result of a case.
fn recorded_path(case: &str) -> PathBuf {
    directory().join("recorded").join(format!("{case}.txt"))
}

#[tokio::test(flavor = "multi_thread")]
async fn muster_matches_recorded_results_of_stock_runner() {
    let cases = Case::all(&directory().join("cases"));
    let observations = CaseRunner::new(&cases).muster().await;
    let mut table = table::Differences::read(&directory().join("differences.toml"));
    for (name, muster) in &observations {
        let stock = std::fs::read_to_string(recorded_path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        table.compare(name, &stock, muster);
    }
    let problems = table.problems();
    assert!(problems.is_empty(), "{problems}");
    println!("{} cases agree, except for the listed differences", observations.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn recording_matches_stock_runner() {
    let Some(executable) = std::env::var_os("MUSTER_TEST_GITLAB_RUNNER") else {
        println!("skipped: MUSTER_TEST_GITLAB_RUNNER is not set");
        return;
    };
    let cases = Case::all(&directory().join("cases"));
    let observations = CaseRunner::new(&cases).stock(&executable).await;
    if std::env::var_os("MUSTER_TEST_RECORD").is_some() {
        for (name, observation) in &observations {
            std::fs::write(recorded_path(name), observation).unwrap();
        }
    }
    for (name, observation) in &observations {
        let recorded = std::fs::read_to_string(recorded_path(name)).unwrap_or_default();
        assert_eq!(*observation, recorded, "{name}: set MUSTER_TEST_RECORD=1 to record again, and review the changes");
    }
}

#[test]
fn every_recording_belongs_to_a_case() {
    let cases: Vec<_> = Case::all(&directory().join("cases")).into_iter().map(|case| case.name).collect();
    assert!(cases.len() >= 60, "{} cases", cases.len());
    let mut unknown: Vec<_> =
        std::fs::read_dir(directory().join("recorded")).unwrap().map(|file| file.unwrap().path()).collect();
    unknown.retain(|file| !cases.iter().any(|case| *file == recorded_path(case)));
    assert_eq!(unknown, Vec::<PathBuf>::new(), "these files have no case");
}
