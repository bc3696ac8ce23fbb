//! Test files: their format, and where they are found.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use indexmap::IndexMap;
use muster_agent_api::development::FakeStep;
use muster_agent_api::result::StepStatus;
use regex::Regex;
use serde::Deserialize;
use serde_json::{Map, Value};
use serde_saphyr::Spanned;
use walkdir::{DirEntry, WalkDir};

/// Names of the files that a search finds.
const FILE_NAMES: [&str; 2] = ["step_test.yml", "func_test.yml"];
const DEFAULT_TIMEOUT_S: u64 = 300;

#[derive(Debug, thiserror::Error)]
pub(super) enum TestFileError {
    #[error("failed to read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("failed to search for tests")]
    Search(#[from] walkdir::Error),
    #[error("{}:{line}: {message}", path.display())]
    Invalid { path: PathBuf, line: u64, message: String },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TestFile {
    tests: Vec<Spanned<Test>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Test {
    pub(super) name: String,
    /// Step to test: a path relative to the test file, or a reference. Defaults to the directory of the test file.
    #[serde(default = "default_step")]
    pub(super) step: String,
    #[serde(default)]
    pub(super) inputs: Map<String, Value>,
    /// Environment variables of the step.
    #[serde(default)]
    pub(super) env: IndexMap<String, String>,
    /// Variables of the job.
    #[serde(default)]
    pub(super) variables: IndexMap<String, String>,
    /// Contents of files in the working directory, by their relative paths.
    #[serde(default)]
    pub(super) files: IndexMap<String, String>,
    /// Steps that replace called steps.
    #[serde(default)]
    pub(super) fakes: Vec<FakeStep>,
    #[serde(default = "default_timeout")]
    pub(super) timeout_s: u64,
    #[serde(default)]
    pub(super) expect: Expectations,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Expectations {
    pub(super) status: ExpectedStatus,
    pub(super) exit_code: Option<Spanned<i32>>,
    /// Pattern for the error of the step.
    pub(super) error: Option<Spanned<String>>,
    pub(super) outputs: IndexMap<String, Spanned<Value>>,
    /// Variables that the step exports.
    pub(super) exports: IndexMap<String, Spanned<String>>,
    /// Patterns that must match the log.
    pub(super) log: Vec<Spanned<String>>,
    /// Patterns that must not match the log.
    pub(super) log_excludes: Vec<Spanned<String>>,
    pub(super) files: IndexMap<String, Spanned<ExpectedFile>>,
    /// Inner steps.
    pub(super) steps: Vec<Spanned<ExpectedStep>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ExpectedStatus {
    #[default]
    Success,
    Failure,
}

impl ExpectedStatus {
    pub(super) fn matches(self, status: StepStatus) -> bool {
        (self == Self::Success) == (status == StepStatus::Success)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectedFile {
    /// Whether the file must exist.
    #[serde(default = "yes")]
    pub(super) exists: bool,
    /// Exact content.
    pub(super) content: Option<String>,
    pub(super) matches: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectedStep {
    /// Name of the step, or the end of its path.
    pub(super) step: String,
    pub(super) status: Option<ExpectedStatus>,
    /// Inputs with which the step was called, after their expressions were evaluated.
    #[serde(default)]
    pub(super) inputs: IndexMap<String, Spanned<Value>>,
    #[serde(default)]
    pub(super) outputs: IndexMap<String, Spanned<Value>>,
    #[serde(default)]
    pub(super) env: IndexMap<String, Spanned<String>>,
    /// Whether the step must have been called.
    #[serde(default = "yes")]
    pub(super) called: bool,
}

fn default_step() -> String {
    ".".to_owned()
}

fn default_timeout() -> u64 {
    DEFAULT_TIMEOUT_S
}

fn yes() -> bool {
    true
}

/// Test with its position in a test file.
#[derive(Debug, Clone)]
pub(super) struct Case {
    /// Path of the file, as the user gave it or as the search found it.
    pub(super) path: Arc<Path>,
    pub(super) line: u64,
    pub(super) test: Arc<Test>,
}

impl Case {
    pub(super) fn title(&self) -> String {
        format!("{}: {}", self.path.display(), self.test.name)
    }
}

/// Returns the tests in these files, and in the test files below these directories. Defaults to the current directory.
pub(super) fn find(paths: &[PathBuf]) -> Result<Vec<Case>, TestFileError> {
    let current = [PathBuf::from(".")];
    let mut cases = Vec::new();
    for path in if paths.is_empty() { &current } else { paths } {
        if !path.is_dir() {
            cases.extend(read(path)?);
            continue;
        }
        let is_visible =
            |entry: &DirEntry| entry.depth() == 0 || !entry.file_name().as_encoded_bytes().starts_with(b".");
        for entry in WalkDir::new(path).sort_by_file_name().into_iter().filter_entry(is_visible) {
            let entry = entry?;
            if entry.file_type().is_file() && FILE_NAMES.iter().any(|name| entry.file_name() == *name) {
                let path = entry.path().strip_prefix("./").unwrap_or(entry.path());
                cases.extend(read(path)?);
            }
        }
    }
    Ok(cases)
}

fn read(path: &Path) -> Result<Vec<Case>, TestFileError> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|source| TestFileError::Read { path: path.to_owned(), source })?;
    let invalid = |line, message| TestFileError::Invalid { path: path.to_owned(), line, message };
    let file: TestFile = serde_saphyr::from_str(&text).map_err(|error| {
        let line = error.location().map_or(1, |location| location.line());
        invalid(line, muster_job::error_chain(error.without_snippet()))
    })?;
    let path: Arc<Path> = path.into();
    let mut cases: Vec<Case> = Vec::with_capacity(file.tests.len());
    for Spanned { value: test, referenced, .. } in file.tests {
        let line = referenced.line();
        if let Some(other) = cases.iter().find(|case| case.test.name == test.name) {
            let message =
                format!("the name {:?} is used twice, also on line {}; rename one test", test.name, other.line);
            return Err(invalid(line, message));
        }
        test.check_patterns().map_err(|(line, message)| invalid(line, message))?;
        cases.push(Case { path: Arc::clone(&path), line, test: Arc::new(test) });
    }
    Ok(cases)
}

impl Test {
    /// Checks all patterns, so that a typo is not reported as a failed test.
    fn check_patterns(&self) -> Result<(), (u64, String)> {
        let Expectations { error, log, log_excludes, files, .. } = &self.expect;
        let texts =
            error.iter().chain(log).chain(log_excludes).map(|text| (text.referenced.line(), text.value.as_str()));
        let files = files.values();
        let files = files.filter_map(|file| Some((file.referenced.line(), file.value.matches.as_deref()?)));
        for (line, pattern) in texts.chain(files) {
            self::pattern(pattern).map_err(|error| (line, format!("{pattern:?} is not a valid pattern: {error}")))?;
        }
        Ok(())
    }
}

/// Compiles a pattern. `^` and `$` match at line breaks.
pub(super) fn pattern(text: &str) -> Result<Regex, regex::Error> {
    regex::RegexBuilder::new(text).multi_line(true).build()
}
