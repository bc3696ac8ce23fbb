//! `muster runner`: the commands, flags and exit codes of gitlab-runner. Under the name `gitlab-runner`, the program
//! has only these commands.
//!
//! Global flags precede the command. All errors exit with 1, unless a command documents another code.

mod cache_init;
mod change;
mod entry;
mod error;
mod globals;
mod health_check;
mod list;
mod migrate_machine;
#[cfg(test)]
mod parity;
mod read_logs;
mod register;
mod reset_token;
mod run;
mod select;
mod service;
mod tls;
mod transfer;
mod unregister;
mod verify;
mod verify_config;
mod wrapper;

#[cfg(test)]
pub(crate) use entry::is_entry_flag;
pub(crate) use run::{
    EXPLAIN_PATH, FleetEndpoints, HostExecutors, INSTANCES, STATUS_PATH, executors, instances, state_dir,
};

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

/// Run a command of gitlab-runner, with its configuration file.
#[derive(Debug, Parser)]
#[command(name = "gitlab-runner", disable_version_flag = true, version, long_version = globals::long_version())]
#[command(about = "Run a command of gitlab-runner, with its configuration file", long_about = None)]
#[command(args_override_self = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    globals: globals::Globals,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Register a runner with GitLab and add it to the configuration.
    Register(Box<register::RegisterArgs>),
    /// List the configured runners, with their tokens.
    List(list::ListRunnersArgs),
    /// Check which of the configured runners GitLab still knows.
    Verify(verify::VerifyArgs),
    /// Remove a runner from GitLab and from the configuration.
    Unregister(unregister::UnregisterArgs),
    /// Get a new authentication token for a runner.
    ResetToken(reset_token::ResetTokenArgs),
    /// Request jobs and run them until a signal stops the command.
    Run(Box<run::RunArgs>),
    /// Run the jobs of one runner, which is described by flags, one at a time.
    RunSingle(Box<run::single::RunSingleArgs>),
    /// Install the runner as a systemd service.
    Install(service::ServiceInstallArgs),
    /// Remove the service.
    Uninstall(service::ServiceUninstallArgs),
    /// Start the service.
    Start(service::ServiceArgs),
    /// Stop the service.
    Stop(service::ServiceArgs),
    /// Restart the service. Running jobs continue.
    Restart(service::ServiceArgs),
    /// Show whether the service is running.
    Status(service::ServiceArgs),
    /// Print the effective values of the configuration with their origin, and all problems.
    VerifyConfig(verify_config::VerifyConfigArgs),
    /// Print the configuration with [runners.machine] replaced by [runners.autoscaler].
    MigrateMachine(migrate_machine::MigrateMachineArgs),
    /// Check the format of the configuration.
    Lint(verify_config::VerifyConfigArgs),
    /// Run the runner as a child process that is controlled over gRPC.
    Wrapper(wrapper::WrapperArgs),
    /// Install and list the plugins of the configuration.
    #[command(subcommand)]
    Fleeting(crate::plugin::RunnerCommand),
    /// Wait until a service accepts connections.
    HealthCheck(health_check::HealthCheckArgs),
    /// Upload files to GitLab as artifacts (internal).
    #[command(hide = true)]
    ArtifactsUploader(Box<transfer::ArtifactsUploadArgs>),
    /// Download a job's artifacts from GitLab and extract them (internal).
    #[command(hide = true)]
    ArtifactsDownloader(Box<transfer::ArtifactsDownloadArgs>),
    /// Archive files as a cache, and upload it to a store (internal).
    #[command(hide = true)]
    CacheArchiver(Box<transfer::CacheArchiveArgs>),
    /// Download a cache from a store, and extract it (internal).
    #[command(hide = true)]
    CacheExtractor(Box<transfer::CacheExtractArgs>),
    /// Make the directories of a cache writable for every user (internal).
    #[command(hide = true)]
    CacheInit(cache_init::CacheInitArgs),
    /// Follow a job's log file (internal).
    #[command(hide = true)]
    ReadLogs(read_logs::ReadLogsArgs),
    /// Copy, start and reach step-runner in a job's container (internal).
    #[command(subcommand, hide = true)]
    Steps(crate::step_runner::HelperCommand),
}

/// Returns whether this program was started under a name that begins with `gitlab-runner`.
pub(crate) fn is_called(program: Option<&OsString>) -> bool {
    let name = program.and_then(|program| std::path::Path::new(program).file_name());
    name.is_some_and(|name| name.to_string_lossy().starts_with("gitlab-runner"))
}

/// Runs `gitlab-runner`. The first argument is the program's name.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    match Cli::try_parse_from(go_style_arguments(arguments, 1)) {
        Ok(cli) => run(cli),
        Err(error) => print_usage(&error),
    }
}

/// Prints an error of the arguments, or the help. As in gitlab-runner, the exit code is 1 or 0, never clap's 2.
pub(crate) fn print_usage(error: &clap::Error) -> ExitCode {
    if error.kind() == clap::error::ErrorKind::DisplayVersion {
        anstream::println!("{}", globals::long_version());
        return ExitCode::SUCCESS;
    }
    let _ = error.print();
    if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Converts Go's flag syntax to clap's in the arguments from index `first` on.
pub(crate) fn go_style_arguments(arguments: &[OsString], first: usize) -> Vec<OsString> {
    crate::flags::rewrite_go_flags(&Cli::command(), arguments, first)
}

pub(crate) fn run(cli: Cli) -> ExitCode {
    // The log of the `steps` commands would become part of a job's log, so they initialize it differently.
    if !matches!(cli.command, Command::Steps(_)) {
        cli.globals.apply(matches!(&cli.command, Command::Run(args) if args.syslog));
    }
    match cli.command {
        Command::Register(args) => register::run(&args),
        Command::List(args) => list::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Unregister(args) => unregister::run(&args),
        Command::ResetToken(args) => reset_token::run(&args),
        Command::Run(args) => run::run(*args),
        Command::RunSingle(args) => run::single::run(&args),
        Command::Install(args) => service::install(&args),
        Command::Uninstall(args) => service::uninstall(&args),
        Command::Start(args) => service::control(service::Verb::Start, &args),
        Command::Stop(args) => service::control(service::Verb::Stop, &args),
        Command::Restart(args) => service::control(service::Verb::Restart, &args),
        Command::Status(args) => service::status(&args),
        Command::MigrateMachine(args) => migrate_machine::run(&args),
        Command::VerifyConfig(args) => verify_config::verify_config(&args),
        Command::Lint(args) => verify_config::lint(&args),
        Command::Wrapper(args) => wrapper::run(&args),
        Command::Fleeting(command) => crate::plugin::run_for_runner(command),
        Command::HealthCheck(args) => health_check::run(&args),
        Command::ArtifactsUploader(args) => transfer::upload(&args),
        Command::ArtifactsDownloader(args) => transfer::download(&args),
        Command::CacheArchiver(args) => transfer::archive(&args),
        Command::CacheExtractor(args) => transfer::extract(&args),
        Command::CacheInit(args) => cache_init::run(&args),
        Command::ReadLogs(args) => read_logs::run(&args),
        Command::Steps(command) => crate::step_runner::run_helper(command),
    }
}
