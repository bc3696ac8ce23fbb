//! `gitlab-runner steps`: the commands with which the executors of gitlab-runner copy, start and reach step-runner in a job's container.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::serve::JobCommand;
use super::{bootstrap, default_socket, fail, proxy, serve};

/// Environment variable with the arguments for an image whose entrypoint drops them: a JSON list of strings, in Base64.
pub(crate) const RECOVERED_ARGUMENTS: &str = "_GITLAB_RUNNER_HELPER_NATIVE_STEPS_ARGV";

/// Subcommands of `gitlab-runner steps`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum HelperCommand {
    /// Copy this executable to a file.
    Bootstrap {
        /// Path of the copy. Directories that do not exist are created.
        #[arg(value_name = "DESTINATION")]
        destination: PathBuf,
    },
    /// Serve the gRPC API on a Unix socket, and run a command as soon as standard input has data.
    Serve {
        /// Socket to listen on. Defaults to `step-runner.sock` in the directory for temporary files.
        #[arg(long, value_name = "FILE")]
        socket: Option<PathBuf>,
        /// Command that gets standard input. The server exits when the command exits.
        #[arg(value_name = "COMMAND", trailing_var_arg = true)]
        command: Vec<OsString>,
    },
    /// Connect stdin and stdout to the socket of `serve`.
    Proxy {
        /// Socket to connect to. Defaults to `step-runner.sock` in the directory for temporary files.
        #[arg(long, value_name = "FILE")]
        socket: Option<PathBuf>,
    },
}

pub(crate) fn run(command: HelperCommand) -> ExitCode {
    match command {
        HelperCommand::Bootstrap { destination } => bootstrap::copy_or_report(&destination),
        HelperCommand::Serve { socket, command } => {
            // Standard error is part of the job's log, so only the socket's path and errors are printed there.
            crate::logging::init_command("error");
            let socket = socket.unwrap_or_else(default_socket);
            let command = JobCommand::new(command, &socket);
            serve::serve(socket, None, command).unwrap_or_else(fail)
        }
        HelperCommand::Proxy { socket } => proxy::connect(&socket.unwrap_or_else(default_socket)),
    }
}

/// Returns the arguments that an entrypoint dropped, program name first. `None` means that there are none.
pub(crate) fn recovered_arguments(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let [program] = arguments else { return None };
    let json = STANDARD.decode(std::env::var(RECOVERED_ARGUMENTS).ok()?.trim()).ok()?;
    let words: Vec<String> = serde_json::from_slice(&json).ok()?;
    let words = words.into_iter().map(OsString::from);
    Some(std::iter::once(program.clone()).chain(words).collect())
}
