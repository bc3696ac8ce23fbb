//! The binary: parses arguments and wires the rooms together. Each subcommand is a module with `Args` and `run`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

mod agent;
mod ci;
mod config_file;
mod demo;
mod flags;
mod fleet;
mod logging;
mod manager;
mod observe;
mod open_files;
mod paths;
mod plugin;
mod runner;
mod runtime;
mod startup;
mod unpack;

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
    /// The commands of gitlab-runner, on its configuration file.
    Runner(Box<runner::Cli>),
    /// Plugins of instance groups: bring, check, test and make them.
    #[command(subcommand)]
    Plugin(plugin::Command),
    /// Inspect and operate autoscaled instances, and simulate scaling policies.
    #[command(subcommand)]
    Fleet(fleet::Command),
    /// Watch a fleet breathe: a coordinator, a manager, instances and jobs, all on this machine, for as long as you look.
    Demo(demo::Args),
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
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // By this word a plugin is started, also where the file has another name, and each instance of `local`: what programs
    // start need not wait until the flags of all the other commands are laid out.
    if plugin::serve::is_asked(&arguments) {
        return plugin::serve::run(&plugin::serve::Args::parse_from(arguments.iter().skip(2)));
    }
    if runner::is_called(arguments.first()) {
        return runner::main(&arguments);
    }
    if plugin::is_called(arguments.first()) {
        return plugin::main(&arguments);
    }
    let cli = if arguments.get(1).is_some_and(|word| word == "runner") {
        match Cli::try_parse_from(runner::words(&arguments, 2)) {
            Ok(cli) => cli,
            Err(error) => return runner::usage(&error),
        }
    } else {
        let is_ci = arguments.get(1).is_some_and(|word| word == "ci");
        let command = if is_ci { ci::with_defaults(Cli::command(), &arguments) } else { Cli::command() };
        Cli::from_arg_matches(&command.get_matches_from(arguments)).unwrap_or_else(|error| error.exit())
    };
    match cli.command {
        Command::Ci(args) => ci::run(*args),
        Command::Manager(args) => manager::run(*args),
        Command::Runner(cli) => runner::run(*cli),
        Command::Plugin(command) => plugin::run(command),
        Command::Fleet(command) => fleet::run(command),
        Command::Demo(args) => demo::run(args),
        Command::Agent(command) => agent::run(command),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "muster", &mut text);
            ci::print(&text)
        }
    }
}
