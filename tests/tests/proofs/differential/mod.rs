//! gitlab-runner v16.6.0 and Muster run the same payloads with the same coordinator and the same `config.toml`. Then the results are
//! compared: state, failure reason, exit code, artifacts and trace.
//!
//! ```text
//! differential/cases/*.toml      the payloads
//! differential/recorded/*.txt    what the stock runner made of them: our own observations, normalised
//! differential/differences.toml  where Muster differs, each with its reason; an entry that nothing needs is an error
//! ```
//! Muster is compared with the recording on every run. With `MUSTER_TEST_GITLAB_RUNNER` the recording itself is checked
//! against that binary, and renewed with `MUSTER_TEST_RECORD=1` beside it.

mod case;
mod normal;
mod observed;
mod runners;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use case::Case;
use runners::World;

/// Results of the cases by name.
type Observations = BTreeMap<String, String>;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("differential")
}

fn recorded(case: &str) -> PathBuf {
    folder().join("recorded").join(format!("{case}.txt"))
}

#[tokio::test(flavor = "multi_thread")]
async fn muster_does_what_the_stock_runner_was_seen_to_do() {
    let cases = Case::all(&folder().join("cases"));
    let seen = World::new(&cases).muster().await;
    let mut table = table::Differences::read(&folder().join("differences.toml"));
    for (name, ours) in &seen {
        let theirs = std::fs::read_to_string(recorded(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        table.compare(name, &theirs, ours);
    }
    let problems = table.problems();
    assert!(problems.is_empty(), "{problems}");
    println!("{} cases agree, but for the differences that are listed", seen.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recording_is_what_the_stock_runner_does() {
    let Some(peer) = std::env::var_os("MUSTER_TEST_GITLAB_RUNNER") else {
        println!("skipped: MUSTER_TEST_GITLAB_RUNNER does not name a gitlab-runner");
        return;
    };
    let cases = Case::all(&folder().join("cases"));
    let seen = World::new(&cases).stock(&peer).await;
    if std::env::var_os("MUSTER_TEST_RECORD").is_some() {
        for (name, observation) in &seen {
            std::fs::write(recorded(name), observation).unwrap();
        }
    }
    for (name, observation) in &seen {
        let kept = std::fs::read_to_string(recorded(name)).unwrap_or_default();
        assert_eq!(*observation, kept, "{name}: record it again, and read what has changed");
    }
}

#[test]
fn the_recording_has_the_cases_and_no_more() {
    let cases: Vec<_> = Case::all(&folder().join("cases")).into_iter().map(|case| case.name).collect();
    assert!(cases.len() >= 60, "{} cases", cases.len());
    let mut files: Vec<_> =
        std::fs::read_dir(folder().join("recorded")).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| !cases.iter().any(|case| *file == recorded(case)));
    assert_eq!(files, Vec::<PathBuf>::new(), "recordings of no case");
}
