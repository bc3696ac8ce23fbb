//! `muster plugin`: manages plugins for instance groups. Also runs as `fleeting` and `gitlab-runner fleeting`.
//!
//! Exit codes: 0 for success, 1 if something failed, 2 if the arguments do not parse, or if `test` could not test the
//! plugin.

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

use error::PluginError;

/// Filter of the log. The results of the commands are not logged, because the commands print them.
const LOG_FILTER: &str = "error,muster_fleeting=warn";

/// Command line of the program under the name `fleeting`.
#[derive(Debug, Parser)]
#[command(name = "fleeting", version, about = "Manage plugins for instance groups")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Subcommands of `muster plugin`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Install plugins from their registries.
    Install(install::PluginInstallArgs),
    /// List the installed plugins, or the versions that a registry has.
    List(list::PluginListArgs),
    /// Store the credentials of a registry in docker's configuration.
    Login(login::PluginLoginArgs),
    /// Check that installed plugins have not been modified.
    Verify(verify::PluginVerifyArgs),
    /// Remove installed plugins.
    Remove(remove::PluginRemoveArgs),
    /// Print the path of the executable that a runner with `plugin = "PLUGIN"` starts.
    #[command(visible_alias = "lookpath")]
    LookPath(look_path::LookPathArgs),
    /// Test a plugin in any language against the protocol.
    Test(test::PluginTestArgs),
    /// Create a project for a new plugin. The project builds, and passes `muster plugin test`.
    New(new::PluginNewArgs),
    /// Run a plugin that is built into Muster. Started by managers.
    Serve(serve::PluginServeArgs),
}

/// Subcommands of `gitlab-runner fleeting`.
#[derive(Debug, Subcommand)]
pub(crate) enum RunnerCommand {
    /// Install the plugins of all runners in the configuration.
    Install(runners::ConfiguredInstallArgs),
    /// List the plugins of all runners in the configuration.
    List(runners::ConfiguredListArgs),
    /// Store the credentials of a registry in docker's configuration.
    Login(login::PluginLoginArgs),
}

/// Returns whether this program was started under the name `fleeting` or `fleeting-artifact`.
pub(crate) fn is_called(program: Option<&OsString>) -> bool {
    let name = program.and_then(|program| std::path::Path::new(program).file_name());
    name.is_some_and(|name| name == "fleeting" || name == "fleeting-artifact")
}

/// Runs `fleeting`. The first argument is the program's name.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    run(Cli::parse_from(crate::flags::rewrite_go_flags(&Cli::command(), arguments, 1)).command)
}

pub(crate) fn run(command: Command) -> ExitCode {
    // The host of a plugin parses its output, so Muster's own log must not be mixed into it.
    if !matches!(command, Command::Serve(_)) {
        crate::logging::init_command(LOG_FILTER);
    }
    match command {
        Command::Install(args) => exit_code(install::run(&args)),
        Command::List(args) => exit_code(list::run(&args)),
        Command::Login(args) => exit_code(login::run(&args)),
        Command::Verify(args) => exit_code(async { verify::run(&args) }),
        Command::Remove(args) => exit_code(remove::run(&args)),
        Command::LookPath(args) => exit_code(async { look_path::run(&args) }),
        Command::Test(args) => crate::runtime::block_on_one_thread(async {
            crate::ci::report_output_error(Box::pin(test::run(&args)).await)
        }),
        Command::New(args) => exit_code(async { new::run(&args) }),
        Command::Serve(args) => serve::run(&args),
    }
}

pub(crate) fn run_for_runner(command: RunnerCommand) -> ExitCode {
    match command {
        RunnerCommand::Install(args) => exit_code(runners::install(&args)),
        RunnerCommand::List(args) => exit_code(async { runners::list(&args) }),
        RunnerCommand::Login(args) => exit_code(login::run(&args)),
    }
}

fn exit_code(work: impl Future<Output = Result<bool, PluginError>>) -> ExitCode {
    crate::runtime::block_on_one_thread(async { crate::ci::exit_code(work.await) })
}
