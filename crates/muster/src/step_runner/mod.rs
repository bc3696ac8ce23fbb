//! `muster step-runner`: GitLab's step-runner, with its commands, flags and exit codes.
//!
//! If the program is started under a name that begins with `step-runner`, it has only these commands.

mod bootstrap;
mod ci;
mod execute;
mod helper;
mod pairs;
mod proxy;
mod results;
mod run;
mod serve;
mod text_proto;

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
pub(crate) use helper::{HelperCommand, recovered_arguments, run as run_helper};

const SOCKET_NAME: &str = "step-runner.sock";

/// Run steps as GitLab's step-runner does, and serve its API.
#[derive(Debug, Parser)]
#[command(name = "step-runner", version)]
#[command(about = "Run steps as GitLab's step-runner does, and serve its API", long_about = None)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the list of steps in the environment variable STEPS.
    Ci(ci::CiArgs),
    /// Run one step.
    Run(Box<run::RunArgs>),
    /// Serve the gRPC API on a Unix socket, and on a TCP address with TLS.
    Serve(serve::ServeArgs),
    /// Connect stdin and stdout to the socket or the TCP address of `serve`.
    Proxy(proxy::ProxyArgs),
    /// Copy this executable to a directory, under the name `step-runner`.
    Bootstrap(bootstrap::BootstrapArgs),
}

/// Returns whether the program was started under a name that begins with `step-runner`.
pub(crate) fn is_called(program: Option<&OsString>) -> bool {
    let name = program.and_then(|program| Path::new(program).file_name());
    name.is_some_and(|name| name.to_string_lossy().starts_with("step-runner"))
}

/// Parses the arguments of `step-runner`, program name first, and runs the command.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    match Cli::try_parse_from(arguments) {
        Ok(cli) => run(cli),
        Err(error) => usage(&error),
    }
}

/// Prints an error of the arguments, or the help. The exit code of an error is 1, as in step-runner, not clap's 2.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    // If printing fails, the exit code still reports the error.
    let _ = error.print();
    if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

pub(crate) fn run(cli: Cli) -> ExitCode {
    match cli.command {
        Command::Ci(args) => ci::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => serve::run(args),
        Command::Proxy(args) => proxy::run(args),
        Command::Bootstrap(args) => bootstrap::run(&args),
    }
}

/// Prints the version, as step-runner does before it runs steps.
fn print_version() {
    anstream::println!("\nStep Runner version: muster {}\n", env!("CARGO_PKG_VERSION"));
}

/// Prints an error. Returns the exit code of a command that failed.
fn fail(error: impl Display) -> ExitCode {
    anstream::eprintln!("Error: {error}");
    ExitCode::FAILURE
}

/// Returns the path of the socket if the user gives none.
fn default_socket() -> PathBuf {
    std::env::temp_dir().join(SOCKET_NAME)
}
