//! `muster step-runner serve`: serves the gRPC API until a signal, or the end of a command, stops it.

use std::ffi::OsString;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, Stdio};
use std::time::Duration;

use muster_agent::TcpOptions;
use muster_steps::process::Containment;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::helper::RECOVERED_ARGUMENTS;
use crate::agent::ListenArgs;

/// Time to keep a finished job that no client closes.
const RETENTION: Duration = Duration::from_secs(24 * 3600);
/// Maximum size of the logs of all jobs together, in bytes.
const SPOOL_LIMIT: u64 = 16 << 30;
/// Environment variable that tells the command the path of the socket.
const SOCKET_VARIABLE: &str = "STEP_RUNNER_SOCKET";

/// Arguments of `muster step-runner serve`.
#[derive(Debug, clap::Args)]
pub(super) struct ServeArgs {
    /// Directory for the socket `step-runner.sock`. Defaults to the directory for temporary files.
    #[arg(value_name = "DIR")]
    dir: Option<OsString>,
    #[command(flatten)]
    listen: ListenArgs,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    #[error("initializing step-runner: invalid empty socket dir; name a directory, or omit the argument")]
    EmptyDir,
    #[error("initializing step-runner: invalid socket dir {}; name a directory that exists", .0.display())]
    Dir(PathBuf),
    #[error("initializing step-runner: failed to create a directory for the logs in {}: {source}; set TMPDIR", dir.display())]
    Spool { dir: PathBuf, source: io::Error },
    #[error("serving step-runner: {0}")]
    Serve(String),
    #[error("failed to run {}: {source}; check that the program exists and can be executed", program.display())]
    Command { program: PathBuf, source: io::Error },
    #[error("failed to read standard input, which starts the command: {0}; check the program that writes to it")]
    Input(io::Error),
}

pub(super) fn run(args: ServeArgs) -> ExitCode {
    super::print_version();
    crate::logging::init_service();
    let served = socket(args.dir.map(PathBuf::from)).and_then(|socket| serve(socket, args.listen.options(), None));
    served.unwrap_or_else(super::fail)
}

fn socket(dir: Option<PathBuf>) -> Result<PathBuf, ServeError> {
    match dir {
        None => Ok(super::default_socket()),
        Some(dir) if dir.to_string_lossy().trim().is_empty() => Err(ServeError::EmptyDir),
        Some(dir) if dir.is_dir() => Ok(dir.join(super::SOCKET_NAME)),
        Some(dir) => Err(ServeError::Dir(dir)),
    }
}

/// Serves the API until a signal or the end of the command. Returns the exit code of an ended command, or else success.
pub(super) fn serve(
    socket: PathBuf,
    tcp: Option<TcpOptions>,
    command: Option<JobCommand>,
) -> Result<ExitCode, ServeError> {
    let spool = tempfile::Builder::new().prefix("step-runner-").tempdir();
    let spool = spool.map_err(|source| ServeError::Spool { dir: std::env::temp_dir(), source })?;
    let shutdown = CancellationToken::new();
    let (ready, server_ready) = oneshot::channel();
    let options = muster_agent::Options {
        socket,
        tcp,
        spool: spool.path().to_owned(),
        exit_with_pid: None,
        ready: Some(ready),
        only_user: None,
        retention: RETENTION,
        spool_limit: SPOOL_LIMIT,
        boot_id: muster_agent::boot_id(),
        job_nofile_limit: crate::open_files::raise(),
        idle_timeout: None,
        unattended_timeout: None,
        containment: Containment::Cgroups,
        shutdown: shutdown.clone(),
    };
    let mut result = Ok(ExitCode::SUCCESS);
    crate::runtime::block_on(async {
        let run_command = async {
            match command {
                Some(command) if server_ready.await.is_ok() => command.run().await,
                // Without a command, only a signal ends the server. If the server failed to start, `serving` returns the error.
                _ => std::future::pending().await,
            }
        };
        let mut serving = std::pin::pin!(muster_agent::serve(options));
        let (served, ended) = tokio::select! {
            served = &mut serving => (served, Ok(ExitCode::SUCCESS)),
            ended = run_command => {
                shutdown.cancel();
                (serving.await, ended)
            }
        };
        result = match served {
            Ok(()) => ended,
            Err(error) => Err(ServeError::Serve(muster_job::error_chain(&error))),
        };
        ExitCode::SUCCESS
    });
    result
}

