//! The binary: parses arguments and wires the rooms together. Each subcommand is a module with `Args` and `run`.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

mod agent;
mod ci;
mod logging;
mod manager;
mod runtime;

/// Muster: a CI runner and its fleet in one program.
#[derive(Debug, Parser)]
#[command(name = "muster", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a repository's pipeline here and now.
    Ci(Box<ci::Args>),
    /// Request jobs from a coordinator and run them.
    Manager(Box<manager::Args>),
    /// Execute the steps of jobs; started by a manager.
    #[command(subcommand)]
    Agent(agent::Command),
    /// Print the completions of a shell: `source <(muster completions bash)`.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Ci(args) => ci::run(*args),
        Command::Manager(args) => manager::run(*args),
        Command::Agent(command) => agent::run(command),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "muster", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
    }
}
