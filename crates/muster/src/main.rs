//! The `muster` binary. Each command is a module with its arguments and `run`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

mod agent;
mod cache;
mod ci;
mod config_file;
mod deferred;
mod demo;
mod flags;
mod fleet;
#[cfg(test)]
mod help_tests;
mod junit;
mod logging;
mod manager;
mod observe;
mod open_files;
mod paths;
mod plugin;
mod runner;
mod runtime;
mod startup;
mod step;
mod step_runner;
mod unpack;

/// Muster: a CI runner and its autoscaling fleet in one program.
#[derive(Debug, Parser)]
#[command(name = "muster", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a repository's pipeline locally.
    Ci(Box<ci::CiArgs>),
    /// Request jobs from a coordinator and run them.
    Manager(Box<manager::ManagerArgs>),
    /// Run a command of gitlab-runner, with its configuration file.
    Runner(deferred::Deferred<runner::Cli>),
    /// Install, check, test and create plugins for instance groups.
    #[command(subcommand)]
    Plugin(plugin::Command),
    /// Inspect and operate autoscaled instances, and simulate scaling policies.
    #[command(subcommand)]
    Fleet(fleet::Command),
    /// Manage the caches of jobs.
    #[command(subcommand)]
    Cache(cache::Command),
    /// Watch a fleet at work: runs a coordinator, a manager, instances and jobs on this machine until you quit.
    Demo(demo::DemoArgs),
    /// Execute the steps of jobs. Started by managers.
    #[command(subcommand)]
    Agent(agent::Command),
    /// Run, test and debug the steps that you write; pin, publish and find remote steps.
    #[command(subcommand)]
    Step(step::StepCommand),
    /// Run a command of GitLab's step-runner.
    StepRunner(step_runner::Cli),
    /// Print shell completions, for example: `source <(muster completions bash)`.
    Completions {
        /// Name of the shell.
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // Managers start plugins and instances of the plugin `local` with `plugin serve`. Building the flags of all other
    // commands would delay them.
    if plugin::serve::is_serve_invocation(&arguments) {
        return plugin::serve::run(&plugin::serve::PluginServeArgs::parse_from(arguments.iter().skip(2)));
    }
    if let Some(command) = agent::from_environment(&arguments) {
        return agent::run(command);
    }
    if runner::is_called(arguments.first()) {
        return runner::main(step_runner::recovered_arguments(&arguments).as_ref().unwrap_or(&arguments));
    }
    if step_runner::is_called(arguments.first()) {
        return step_runner::main(&arguments);
    }
    if plugin::is_called(arguments.first()) {
        return plugin::main(&arguments);
    }
    let cli = if arguments.get(1).is_some_and(|word| word == "runner") {
        match Cli::try_parse_from(runner::go_style_arguments(&arguments, 2)) {
            Ok(cli) => cli,
            Err(error) => return runner::print_usage(&error),
        }
    } else if arguments.get(1).is_some_and(|word| word == "step-runner") {
        match Cli::try_parse_from(arguments) {
            Ok(cli) => cli,
            Err(error) => return step_runner::usage(&error),
        }
    } else {
        let is_ci = arguments.get(1).is_some_and(|word| word == "ci");
        let command = if is_ci { ci::with_defaults(Cli::command(), &arguments) } else { Cli::command() };
        Cli::from_arg_matches(&command.get_matches_from(arguments)).unwrap_or_else(|error| error.exit())
    };
    match cli.command {
        Command::Ci(args) => ci::run(*args),
        Command::Manager(args) => manager::run(*args),
        Command::Runner(cli) => runner::run(*cli.0),
        Command::Plugin(command) => plugin::run(command),
        Command::Fleet(command) => fleet::run(command),
        Command::Cache(command) => cache::run(command),
        Command::Demo(args) => demo::run(args),
        Command::Agent(command) => agent::run(command),
        Command::Step(command) => step::run(command),
        Command::StepRunner(cli) => step_runner::run(cli),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "muster", &mut text);
            ci::print(&text)
        }
    }
}