/// Command that runs as soon as standard input has data.
#[derive(Debug)]
pub(super) struct JobCommand {
    program: OsString,
    arguments: Vec<OsString>,
    socket: PathBuf,
}

impl JobCommand {
    /// Returns `None` if there are no words.
    pub(super) fn new(words: Vec<OsString>, socket: &Path) -> Option<Self> {
        let mut words = words.into_iter();
        let program = words.next()?;
        Some(Self { program, arguments: words.collect(), socket: socket.to_owned() })
    }

    /// Runs the command at the first byte of standard input, and returns its exit code. Does not run the command if the
    /// input is empty.
    async fn run(self) -> Result<ExitCode, ServeError> {
        let program = self.program.clone();
        let (sender, started) = oneshot::channel();
        // A separate thread, because reading from standard input cannot be canceled. The thread ends with this process.
        std::thread::spawn(move || self.run_with_input(&mut io::stdin().lock(), sender));
        let started = started.await.unwrap_or_else(|_| Err(ServeError::Input(io::Error::other("the thread panicked"))));
        let Some(mut child) = started? else { return Ok(ExitCode::SUCCESS) };
        let ended = tokio::task::spawn_blocking(move || child.wait()).await.unwrap_or_else(|error| Err(error.into()));
        let status = ended.map_err(|source| ServeError::Command { program: program.into(), source })?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
    }

    /// Starts the command at the first byte of the input, and copies the input to the command.
    ///
    /// Sends the process to `started`, or `None` if the input is empty.
    fn run_with_input(&self, input: &mut impl Read, started: oneshot::Sender<Result<Option<Child>, ServeError>>) {
        let mut first = [0];
        let mut child = match input.read(&mut first) {
            Ok(0) => Ok(None),
            Ok(_) => self.start().map(Some),
            Err(error) => Err(ServeError::Input(error)),
        };
        let stdin = child.as_mut().ok().and_then(Option::as_mut).and_then(|child| child.stdin.take());
        if started.send(child).is_ok()
            && let Some(mut stdin) = stdin
        {
            // The command may end without reading its input.
            let _ = stdin.write_all(&first).and_then(|()| io::copy(input, &mut stdin).map(drop));
        }
    }

    fn start(&self) -> Result<Child, ServeError> {
        let child = std::process::Command::new(&self.program)
            .args(&self.arguments)
            .env(SOCKET_VARIABLE, &self.socket)
            .env_remove(RECOVERED_ARGUMENTS)
            .stdin(Stdio::piped())
            .spawn();
        child.map_err(|source| ServeError::Command { program: PathBuf::from(&self.program), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("device failed"))
        }
    }

    fn error(program: &str, mut input: impl Read) -> String {
        let command = JobCommand::new(vec![program.into()], Path::new("/socket")).unwrap();
        let (sender, mut started) = oneshot::channel();
        command.run_with_input(&mut input, sender);
        started.try_recv().unwrap().unwrap_err().to_string()
    }

    #[test]
    fn error_names_standard_input_or_the_program() {
        let input = error("/no/such/program", Broken);
        assert!(input.contains("standard input") && input.contains("device failed"), "{input}");
        assert!(!input.contains("/no/such/program"), "{input}");
        let program = error("/no/such/program", &b"text"[..]);
        assert!(program.contains("failed to run /no/such/program"), "{program}");
    }
}
