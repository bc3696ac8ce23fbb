//! `muster step-runner ci`: runs the list of steps in the environment variable `STEPS`.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;

use muster_steps::definition::{StepFile, parse_list};

use super::execute::{Execution, execute};
use super::results::{ResultsArgs, ResultsFile};

/// Prefixes of the environment variables that are variables of the job.
const JOB_VARIABLE_PREFIXES: [&str; 3] = ["CI_", "GITLAB_", "DOCKER_"];

/// Environment variables that the processes of the steps inherit.
const INHERITED: [&str; 17] = [
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "NO_PROXY",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// Arguments of `muster step-runner ci`.
#[derive(Debug, clap::Args)]
pub(super) struct CiArgs {
    #[command(flatten)]
    results: ResultsArgs,
}

#[derive(Debug, thiserror::Error)]
enum CiError {
    #[error("the environment variable STEPS is not set; set it to a list of steps, in YAML or JSON")]
    NoSteps,
    #[error("the environment variable {0} is not valid UTF-8; correct its value")]
    NotUtf8(&'static str),
    #[error("reading STEPS: {0}")]
    Steps(#[from] muster_steps::definition::StepFileError),
    #[error("failed to read the path of the working directory; set CI_PROJECT_DIR: {0}")]
    WorkDir(std::io::Error),
}

pub(super) fn run(args: &CiArgs) -> ExitCode {
    super::print_version();
    let results = args.results.is_requested().then(ResultsFile::default);
    match execution() {
        Ok(execution) => execute(execution, results.as_ref()),
        Err(error) => super::fail(error),
    }
}

fn execution() -> Result<Execution, CiError> {
    let text = variable("STEPS")?.ok_or(CiError::NoSteps)?;
    let file = StepFile::of_list(parse_list(&text)?);
    let work_dir = match variable("CI_PROJECT_DIR")? {
        Some(dir) => std::path::absolute(PathBuf::from(dir)),
        None => std::env::current_dir(),
    };
    Ok(Execution {
        file,
        work_dir: work_dir.map_err(CiError::WorkDir)?,
        variables: std::env::vars_os()
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(key, _)| JOB_VARIABLE_PREFIXES.iter().any(|prefix| key.starts_with(prefix)))
            .collect(),
        is_inherited: |key: &OsStr| INHERITED.iter().any(|name| key == *name),
    })
}

/// Returns the value of an environment variable. `None` means that it is unset or empty.
fn variable(name: &'static str) -> Result<Option<String>, CiError> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    value.map(|value| value.into_string().map_err(|_| CiError::NotUtf8(name))).transpose()
}
