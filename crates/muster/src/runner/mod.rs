//! `muster runner`, and the whole program under the name `gitlab-runner`: its commands, flags and exit codes
//! (runner-config 2).
//!
//! Each command is a module with `Args` and `run`. Global flags precede the command. Whatever goes wrong ends with exit
//! code 1, usage errors included; the exceptions stand with their commands.

mod cache_init;
mod change;
mod entry;
mod error;
mod globals;
mod health_check;
mod list;
mod migrate_machine;
#[cfg(test)]
mod peer;
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

pub(crate) use run::{EXPLAIN_PATH, FleetEndpoints, INSTANCES, STATUS_PATH, executors, instances, state_dir};

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

/// The commands of GitLab's runner, on its configuration file.
#[derive(Debug, Parser)]
#[command(name = "gitlab-runner", disable_version_flag = true, version, long_version = globals::long_version())]
#[command(about = "The commands of gitlab-runner, on its configuration file", long_about = None)]
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
    Register(Box<register::Args>),
    /// List the configured runners, with their tokens.
    List(list::Args),
    /// Ask GitLab which of the configured runners it still knows.
    Verify(verify::Args),
    /// Remove a runner from GitLab and from the configuration.
    Unregister(unregister::Args),
    /// Get a new authentication token for a runner.
    ResetToken(reset_token::Args),
    /// Request jobs and run them, until a signal ends it.
    Run(Box<run::Args>),
    /// Run the jobs of one runner, which the flags describe, one after the other.
    RunSingle(Box<run::single::Args>),
    /// Install the runner as a service of systemd.
    Install(service::InstallArgs),
    /// Remove the service.
    Uninstall(service::UninstallArgs),
    /// Start the service.
    Start(service::Args),
    /// Stop the service.
    Stop(service::Args),
    /// Restart the service; jobs go on meanwhile.
    Restart(service::Args),
    /// Tell whether the service runs.
    Status(service::Args),
    /// Print the effective values of the configuration with their origin, and what is wrong with it.
    VerifyConfig(verify_config::Args),
    /// Print the configuration with [runners.autoscaler] in the place of [runners.machine].
    MigrateMachine(migrate_machine::Args),
    /// Tell whether the configuration keeps the rules of its format.
    Lint(verify_config::Args),
    /// Run the runner as a child that is controlled over gRPC.
    Wrapper(wrapper::Args),
    /// Bring and find the plugins that the configuration names.
    #[command(subcommand)]
    Fleeting(crate::plugin::RunnerCommand),
    /// Wait until a service accepts connections.
    HealthCheck(health_check::Args),
    /// Pack files and send them to GitLab as artifacts (internal).
    #[command(hide = true)]
    ArtifactsUploader(Box<transfer::UploadArgs>),
    /// Fetch a job's artifacts from GitLab and unpack them (internal).
    #[command(hide = true)]
    ArtifactsDownloader(Box<transfer::DownloadArgs>),
    /// Pack files into a cache, and send it to a store (internal).
    #[command(hide = true)]
    CacheArchiver(Box<transfer::ArchiveArgs>),
    /// Fetch a cache from a store, and unpack it (internal).
    #[command(hide = true)]
    CacheExtractor(Box<transfer::ExtractArgs>),
    /// Let everybody write to the folders of a cache (internal).
    #[command(hide = true)]
    CacheInit(cache_init::Args),
    /// Follow a job's log file (internal).
    #[command(hide = true)]
    ReadLogs(read_logs::Args),
}

/// Whether the program was called by the name of GitLab's runner.
pub(crate) fn is_called(program: Option<&OsString>) -> bool {
    let name = program.and_then(|program| std::path::Path::new(program).file_name());
    name.is_some_and(|name| name.to_string_lossy().starts_with("gitlab-runner"))
}

/// Parses the arguments of `gitlab-runner`, program name first, and runs the command.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    match Cli::try_parse_from(words(arguments, 1)) {
        Ok(cli) => run(cli),
        Err(error) => usage(&error),
    }
}

/// Tells what is wrong with the arguments, or the help that was asked for: ends with 1 or 0, never with clap's 2.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if error.kind() == clap::error::ErrorKind::DisplayVersion {
        anstream::println!("{}", globals::long_version());
        return ExitCode::SUCCESS;
    }
    // Where neither output nor error can be written, the exit code still tells.
    let _ = error.print();
    if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The arguments as clap reads them; from the `first` on they are those of this program.
pub(crate) fn words(arguments: &[OsString], first: usize) -> Vec<OsString> {
    crate::flags::as_gitlab_runner_reads(&Cli::command(), arguments, first)
}

/// Runs the command.
pub(crate) fn run(cli: Cli) -> ExitCode {
    cli.globals.apply(matches!(&cli.command, Command::Run(args) if args.syslog));
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
    }
}
