//! `muster plugin`: plugins of instance groups. Also the whole program under the name `fleeting`, and `gitlab-runner
//! fleeting` (fleeting.md 6.7).
//!
//! Each command is a module with `Args` and `run`. It ends with 0, or 1 where something was not as it should be; words that
//! are not understood end with 2.

mod error;
mod install;
mod list;
mod login;
mod look_path;
mod new;
mod remove;
mod runners;
pub(crate) mod serve;
mod test;
mod test_config;
mod verify;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::ci::ui;
use error::PluginError;

/// Log of these commands: what they do they say themselves.
const LOG: &str = "error,muster_fleeting=warn";

/// The program under the name `fleeting`.
#[derive(Debug, Parser)]
#[command(name = "fleeting", version, about = "Plugins of instance groups")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// What can be done with plugins.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Bring plugins from their registries.
    Install(install::Args),
    /// List the installed plugins, or the versions that a registry has.
    List(list::Args),
    /// Keep the credentials of a registry, where docker keeps them.
    Login(login::Args),
    /// Check that installed plugins are what was installed.
    Verify(verify::Args),
    /// Remove installed plugins.
    Remove(remove::Args),
    /// Print the executable that a name in `plugin = "..."` stands for.
    #[command(visible_alias = "lookpath")]
    LookPath(look_path::Args),
    /// Test a plugin in any language against the protocol.
    Test(test::Args),
    /// Make a project of a plugin that builds and passes `test`.
    New(new::Args),
    /// Be one of the plugins that come with Muster; started by a manager.
    Serve(serve::Args),
}

/// What gitlab-runner does with the plugins of its configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum RunnerCommand {
    /// Bring the plugins of all runners of the configuration.
    Install(runners::InstallArgs),
    /// List the plugins of all runners of the configuration.
    List(runners::ListArgs),
    /// Keep the credentials of a registry, where docker keeps them.
    Login(login::Args),
}

/// Whether the program was called by the name of GitLab's tool for plugins.
pub(crate) fn is_called(program: Option<&OsString>) -> bool {
    let name = program.and_then(|program| std::path::Path::new(program).file_name());
    name.is_some_and(|name| name == "fleeting" || name == "fleeting-artifact")
}

/// Parses the arguments of `fleeting`, program name first, and runs the command.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    // It reads `-flag` as Go programs do.
    run(Cli::parse_from(crate::flags::as_gitlab_runner_reads(&Cli::command(), arguments, 1)).command)
}

/// Runs a command.
pub(crate) fn run(command: Command) -> ExitCode {
    // A plugin's stdout and log are the host's.
    if !matches!(command, Command::Serve(_)) {
        crate::logging::of_command(LOG);
    }
    match command {
        Command::Install(args) => ended(install::run(&args)),
        Command::List(args) => ended(list::run(&args)),
        Command::Login(args) => ended(login::run(&args)),
        Command::Verify(args) => ended(async { verify::run(&args) }),
        Command::Remove(args) => ended(remove::run(&args)),
        Command::LookPath(args) => ended(async { look_path::run(&args) }),
        Command::Test(args) => {
            crate::runtime::block_on_one_thread(async { crate::ci::with_output(test::run(&args).await) })
        }
        Command::New(args) => ended(async { new::run(&args) }),
        Command::Serve(args) => serve::run(&args),
    }
}

/// Runs a command of `gitlab-runner fleeting`.
pub(crate) fn run_for_runner(command: RunnerCommand) -> ExitCode {
    match command {
        RunnerCommand::Install(args) => ended(runners::install(&args)),
        RunnerCommand::List(args) => ended(async { runners::list(&args) }),
        RunnerCommand::Login(args) => ended(login::run(&args)),
    }
}

/// Whether all was as it should be; an error is told here.
fn ended(work: impl Future<Output = Result<bool, PluginError>>) -> ExitCode {
    crate::runtime::block_on_one_thread(async {
        let code = match work.await {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                ui::report(&error);
                ExitCode::FAILURE
            }
        };
        crate::ci::with_output(code)
    })
}
