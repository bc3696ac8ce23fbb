use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_agent_api::builtin::DriverProgram;
use muster_files::Limit;
use muster_job::{TerminationCause, go_duration};
use muster_steps::failure::Failure;
use muster_steps::log::Log;
use muster_steps::process::{Command, ProcessEnd, Processes};
use muster_steps::stop::{StopToken, wait_until};

/// Exit status if the job failed (`BUILD_FAILURE_EXIT_CODE`).
pub(super) const BUILD_FAILURE: i32 = 1;
/// Exit status if the environment failed (`SYSTEM_FAILURE_EXIT_CODE`).
pub(super) const SYSTEM_FAILURE: i32 = 2;
/// Limit of the file with the job's exit code.
const EXIT_CODE_LIMIT: Limit = Limit { bytes: 4096, remedy: "write only the exit code to BUILD_EXIT_CODE_FILE" };

pub(super) struct ProgramRun<'a> {
    /// Key of the program in `[runners.custom]`.
    pub(super) key: &'static str,
    pub(super) program: &'a DriverProgram,
    /// Arguments after those of the configuration.
    pub(super) args: Vec<OsString>,
    pub(super) env: Vec<(OsString, OsString)>,
    /// Working directory, which also has the file with the exit code.
    pub(super) dir: &'a Path,
    /// File for standard output. `None` means `log`.
    pub(super) stdout: Option<Arc<File>>,
    pub(super) log: Arc<dyn Log>,
    /// Time between TERM and KILL.
    pub(super) grace: Duration,
}

impl ProgramRun<'_> {
    /// Returns the path of the file for the job's exit code.
    pub(super) fn exit_code_file(dir: &Path) -> std::path::PathBuf {
        dir.join("build_exit_code")
    }

    /// Runs the program to its end.
    ///
    /// # Errors
    /// - [`Failure::Exit`] if the program reports that the job failed.
    /// - [`Failure::Stopped`] if the job is stopped.
    /// - [`Failure::System`] if the program reports anything else, cannot be started or exceeds its timeout.
    pub(super) async fn run(self, processes: &Processes, stop: &StopToken) -> Result<(), Failure> {
        let Self { key, program, args, env, dir, stdout, log, grace } = self;
        let removed = remove_exit_code(dir).await;
        let command = Command {
            program: program.program.clone().into(),
            args: program.args.iter().map(OsString::from).chain(args).collect(),
            env,
            work_dir: Some(dir.to_owned()),
            stdout,
            ..Command::default()
        };
        let timeout = Duration::from_millis(program.timeout_ms);
        let deadline = if timeout.is_zero() { None } else { Instant::now().checked_add(timeout) };
        let own_stop = stop.child();
        let running = processes.run(command, &log, &own_stop, grace);
        let ended = own_stop.stop_on(wait_until(deadline), TerminationCause::TimedOut, running).await;
        match ended.map_err(|error| Failure::System(format!("{key} of [runners.custom]: {}", Failure::from(error))))? {
            ProcessEnd::Exited(status) => interpret(status, dir, removed).await,
            ProcessEnd::Stopped(cause) if stop.cause().is_some() => Err(Failure::Stopped(cause)),
            ProcessEnd::Stopped(_) => {
                let timeout = go_duration(timeout);
                Err(Failure::System(format!(
                    "{key} did not end within {timeout}; raise {key}_timeout in [runners.custom]"
                )))
            }
        }
    }
}

/// Removes the file of an earlier program.
async fn remove_exit_code(dir: &Path) -> Result<(), Failure> {
    let path = ProgramRun::exit_code_file(dir);
    match tokio::fs::remove_file(&path).await {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Failure::System(format!("failed to remove {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

/// Interprets an exit status. `removed` is the result of [`remove_exit_code`].
async fn interpret(status: ExitStatus, dir: &Path, removed: Result<(), Failure>) -> Result<(), Failure> {
    match status.code() {
        Some(0) => Ok(()),
        Some(BUILD_FAILURE) => {
            removed?;
            Err(Failure::Exit(exit_code(dir).await?))
        }
        Some(SYSTEM_FAILURE) => Err(Failure::System(format!("exit status {SYSTEM_FAILURE}"))),
        code => {
            let code = code.unwrap_or(-1);
            let end = Failure::from_status(status).map(|failure| failure.to_string()).unwrap_or_default();
            Err(Failure::System(format!(
                "unknown Custom executor executable exit code {code}; executable execution terminated with: {end}"
            )))
        }
    }
}

/// Returns the job's exit code from the first line of the file, or [`BUILD_FAILURE`] without a file.
async fn exit_code(dir: &Path) -> Result<i32, Failure> {
    let path = ProgramRun::exit_code_file(dir);
    let text = match muster_files::read(path.clone(), EXIT_CODE_LIMIT).await {
        Err(error) if error.is_missing() => return Ok(BUILD_FAILURE),
        read => read.map_err(|error| Failure::System(error.to_string()))?,
    };
    let first = text.lines().next().unwrap_or_default().trim();
    first.parse().map_err(|_| {
        Failure::System(format!(
            "the first line of BUILD_EXIT_CODE_FILE {} is `{first}`, which is not a valid exit code; the driver must \
             write a number",
            path.display()
        ))
    })
}
