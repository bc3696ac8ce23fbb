//! `muster step test`: unit tests of steps.
//!
//! ```text
//! test files --file--> cases --suite--> runs at one agent, in parallel --check--> mismatches --report--> text, JUnit
//! ```

mod check;
mod file;
mod report;
mod suite;

use std::path::PathBuf;
use std::process::ExitCode;

use muster_job::error_chain;

use super::run::CommandError;
use file::{Case, TestFileError};

/// Exit code if the tests could not be run, or if their report could not be written.
const UNTESTED_EXIT_CODE: u8 = 2;

/// Arguments of `muster step test`.
#[derive(Debug, clap::Args)]
pub(crate) struct TestArgs {
    /// Test files, or directories that are searched for files named step_test.yml and func_test.yml. Defaults to the current directory.
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Run only tests whose file or name contains this text.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Maximum number of tests that run at once. Defaults to the number of processors.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// File for a report as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
enum TestError {
    #[error(transparent)]
    File(#[from] TestFileError),
    #[error("found no tests; write a file step_test.yml beside the step, or name a test file")]
    NoTests,
    #[error("no test matches --filter {filter:?}; the tests are:\n  {}", titles.join("\n  "))]
    NoMatch { filter: String, titles: Vec<String> },
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("failed to write the report to {}", path.display())]
    Report { path: PathBuf, source: std::io::Error },
}

/// Returns exit code 1 if a test fails, and 2 after any other error.
pub(super) fn run(args: TestArgs) -> ExitCode {
    crate::runtime::block_on(async {
        match Box::pin(test(args)).await {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                super::fail(error_chain(&error));
                ExitCode::from(UNTESTED_EXIT_CODE)
            }
        }
    })
}

/// Returns whether all tests have passed.
async fn test(args: TestArgs) -> Result<bool, TestError> {
    let mut cases = file::find(&args.paths)?;
    if cases.is_empty() {
        return Err(TestError::NoTests);
    }
    if let Some(filter) = args.filter {
        let titles: Vec<String> = cases.iter().map(Case::title).collect();
        cases.retain(|case| case.title().contains(&filter));
        if cases.is_empty() {
            return Err(TestError::NoMatch { filter, titles });
        }
    }
    let jobs = args.jobs.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    report::print_start(cases.len());
    let started = std::time::Instant::now();
    let verdicts = suite::run(cases, jobs, report::print_verdict).await?;
    let has_passed = report::print_summary(&verdicts, started.elapsed());
    if let Some(path) = args.junit {
        let report = report::junit(&verdicts);
        std::fs::write(&path, report).map_err(|source| TestError::Report { path, source })?;
    }
    Ok(has_passed)
}
